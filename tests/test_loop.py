"""The host's side of a run: counts, rows, callbacks, compilation, refusals."""

from __future__ import annotations

import dataclasses
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys

from jaxrl_par.algorithms.ppo import PPO
from jaxrl_par.envs.cartpole import CartPole
from jaxrl_par.envs.probes import CountingEnv
from jaxrl_par.envs.wrappers import ActionRepeat
from jaxrl_par.networks.actor_critic import MLP
from jaxrl_par.spaces import Box, Discrete
from jaxrl_par.train import executable, loop
from jaxrl_par.train.callbacks import STOP
from jaxrl_par.train.loop import TrainConfig, Trainer, train
from jaxrl_par.types import EnvSpec, StepResult, pytree

ENDLESS = CountingEnv(max_steps=None)
FATE = toys.Fate(max_steps=5)


def tally(env=ENDLESS, length=4, **settings):
    settings = {"num_envs": 4, "eval_episodes": 0, **settings}
    return train(toys.Tally(rollout_length=length), env, **settings)


def test_total_steps_are_rounded_up_and_every_step_is_counted():
    """8 x 128 = 1024 steps an update, 10,000 asked for: 10 updates, 10,240 steps."""
    run = tally(length=128, num_envs=8, total_steps=10_000)
    assert run.env_steps == run.metrics["env_steps"][-1] == 10_240
    # The environments' own count: each never ends, and counts its steps.
    assert int(run.state.env.inner.sum()) == 10_240
    assert int(run.state.episode_length.sum()) == 10_240


def test_one_step_is_one_update():
    run = tally(length=128, num_envs=8, total_steps=1)
    assert run.env_steps == 1024
    assert int(run.state.update) == 1


def test_steps_frames_updates_are_told_apart():
    """2 devices x 8 environments x 16 steps x 5 updates, four frames a step."""
    seen = []
    run = tally(
        ActionRepeat(ENDLESS, 4),
        length=16,
        num_envs=16,
        total_steps=1280,
        data=2,
        callbacks=[seen.append],
    )
    last = seen[-1]
    assert (last.env_steps, last.frames, last.update) == (1280, 5120, 5)
    assert last.metrics["env_steps"] == run.env_steps == 1280
    assert last.metrics["frames"] == 5120
    assert int(run.state.env.inner.sum()) == 5120  # the environments' own count


def test_evaluating_does_not_change_training():
    """Every 1, 5 and 10 updates, and never: the state is equal to the bit."""
    states = []
    for every in (16, 80, 160, None):
        episodes = 0 if every is None else 2
        run = tally(FATE, total_steps=320, eval_every=every, eval_episodes=episodes)
        states.append(run.state)
        expected = [] if every is None else list(range(every, 321, every))
        assert [steps for steps, _ in run.evaluations] == expected
    for state in states[1:]:
        toys.assert_equal(states[0], state)


def test_a_trainer_runs_once():
    trainer = Trainer(toys.Tally(), FATE, TrainConfig(num_envs=4, total_steps=32))
    trainer.run()
    with pytest.raises(RuntimeError, match="has run; make a new one"):
        trainer.run()


def test_a_progress_kept_says_what_can_still_be_read():
    kept = []
    tally(
        FATE, total_steps=160, eval_every=16, eval_episodes=2, callbacks=[kept.append]
    )
    assert kept[0].env_steps == 16
    assert "update=1" in repr(kept[0])
    for name in ("params", "state"):
        with pytest.raises(RuntimeError, match=f"progress.{name} must be taken while"):
            getattr(kept[0], name)


def test_evaluation_is_due_where_a_multiple_is_crossed():
    """16 steps an update, every 25 steps: after 32, 64, 80, 112, ... steps."""
    run = tally(FATE, total_steps=160, eval_every=25, eval_episodes=2)
    steps = [steps for steps, _ in run.evaluations]
    assert steps == [32, 64, 80, 112, 128, 160]  # 175 is beyond the end
    assert run.evaluation is run.evaluations[-1][1]


def test_by_default_only_the_end_is_evaluated():
    run = tally(FATE, total_steps=320, eval_episodes=2)
    assert [steps for steps, _ in run.evaluations] == [320]


def test_seeds_reach_everything_and_repeat():
    one, again, other = (tally(FATE, total_steps=480, seed=s) for s in (0, 0, 1))
    toys.assert_equal(one.state, again.state)
    np.testing.assert_array_equal(
        one.metrics["episode_return"], again.metrics["episode_return"]
    )
    first = [
        tally(FATE, total_steps=1, seed=s).state.algorithm.last["obs"][:, 0, 0]
        for s in (0, 1)
    ]
    assert not np.isin(first[0], first[1]).any()
    assert one.state.algorithm.params != other.state.algorithm.params
    assert (one.metrics["episode_return"] != other.metrics["episode_return"]).all()


def test_each_update_has_one_row_and_the_last_call_says_so(monkeypatch):
    """Whatever the number of updates a call makes."""
    monkeypatch.setattr(loop, "CHUNK_ROWS", 7)
    seen = []
    run = tally(total_steps=16 * 50, callbacks=[seen.append])
    rows = [row for progress in seen for row in progress.rows]
    assert [row["update"] for row in rows] == list(range(1, 51))
    assert [row["env_steps"] for row in rows] == list(range(16, 801, 16))
    assert seen[-1].finished and not any(progress.finished for progress in seen[:-1])
    assert all(len(progress.rows) <= 7 for progress in seen)
    for name in ("update", "env_steps", "params", "progress"):
        column = [row[name] for row in rows]
        np.testing.assert_allclose(run.metrics[name], column, rtol=1e-6)
    assert {type(x) for row in rows for x in row.values()} == {int, float}


def test_a_callback_stops_the_run():
    """All callbacks then see the end once, and evaluation is not made twice."""
    seen = []

    def stop_at_5(progress):
        return STOP if progress.update == 5 else None

    run = tally(
        FATE,
        total_steps=16 * 50,
        eval_every=16 * 5,
        eval_episodes=2,
        callbacks=[stop_at_5, seen.append],
    )
    assert run.env_steps == 80
    assert len(run.metrics["update"]) == int(run.state.update) == 5
    assert [progress.finished for progress in seen[-2:]] == [False, True]
    assert seen[-1].rows == []
    assert [steps for steps, _ in run.evaluations] == [80]
    assert seen[-1].evaluation is seen[-2].evaluation is run.evaluation


def test_parameters_taken_in_a_callback_stay_readable():
    """The state is donated to each call; what a callback takes is a copy."""
    kept = []

    def keep(progress):
        kept.append((progress.update, progress.params, progress.state))

    run = tally(total_steps=16 * 12, eval_every=16, callbacks=[keep])
    assert [update for update, _, _ in kept] == list(range(1, 13))
    for update, params, state in kept:
        assert float(params) == float(state.algorithm.params)
        np.testing.assert_allclose(params, run.metrics["params"][update - 1])
        assert int(state.update) == update
    again = tally(total_steps=16 * 12)
    toys.assert_equal(again.state, run.state)


def test_unfinished_episodes_give_no_value():
    """Rollout 8, episodes of 100 steps: no value for 12 updates, then 100, once."""
    seen = []
    run = tally(
        CountingEnv(max_steps=100),
        length=8,
        num_envs=1,
        total_steps=104,
        callbacks=[seen.append],
    )
    rows = [row for progress in seen for row in progress.rows]
    assert len(rows) == 13
    for row in rows[:12]:
        assert row["episode_count"] == 0
        assert "episode_return" not in row and "episode_length" not in row
    assert rows[12]["episode_count"] == 1
    assert rows[12]["episode_return"] == rows[12]["episode_length"] == 100
    assert np.isnan(run.metrics["episode_return"][:12]).all()
    for row in rows:
        json.dumps(row, allow_nan=False)


def test_counts_beyond_two_to_the_31():
    """Steps are the host's integers: 4 x 666,894,336 = 2,667,577,344 is no wrap."""
    config = TrainConfig(num_envs=64, total_steps=2_667_577_344, eval_episodes=0)
    trainer = Trainer(toys.Tally(rollout_length=16), ENDLESS, config)
    assert trainer.total_steps == 2_667_577_344
    trainer.compile()
    trainer.update = trainer.total_updates - 1
    count = trainer.executable.place(jnp.int32(trainer.update))
    trainer.state = dataclasses.replace(trainer.state, update=count)
    (row,), _ = trainer.advance(1)
    assert row["env_steps"] == row["frames"] == trainer.env_steps == 2_667_577_344
    assert row["update"] == int(trainer.state.update) == trainer.total_updates
    share = 1 - 1 / trainer.total_updates
    np.testing.assert_allclose(row["progress"], share, rtol=1e-6)
    assert row["progress"] < 1


@pytest.fixture(scope="module")
def trainer():
    config = TrainConfig(num_envs=4, total_steps=16 * 1000, eval_episodes=0)
    trainer = Trainer(toys.Tally(), FATE, config)
    trainer.compile()
    return trainer


def parts(trainer):
    """The compiled chunk and its arguments."""
    made = trainer.executable
    return made.call, made.args, made.total


def test_the_loop_is_compiled_once(trainer):
    """After the first call nothing is compiled, however many updates a call makes."""
    trainer.advance(1)
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, seconds, **_: compiled.append(name)
    )
    for updates in (1, 5, 2, 30, 1):
        trainer.advance(updates)
    assert [name for name in compiled if "backend_compile" in name] == []


def test_nothing_is_transferred_within_the_loop(trainer):
    """Nor is the host called from it."""
    count = trainer.executable.place(jnp.int32(3))
    call, args, total = parts(trainer)
    with jax.transfer_guard("disallow"):
        trainer.state, *_ = call(trainer.state, *args, total, count)
    trainer.update += 3
    text = call.as_text()
    for word in ("callback", "infeed", "outfeed", "send(", "recv("):
        assert word not in text


def test_a_call_returns_small_results_of_constant_size(trainer):
    """One number a metric and update; the state's size does not grow."""
    count = trainer.executable.place(jnp.int32(2))
    before = jax.tree.map(jnp.shape, trainer.state)
    call, args, total = parts(trainer)
    trainer.state, table, _ = call(trainer.state, *args, total, count)
    trainer.update += 2
    assert all(column.shape == (executable.CHUNK_ROWS,) for column in table.values())
    assert jax.tree.map(jnp.shape, trainer.state) == before


def test_a_state_used_up_is_refused_by_name(trainer):
    """The state given to a call is donated: it says so if it is read again."""
    used = trainer.state
    trainer.advance(1)
    with pytest.raises(RuntimeError, match="deleted"):
        np.asarray(used.episode_return)


def test_numpy_numbers_are_settled():
    four = np.int64(4)
    config = TrainConfig(num_envs=four, total_steps=four, seed=four, eval_every=four)
    settings = dataclasses.asdict(config)
    assert {type(settings[k]) for k in ("num_envs", "total_steps", "seed")} == {int}
    json.dumps(settings)


REFUSED = {
    "num_envs": (0, -1, 2.5, True, "4"),
    "total_steps": (0, -5, 1.5, 1e6),
    "seed": (-1, 2**32, 0.5, True),
    "eval_every": (0, 2.5),
    "eval_episodes": (-1, 1.5, False),
    "pool_size": (0,),
    "reset": ("sometimes",),
    "data": (0, 2.5, True),
    "device": ("cuda",),
    "stop_at_return": (float("nan"), "high", [1.0]),
    "max_seconds": (0, -1.0, float("inf"), "1"),
    "on_nonfinite": ("ignore", None, 1),
    "max_rollbacks": (0, 1.5),
    "chunk_seconds": (0.0, None, float("nan")),
    "save_every": (-1, None),
    "keep_checkpoints": (0, True),
}


@pytest.mark.parametrize(
    ("name", "value"), [(k, v) for k, values in REFUSED.items() for v in values]
)
def test_settings_that_cannot_work_are_refused(name, value):
    with pytest.raises(ValueError, match=re.escape(f"{name} {value!r}")):
        train(PPO(), CartPole(), **{name: value})


def test_unknown_settings_are_refused_with_the_nearest():
    with pytest.raises(ValueError, match=r"no setting 'num_env'; .*num_envs") as error:
        train(PPO(), CartPole(), num_env=4)
    assert "total_steps" not in str(error.value)
    with pytest.raises(ValueError, match=r"no setting 'steps'; nearest: .*total_steps"):
        train(PPO(), CartPole(), steps=4)


class NoPytree(CartPole):
    """A class made without the decorator, which is not inherited."""


@pytree
class Liar:
    """Gives other shapes than its spec says."""

    spec = EnvSpec("liar", Box(0.0, 1.0, (3,)), Discrete(2))

    def reset(self, key):
        return jnp.zeros(2), jnp.zeros(2)

    def step(self, key, state, action):
        return state, StepResult(state, jnp.zeros(1), jnp.bool_(False))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("callbacks", None, "callbacks None must be a list or a tuple"),
        ("callbacks", print, "callbacks <built-in .* must be a list or a tuple"),
        ("callbacks", [3], "callbacks: 3 must be a function"),
        ("out", 5, "out 5 must be a path"),
    ],
)
def test_what_surrounds_a_run_is_checked_before_it_compiles(name, value, message):
    with pytest.raises(ValueError, match=message):
        tally(total_steps=16, **{name: value})


def test_a_callback_may_give_anything_back():
    run = tally(total_steps=160, eval_every=16, callbacks=[lambda p: np.zeros(3)])
    assert run.env_steps == 160


@pytest.mark.parametrize(
    ("algorithm", "env", "message"),
    [
        (PPO(), "CartPole-v1", r"env 'CartPole-v1' .*jaxrl_par.make\('CartPole-v1'\)"),
        (PPO(), CartPole, r"env CartPole is a class; .*: CartPole\(\.\.\.\)"),
        (PPO, CartPole(), r"algorithm PPO is a class; pass an object: PPO\(\.\.\.\)"),
        ("ppo", CartPole(), r"algorithm 'ppo' must have `validate`"),
        (PPO(), object(), r"env <object .* must have `spec` \(see .*check_env\)"),
        (CartPole(), PPO(), r"algorithm CartPole.* must have `validate`"),
        (PPO(), NoPytree(), r"env: NoPytree is no pytree; decorate it"),
        (PPO(num_minibatches=3), CartPole(), r"num_minibatches 3 must divide"),
        (PPO(network=MLP), CartPole(), r"network MLP is a class; .*: MLP\(\.\.\.\)"),
        (PPO(), Liar(), r"Liar has 4 problems:\s+1\. reset: obs is float32\[2\]; the "),
        (PPO(), Liar(), r"3\. step: reward is float32\[1\]; it must be a scalar"),
    ],
)
def test_arguments_of_the_wrong_kind_are_refused(algorithm, env, message):
    with pytest.raises(ValueError, match=message):
        train(algorithm, env)
