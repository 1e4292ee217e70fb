"""One update and chunks of them: counts, seeds, types and episode statistics."""

from __future__ import annotations

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys

from jaxrl_par.algorithms.ppo import PPO
from jaxrl_par.envs.batched import BatchedEnv
from jaxrl_par.envs.cartpole import CartPole
from jaxrl_par.envs.probes import CountingEnv, MaskedAction
from jaxrl_par.networks.actor_critic import MLP
from jaxrl_par.train import step
from jaxrl_par.train.loop import TrainConfig, Trainer

UPDATES = 50


@partial(toys.quick_jit, static_argnames=("num_envs", "number", "length"))
def _updates(env, key, num_envs, number, length):
    algorithm, batched = toys.Tally(rollout_length=length), BatchedEnv(env)

    def one(state, _):
        state, metrics, _ = step.train_step(
            algorithm, batched, state, jnp.float32(number), ()
        )
        return state, (metrics, state.algorithm.last)

    state = step.init_state(algorithm, batched, num_envs, key)
    return jax.lax.scan(one, state, None, number)[1]


def updates(env, num_envs=7, number=20, length=5):
    """`number` updates of Tally: (metrics [number], rollouts [number * T, B, ...])."""
    made = _updates(env, jax.random.key(5), num_envs, number, length)
    metrics, last = jax.device_get(made)

    def time_major(x):  # [number, B, T, ...]
        return x.swapaxes(1, 2).reshape(-1, num_envs, *x.shape[3:])

    return metrics, jax.tree.map(time_major, last)


FATE = toys.Fate(end=0.15, cut=0.1, max_steps=9, cuts_itself=True)


def test_episode_statistics_are_those_of_a_plain_loop():
    """Random ends of both kinds, 7 environments, episodes carried over 20 rollouts."""
    metrics, data = updates(FATE)
    total, length = np.zeros(7), np.zeros(7, int)
    for update in range(20):
        returns, lengths = [], []
        for t in range(5 * update, 5 * update + 5):
            total += data["reward"][t]
            length += 1
            for b in range(7):
                if data["terminated"][t, b] or data["truncated"][t, b]:
                    returns.append(total[b])
                    lengths.append(length[b])
                    total[b] = length[b] = 0
        assert metrics["episode_count"][update] == len(returns)
        assert metrics["episode_length_sum"][update] == sum(lengths)
        np.testing.assert_allclose(
            metrics["episode_return_sum"][update], sum(returns), atol=1e-5
        )
    assert metrics["episode_count"].sum() > 100


def test_every_step_counts_once_in_every_environment():
    """Three steps of reward 1, five environments: all returns and lengths are 3."""
    env = CountingEnv(max_steps=None, terminate_at=3)
    metrics, _ = updates(env, num_envs=5, number=6, length=4)
    # 24 steps hold 8 episodes; after 4, 8, ... steps 1, 2, 4, 5, 6, 8 have ended.
    np.testing.assert_array_equal(metrics["episode_count"], 5 * np.array([1, 1, 2] * 2))
    for name in ("episode_return_sum", "episode_length_sum"):
        np.testing.assert_array_equal(metrics[name], 3 * metrics["episode_count"])


def test_memory_starts_afresh_with_each_episode():
    """And is kept from one rollout to the next."""
    _, data = updates(FATE)
    np.testing.assert_array_equal(data["memory"], data["obs"][..., 1])
    assert data["memory"].max() == 8


def test_every_update_draws_anew():
    """Starts, rewards and actions of 20 updates: none like another's."""
    _, data = updates(dataclasses.replace(FATE, end=1.0))
    for values in (data["obs"][..., 0], data["reward"]):
        fresh = values.reshape(20, 5, 7)[:, 1:]
        assert len(np.unique(fresh)) == fresh.size
    actions = data["action"].reshape(20, -1)
    assert len(np.unique(actions, axis=0)) == 20
    assert len(np.unique(data["action"], axis=1).T) == 7  # nor an environment's


def test_progress_is_the_share_done_before_the_update():
    metrics, _ = updates(FATE)
    np.testing.assert_allclose(metrics["progress"], np.arange(20) / 20)


@pytest.fixture(scope="module")
def three_seeds():
    """50 updates of three seeds under vmap, in calls of n: {n: rows [50] of seeds}."""
    algorithm, env = toys.Tally(), BatchedEnv(toys.Fate(max_steps=6))
    keys = jax.vmap(lambda s: jax.random.split(jax.random.key(s))[0])(jnp.arange(3))
    init = jax.jit(jax.vmap(lambda key: step.init_state(algorithm, env, 4, key)))

    def chunk(state, count):
        total = jnp.float32(UPDATES)
        return step.chunk(algorithm, env, state, total, count, 7, ())[:2]

    chunk = jax.jit(jax.vmap(chunk, (0, None)))

    def run(size):
        state, rows, calls = init(keys), [], 0
        while len(rows) < UPDATES:
            count = min(size, UPDATES - len(rows))
            state, table = chunk(state, jnp.int32(count))
            table = jax.device_get(table)
            rows += [{k: v[:, i] for k, v in table.items()} for i in range(count)]
            calls += 1
        return state, rows, calls

    def unchecked(size):
        # The key-reuse check takes keys that vmap has transposed for used ones.
        with jax.debug_key_reuse(False):
            return run(size)

    return {
        size: toys.within(120, lambda size=size: unchecked(size)) for size in (1, 7)
    }


def test_no_row_is_lost_or_merged(three_seeds):
    """50 updates of 3 seeds, read one by one or by sevens: the same 150 rows."""
    (one, rows, calls), (seven, by_seven, fewer_calls) = three_seeds.values()
    assert (calls, fewer_calls) == (50, 8)
    assert len(rows) == len(by_seven) == 50
    assert all(row["params"].shape == (3,) for row in rows)
    toys.assert_equal(rows, by_seven)
    toys.assert_equal(one, seven)
    progress = np.stack([row["progress"] for row in rows])
    np.testing.assert_allclose(progress, np.arange(50)[:, None].repeat(3, 1) / 50)
    assert len(np.unique([row["params"] for row in rows])) == 150  # none twice


def test_a_vmapped_seed_is_the_single_run(three_seeds):
    """Row i of seeds [0, 1, 2] is what the loop gives with seed i; and they differ."""
    state, rows, _ = three_seeds[7]
    for seed in (0, 2):
        config = TrainConfig(
            num_envs=4, total_steps=4 * 4 * UPDATES, seed=seed, eval_episodes=0
        )
        run = Trainer(toys.Tally(), toys.Fate(max_steps=6), config).run()
        mine = jax.tree.map(lambda x, i=seed: x[i], state)
        jax.tree.map(
            lambda x, y: np.testing.assert_allclose(
                toys.host(x), toys.host(y), rtol=1e-5, atol=1e-6
            ),
            mine,
            run.state,
        )
        np.testing.assert_allclose(
            run.metrics["params"], [row["params"][seed] for row in rows], atol=1e-6
        )
    tags = state.obs[..., 0]
    assert len(np.unique(tags)) > 9


EVERYTHING = PPO(
    network=MLP((4,)),
    rollout_length=8,
    value_clip=0.2,
    target_kl=0.1,
    adaptive_kl=0.1,
    normalize_obs=True,
    normalize_reward=True,
)


@pytest.mark.parametrize(
    ("algorithm", "env"),
    [
        (toys.Tally(), toys.Fate(cuts_itself=True)),
        (PPO(rollout_length=8), CartPole()),
        (EVERYTHING, CartPole()),
        (EVERYTHING, MaskedAction()),
    ],
    ids=["tally", "ppo", "ppo-with-all-options", "ppo-masks"],
)
@pytest.mark.parametrize("reset", ["pool", "exact"])
def test_a_step_returns_the_types_it_takes(algorithm, env, reset):
    """Shapes, dtypes and weak types: else the second call would compile again."""
    batched = BatchedEnv(env, reset=reset)
    before = jax.eval_shape(
        lambda key: step.init_state(algorithm, batched, 8, key), jax.random.key(0)
    )
    after, metrics, _ = jax.eval_shape(
        lambda state: step.train_step(algorithm, batched, state, jnp.float32(9), ()),
        before,
    )
    assert jax.tree.structure(before) == jax.tree.structure(after)
    for path, leaf in jax.tree.leaves_with_path(before):
        other = dict(jax.tree.leaves_with_path(after))[path]
        assert (leaf.shape, leaf.dtype) == (other.shape, other.dtype), path
        assert not leaf.weak_type and not other.weak_type, path
    assert all(x.shape == () for x in metrics.values())


def test_a_chunk_of_none_changes_nothing():
    algorithm, env = toys.Tally(), BatchedEnv(FATE)

    @toys.quick_jit
    def nothing(key):
        state = step.init_state(algorithm, env, 4, key)
        after, table, _ = step.chunk(
            algorithm, env, state, jnp.float32(5), jnp.int32(0), 3, ()
        )
        return state, after, table

    before, after, table = nothing(jax.random.key(0))
    toys.assert_equal(before, after)
    assert all(x.shape == (3,) and not x.any() for x in table.values())
