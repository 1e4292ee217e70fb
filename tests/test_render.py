"""Episodes as pictures: what is played, and what is drawn of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

import jaxrl_par as jp
from jaxrl_par.envs.batched import BatchedEnv
from jaxrl_par.envs.drawing import draw
from jaxrl_par.train import render, step
from jaxrl_par.types import EnvSpec, StepResult, pytree

ALGORITHM = jp.PPO(network=jp.MLP(hidden=(4,)))


@pytree
class Ramp:
    """Observation: the step, and its double; ends after 5 steps. No picture."""

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec("ramp", jp.Box(0.0, np.inf, (2,)), jp.Discrete(2), 9)

    def reset(self, key: Any) -> tuple[Any, Any]:
        return jnp.float32(0), jnp.zeros(2)

    def step(self, key: Any, state: Any, action: Any) -> tuple[Any, StepResult]:
        state = state + 1
        return state, StepResult(jnp.stack([state, 2 * state]), state, state >= 5)


def untrained(env: Any) -> jp.Run:
    """A run that has not learned."""
    state = step.init_state(ALGORITHM, BatchedEnv(env), 8, jax.random.key(0))
    return jp.Run(ALGORITHM, env, {}, state, {})


def test_an_episode_is_whole() -> None:
    episode = render.play_episode(untrained(Ramp()))
    np.testing.assert_array_equal(episode.rewards, [1, 2, 3, 4, 5])
    assert episode.return_ == 15
    np.testing.assert_array_equal(np.stack(episode.obs)[:, 1], [0, 2, 4, 6, 8, 10])
    assert len(episode.states) == 6


def test_an_episode_ends_at_its_limit() -> None:
    env = jp.make("Pendulum-v1", max_steps=7)
    assert len(render.play_episode(untrained(env)).rewards) == 7
    assert len(render.play_episode(untrained(env), max_steps=3).rewards) == 3


def test_an_episode_is_what_an_evaluation_plays() -> None:
    # CartPole's step draws nothing, so from equal starts the episodes are equal.
    run = untrained(jp.make("CartPole-v1", start_range=0.0))
    episode = render.play_episode(run, seed=5)
    evaluation = run.evaluate(1, seed=7)
    np.testing.assert_allclose(evaluation.returns, [episode.return_])


def test_of_several_physics_the_first_is_shown() -> None:
    strong = jp.make("CartPole-v1", force=30.0)
    both = jax.tree.map(
        lambda *leaves: jnp.stack(leaves), strong, jp.make("CartPole-v1", force=1.0)
    )
    run = untrained(strong)
    several = jp.Run(ALGORITHM, jp.Instances(both), {}, run.state, {})
    assert (
        render.play_episode(several).obs[-1] == render.play_episode(run).obs[-1]
    ).all()


def test_frames_are_the_environments_pictures(tmp_path: Path) -> None:
    episode = render.play_episode(untrained(jp.make("Pendulum-v1", max_steps=4)))
    path = render.render(episode, tmp_path / "new" / "pendulum.gif")
    with Image.open(path) as picture:
        assert getattr(picture, "n_frames", 1) == 5
        picture.seek(4)
        shown = np.asarray(picture.convert("RGB")).astype(int)
    expected = draw(episode.env, episode.states[-1], episode.obs[-1])
    assert np.abs(shown - expected).max() < 16  # a GIF has 256 colours


def test_without_a_picture_the_observations_are_drawn(tmp_path: Path) -> None:
    episode = render.play_episode(untrained(Ramp()))
    path = render.render(episode, tmp_path / "ramp.gif")
    with Image.open(path) as picture:
        assert getattr(picture, "n_frames", 1) == 6
        columns = []
        for t in range(6):
            picture.seek(t)
            image = np.asarray(picture.convert("RGB")).astype(int)
            mark = (np.abs(image - (230, 119, 0)) < 16).all(-1).sum(0)
            columns.append(mark.argmax())
    assert (np.diff(columns) > 10).all()  # the mark moves to the right


def test_a_long_episode_has_few_frames_and_its_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[float] = []

    def draw_state(env: Any, state: Any, obs: Any) -> np.ndarray:
        seen.append(float(state))
        return np.full((4, 4, 3), 20 * int(state), np.uint8)

    monkeypatch.setattr(render, "MAX_FRAMES", 4)
    monkeypatch.setattr(render, "draw", draw_state)
    render.render(render.play_episode(untrained(Ramp())), tmp_path / "ramp.gif")
    assert seen == [0, 2, 4, 5]


def test_other_formats_are_refused(tmp_path: Path) -> None:
    episode = render.play_episode(untrained(Ramp()))
    with pytest.raises(ValueError, match=r"run\.mp4.*\.gif"):
        render.render(episode, tmp_path / "run.mp4")
