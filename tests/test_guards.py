"""Numbers that are not finite: found where they happen, named, and dealt with."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys
from commands import TRAIN, run_here

import jaxrl_par as jp
from jaxrl_par.envs.probes import ContinuousEcho
from jaxrl_par.train import guards

ENVS = 16
# Four steps an update: a fault at an environment's step 10 is in update 3.
TALLY = toys.Tally(rollout_length=4)
SETTINGS = {"num_envs": ENVS, "total_steps": 4 * ENVS * 10, "eval_episodes": 0}


@jp.pytree
class Planted:
    """Pays 1 a step; what comes at one step of an episode is `bad`."""

    at: Any = 10**6  # step, counted from 1
    bad: Any = jnp.nan
    where: str = jp.static(default="reward")
    max_steps: int | None = jp.static(default=6)
    for_ever: bool = jp.static(default=False)

    @property
    def spec(self) -> jp.EnvSpec:
        box = jp.Box(-np.inf, np.inf, (2,))
        return jp.EnvSpec("planted", box, jp.Discrete(3), self.max_steps)

    def reset(self, key: Any) -> tuple[Any, Any]:
        return jnp.zeros(()), jnp.stack([jax.random.uniform(key), 0.0])

    def step(self, key: Any, state: Any, action: Any) -> tuple[Any, jp.StepResult]:
        state = state + 1
        hit = state >= self.at if self.for_ever else state == self.at
        bad = jnp.where(hit, self.bad, 0.0)
        reward, shown = jnp.float32(1.0), jnp.zeros(())
        if self.where == "reward":
            reward = reward + bad
        else:
            shown = bad
        obs = jnp.stack([jax.random.uniform(key), shown])
        terminated = hit if self.where == "end" else jnp.bool_(False)
        return state, jp.StepResult(obs, reward, terminated)


def planted(at: int = 10, envs: tuple[int, ...] = (7,), **fields: Any) -> jp.Instances:
    """Sixteen environments, of which `envs` have the fault."""
    when = jnp.full(ENVS, 10**6).at[jnp.array(envs)].set(at)
    bad = jnp.full(ENVS, fields.pop("bad", jnp.nan))
    fields = {"max_steps": None, **fields}
    return jp.Instances.of(Planted(**fields), ENVS, at=when, bad=bad)


def diverge(env: Any, **settings: Any) -> jp.DivergedError:
    """What a run raises."""
    with pytest.raises(jp.DivergedError) as error:
        jp.train(TALLY, env, **SETTINGS | settings)
    return error.value


WHERE = {
    "reward": ({"where": "reward"}, "reward in 1 of 16 environments, params"),
    "infinite": ({"where": "reward", "bad": jnp.inf}, "reward in 1 of 16"),
    "two": ({"envs": (3, 15)}, "reward in 2 of 16 environments"),
    "obs": ({"where": "obs"}, "observation in 1 of 16 environments$"),
    # Steps 8 and 12 are the last of an update: of the successor, and acted on next.
    "last obs": ({"where": "obs", "at": 12}, "observation in 1 of 16 environments$"),
    # A time limit of 10 cuts there: only the true successor shows it.
    "cut obs": ({"where": "obs", "max_steps": 10}, "observation in 1 of 16"),
}


@pytest.mark.parametrize(("fields", "words"), WHERE.values(), ids=list(WHERE))
def test_a_fault_is_named_and_the_state_before_it_kept(
    fields: dict[str, Any], words: str
) -> None:
    error = diverge(planted(**fields))
    assert str(error).startswith("update 3: not finite: ")
    assert re.search(words, str(error))
    fields = fields | {"at": 10**6}
    clean = jp.train(TALLY, planted(**fields), **SETTINGS | {"total_steps": 4 * 32})
    run = error.run
    assert run.env_steps == clean.env_steps == 128
    assert int(run.state.update) == 2
    toys.assert_equal(run.state, clean.state)
    assert len(run.metrics["update"]) == 2


def test_what_follows_a_termination_is_no_fault() -> None:
    """Nothing is done with it, and environments may leave anything there."""
    run = jp.train(TALLY, planted(where="end"), **SETTINGS)
    assert run.reason is None
    assert np.isfinite(run.params)


@pytest.mark.parametrize("data", [1, 4])
def test_environments_are_counted_over_all_devices(data: int) -> None:
    error = diverge(planted(envs=(0, 5, 6, 15)), data=data)
    assert "reward in 4 of 16 environments" in str(error)


def test_an_action_that_is_not_finite_is_named() -> None:
    class Wild(toys.Tally):
        """Acts with NaN."""

        def act(self, state: Any, carry: Any, obs: Any, noise: Any, greedy: bool):
            carry, action, extras = super().act(state, carry, obs, noise, greedy)
            return carry, action * jnp.nan, extras

    env = ContinuousEcho()
    with pytest.raises(jp.DivergedError, match=r"update 1: .*action in 16 of 16 env"):
        jp.train(jp.pytree(Wild)(), env, **SETTINGS)


def test_an_exploding_loss_is_named() -> None:
    algorithm = jp.PPO(jp.MLP((8,)), rollout_length=8, learning_rate=1e30)
    with pytest.raises(
        jp.DivergedError, match=r"update 1: .*loss.*algorithm state"
    ) as error:
        jp.train(algorithm, jp.make("Pendulum-v1"), num_envs=4, total_steps=320)
    assert all(
        np.isfinite(leaf).all() for leaf in jax.tree.leaves(error.value.run.params)
    )


def test_parameters_that_no_metric_shows_are_checked() -> None:
    """A rate of 3e38 makes them infinite; Tally's metric says so too."""
    algorithm = toys.Tally(rollout_length=4, rate=3e38)
    with pytest.raises(jp.DivergedError, match="params, algorithm state"):
        jp.train(algorithm, toys.Steady(pay=1e3), **SETTINGS)


def test_the_directory_keeps_the_last_finite_state(tmp_path: Path) -> None:
    error = diverge(planted(), out=tmp_path)
    assert str(tmp_path) in str(error)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["status"] == "stopped"
    assert "update 3: not finite: reward in 1 of 16" in summary["reason"]
    loaded = jp.load(tmp_path, TALLY, planted())
    toys.assert_equal(loaded.state, error.run.state)
    assert len(loaded.metrics["update"]) == 2
    # The same again, for nothing has changed; and on, when it may be skipped.
    with pytest.raises(jp.DivergedError, match="update 3"):
        jp.resume(tmp_path, TALLY, planted())
    with pytest.warns(UserWarning, match="update 3: .*it was skipped"):
        run = jp.resume(tmp_path, TALLY, planted(), on_nonfinite="skip")
    assert run.env_steps == SETTINGS["total_steps"]
    # It starts anew, and comes to its step 10 again, in updates 6 and 9.
    assert np.flatnonzero(run.metrics["skipped"] == 1).tolist() == [2, 5, 8]


def test_a_fault_in_the_first_update_leaves_the_state_before_it(tmp_path: Path) -> None:
    error = diverge(planted(at=1), out=tmp_path)
    assert error.run.env_steps == 0
    assert jp.load(tmp_path, TALLY, planted()).env_steps == 0
    assert json.loads((tmp_path / "summary.json").read_text())["updates"] == 0


@pytest.mark.parametrize("data", [1, 4])
def test_a_skipped_update_is_not_applied_and_its_environment_starts_anew(
    data: int, tmp_path: Path
) -> None:
    """Update 3 changes no parameter; the others' episodes go on and are counted."""
    states = []
    settings = SETTINGS | {"data": data, "chunk_seconds": 1e-6, "out": tmp_path}
    with pytest.warns(UserWarning, match="update 3: not finite: reward in 1 of 16"):
        run = jp.train(
            TALLY, planted(max_steps=10), on_nonfinite="skip",
            callbacks=[lambda p: states.append(p.state)], **settings,
        )  # fmt: skip
    before, after = states[1], states[2]
    toys.assert_equal(before.algorithm, after.algorithm)
    assert (states[1].algorithm.params != states[3].algorithm.params).all()
    skipped = [0, 0, 1, 0, 0, 1, 0, 0, 1, 0]  # after ten steps each time
    assert run.metrics["skipped"].tolist() == skipped
    assert run.metrics["faulty_reward_envs"].tolist() == skipped
    assert np.isnan(run.metrics["params"][2])
    # Its tenth step would have been the last of its first episode, as the others'.
    assert run.metrics["episode_count"][:3].tolist() == [0, 0, 15]
    assert run.metrics["episode_return"][2] == 10
    assert after.episode_length.tolist() == [2] * 7 + [0] + [2] * 8
    assert after.env.elapsed.tolist() == after.episode_length.tolist()
    assert after.first.tolist() == [False] * 7 + [True] + [False] * 8
    for state in states:
        for leaf in jax.tree.leaves((state.obs, state.episode_return, state.env)):
            assert np.isfinite(leaf).all()
    assert json.loads((tmp_path / "summary.json").read_text())["skipped_updates"] == 3


def test_a_skipping_run_is_the_same_on_any_number_of_devices() -> None:
    runs = []
    for data in (1, 4):
        with pytest.warns(UserWarning, match="skipped"):
            runs.append(
                jp.train(TALLY, planted(), on_nonfinite="skip", data=data, **SETTINGS)
            )
    np.testing.assert_allclose(runs[0].params, runs[1].params, rtol=1e-5)
    toys.assert_equal(runs[0].state.obs, runs[1].state.obs)


def test_without_a_fault_the_policies_are_equal_to_the_bit(tmp_path: Path) -> None:
    runs = [
        jp.train(TALLY, toys.Fate(max_steps=5), on_nonfinite=policy,
                 out=tmp_path / policy, **SETTINGS)
        for policy in ("stop", "skip", "rollback")
    ]  # fmt: skip
    for run in runs[1:]:
        toys.assert_equal(runs[0].state, run.state)
    assert sum(runs[1].metrics["skipped"]) == 0


def test_a_run_all_of_which_is_skipped_is_stopped() -> None:
    with pytest.warns(UserWarning, match="update 1: .*skipped"):
        error = diverge(planted(at=2, for_ever=True), on_nonfinite="skip")
    assert str(error).endswith("; 10 updates in a row were skipped")


def test_a_run_that_only_skips_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would look alive, and learn nothing."""
    monkeypatch.setattr(guards, "MAX_SKIPS", 5)
    with pytest.warns(UserWarning, match="update 1: .*skipped"):
        error = diverge(planted(at=2, for_ever=True), on_nonfinite="skip")
    assert str(error).startswith("update 5: not finite: reward in 1 of 16")
    assert str(error).endswith("; 5 updates in a row were skipped")


@jp.pytree
class Chance:
    """A reward is not finite with some probability: another key, another fate."""

    odds: float = 0.0015

    @property
    def spec(self) -> jp.EnvSpec:
        return toys.Fate(max_steps=6).spec

    def reset(self, key: Any) -> tuple[Any, Any]:
        return toys.Fate().reset(key)

    def step(self, key: Any, state: Any, action: Any) -> tuple[Any, jp.StepResult]:
        state, result = toys.Fate().step(key, state, action)
        hit = (
            jax.random.uniform(jax.random.fold_in(jax.random.clone(key), 1)) < self.odds
        )
        reward = jnp.where(hit, jnp.nan, result.reward)
        return state, jp.StepResult(result.obs, reward, result.terminated)


def test_a_run_rolls_back_with_another_key_and_has_every_row_once(
    tmp_path: Path,
) -> None:
    settings = SETTINGS | {"save_every": 0, "chunk_seconds": 1e-6, "out": tmp_path}
    with pytest.warns(UserWarning, match=r"not finite: reward .*; rolled back to upd"):
        run = jp.train(TALLY, Chance(), on_nonfinite="rollback", **settings)
    clean = jp.train(TALLY, Chance(odds=0.0), **SETTINGS)
    assert run.metrics["update"].tolist() == list(range(1, 11))
    assert all(np.isfinite(run.metrics["params"]))
    assert int(run.state.update) == 10
    rows = [
        json.loads(x) for x in (tmp_path / "metrics.jsonl").read_text().splitlines()
    ]
    assert [row["update"] for row in rows] == list(range(1, 11))
    same = run.metrics["params"] == clean.metrics["params"]
    first = int(np.argmin(same))  # where the keys part
    assert 0 < first < 10
    assert same[:first].all() and not same[first:].any()
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["rollbacks"] >= 1
    toys.assert_equal(jp.load(tmp_path, TALLY, Chance()).state, run.state)


def test_a_fault_that_comes_again_is_rolled_back_so_often_and_no_more(
    tmp_path: Path,
) -> None:
    """To the start: in two updates no checkpoint was due."""
    with pytest.warns(UserWarning, match="rolled back") as seen:
        error = diverge(
            planted(), on_nonfinite="rollback", max_rollbacks=2, out=tmp_path
        )
    assert [str(w.message).partition("; ")[2] for w in seen] == [
        f"rolled back to update 0 ({n} of at most 2)" for n in (1, 2)
    ]
    assert str(error).startswith("update 3: not finite: reward in 1 of 16")
    assert "; 2 rollbacks are spent; " in str(error)
    assert jp.load(tmp_path, TALLY, planted()).env_steps == 128


def test_a_run_that_starts_anew_can_be_rolled_back_too(tmp_path: Path) -> None:
    """It had been killed before its first checkpoint."""
    jp.train(TALLY, planted(at=10**6), out=tmp_path, **SETTINGS)
    shutil.rmtree(tmp_path / "checkpoints")
    with (
        pytest.warns(UserWarning, match=r"anew|env differs|rolled back to update 0"),
        pytest.raises(jp.DivergedError, match=r"update 3: .*2 rollbacks are spent"),
    ):
        settings = {"on_nonfinite": "rollback", "max_rollbacks": 2}
        jp.resume(tmp_path, TALLY, planted(), **settings)
    assert jp.load(tmp_path, TALLY, planted()).env_steps == 128


def test_without_a_directory_there_is_nothing_to_roll_back_to() -> None:
    with pytest.raises(ValueError, match="on_nonfinite 'rollback' needs `out`"):
        jp.train(TALLY, toys.Fate(), on_nonfinite="rollback")


def test_the_command_leaves_with_its_own_status(tmp_path: Path) -> None:
    words = [*TRAIN, "--lr", "1e30", "--total-steps", "9000", "--out", str(tmp_path)]
    status, _, err = run_here(*words, "--num-envs", "8")
    assert status == 3
    assert (
        "jaxrl-par: error: update 1: not finite: loss, policy_loss, value_loss, grad"
        in err
    )
    assert "Traceback" not in err
