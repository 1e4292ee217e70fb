"""An episode of a trained agent as an animated GIF."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_par.envs.drawing import draw
from jaxrl_par.envs.wrappers import Instances
from jaxrl_par.train.layout import local
from jaxrl_par.train.run import Run
from jaxrl_par.types import Environment, Key, PyTree

# Longer episodes are shown with steps left out, longer still only their beginning.
MAX_FRAMES = 300
MAX_STEPS = 3000
# Milliseconds a frame: of smooth motion, and of grids, which change in jumps.
_MILLISECONDS = (40, 100)


@dataclasses.dataclass(frozen=True)
class Episode:
    """What was seen in T steps of one environment."""

    env: Environment
    states: list[PyTree]  # T + 1
    obs: list[PyTree]  # T + 1
    rewards: np.ndarray  # [T] float32

    @property
    def return_(self) -> float:
        return float(self.rewards.sum())


def play_episode(run: Run, seed: int = 0, max_steps: int = MAX_STEPS) -> Episode:
    """One greedy episode, or its first `max_steps` steps."""
    env: Any = run.env
    if isinstance(env, Instances):
        env = jax.tree.map(lambda leaf: leaf[0], env.env)
    algorithm = run.algorithm
    learned = local(run.state.algorithm, algorithm.sharded)
    limit = min(env.spec.max_steps or max_steps, max_steps)

    @jax.jit
    def step(key: Key, state: PyTree, obs: PyTree, memory: PyTree) -> tuple:
        batch = jax.tree.map(lambda x: jnp.asarray(x)[None], obs)
        memory, action, _ = algorithm.act(learned, memory, batch, None, greedy=True)
        action = jax.tree.map(lambda x: x[0], action)
        state, result = env.step(key, state, action)
        ended = result.terminated | jnp.asarray(result.truncated)
        return state, result.obs, memory, result.reward, ended

    reset_key, step_key = jax.random.split(jax.random.key(seed))
    state, obs = jax.jit(env.reset)(reset_key)
    memory: Any = algorithm.initial_carry(env.spec, 1)
    states, seen, rewards = [jax.device_get(state)], [jax.device_get(obs)], []
    for t in range(limit):
        key = jax.random.fold_in(step_key, t)
        state, obs, memory, reward, ended = step(key, state, obs, memory)
        states.append(jax.device_get(state))
        seen.append(jax.device_get(obs))
        rewards.append(float(reward))
        if ended:
            break
    return Episode(env, states, seen, np.array(rewards, np.float32))


def render(episode: Episode, path: str | Path) -> Path:
    """Write an episode as a GIF; returns its path.

    The environment's own picture if it has one (`envs.drawing`), else its
    observations as lines over time. Raises ValueError for a path that is no .gif.
    """
    from PIL import Image  # here, for few runs need it

    path = check_gif(path)
    stride = -(-len(episode.states) // MAX_FRAMES)
    shown = list(range(0, len(episode.states), stride))
    if shown[-1] != len(episode.states) - 1:
        shown.append(len(episode.states) - 1)
    frames = [Image.fromarray(frame) for frame in _frames(episode, shown)]
    grid = np.ndim(jax.tree.leaves(episode.obs[0])[0]) > 1
    path.parent.mkdir(parents=True, exist_ok=True)
    frames[0].save(
        path,
        save_all=True,
        append_images=frames[1:],
        duration=_MILLISECONDS[grid],
        loop=0,
    )
    return path


def check_gif(path: str | Path) -> Path:
    """The path; ValueError if its name does not end in .gif."""
    if Path(path).suffix.lower() != ".gif":
        raise ValueError(f"render {str(path)!r} must end in .gif")
    return Path(path)


def _frames(episode: Episode, shown: list[int]) -> list[np.ndarray]:
    """Images [height, width, 3] uint8 of the steps shown."""
    env = episode.env
    try:
        first = draw(env, episode.states[0], episode.obs[0])
    except ValueError:  # it has no picture
        return _lines(episode, shown)
    rest = [draw(env, episode.states[t], episode.obs[t]) for t in shown[1:]]
    return [first, *rest]


def _lines(episode: Episode, shown: list[int]) -> list[np.ndarray]:
    """The observations as lines over time, with a mark at the step shown."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    values = np.stack([_flat(obs) for obs in episode.obs])
    figure = Figure(figsize=(4.8, 3.2), layout="constrained")
    canvas = FigureCanvasAgg(figure)
    panel = figure.subplots()
    panel.plot(values)
    title = f"{episode.env.spec.name}: return {episode.return_:.2f}"
    panel.set(xlabel="step", ylabel="obs", title=title)
    canvas.draw()
    image = np.array(canvas.buffer_rgba())[:, :, :3]
    corners = np.array([[t, panel.get_ylim()[0]] for t in shown])
    columns = panel.transData.transform(corners)[:, 0].astype(int)
    bottom, top = panel.transAxes.transform([(0, 0), (0, 1)])[:, 1].astype(int)
    inside = slice(len(image) - top, len(image) - bottom)  # rows count downwards
    frames = []
    for column in columns:
        frame = image.copy()
        frame[inside, max(column - 1, 0) : column + 1] = (230, 119, 0)
        frames.append(frame)
    return frames


def _flat(obs: PyTree) -> np.ndarray:
    leaves = jax.tree.leaves(obs)
    return np.concatenate([np.ravel(leaf).astype(np.float32) for leaf in leaves])
