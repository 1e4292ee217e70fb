"""Auto-reset, time limit, start states and true successors of `BatchedEnv`.

Rollouts are taken by the engine's own `collect`; arrays are [T, B, ...].
"""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys
from scipy import stats

from jaxrl_par.envs.batched import BatchedEnv
from jaxrl_par.envs.cartpole import CartPole
from jaxrl_par.envs.probes import CountingEnv
from jaxrl_par.envs.wrappers import Instances
from jaxrl_par.spaces import Box, Discrete
from jaxrl_par.train import step
from jaxrl_par.types import EnvSpec, StepResult, pytree


def rollouts(env, length, num_envs, number=1, **batching):
    """`number` rollouts of random actions, one after another, [number * T, B, ...].

    With `next_obs`, and `next_sum` by `successor_values`, a sum being the value.
    """
    algorithm = toys.Tally(rollout_length=length)
    batched = BatchedEnv(env, **batching)

    def one(state, key):
        state, rollout = step.collect(
            algorithm, batched, state, key, (jnp.float32(0),) * 2, ()
        )
        data = {name: getattr(rollout, name) for name in toys.RECORDED}
        data["next_obs"] = rollout.next_obs()
        data["next_sum"] = rollout.successor_values(total(rollout.obs), total)
        return state, data

    def total(obs):
        return obs.sum(tuple(range(-len(env.spec.obs_space.shape), 0)))

    @toys.quick_jit
    def all_of_them(key):
        init_key, collect_key = jax.random.split(key)
        state = step.init_state(algorithm, batched, num_envs, init_key)
        return jax.lax.scan(one, state, jax.random.split(collect_key, number))[1]

    data = jax.device_get(all_of_them(jax.random.key(3)))
    return {name: x.reshape(-1, *x.shape[2:]) for name, x in data.items()}


def env_keys(key, batched, length, num_envs):
    return jax.random.split(key, (batched.num_keys(length), num_envs))


def test_the_true_successor_is_kept_and_never_the_reset_one():
    """Counting to 3: (0,1) (1,2) (2,3 cut) (0,1) ...; a pair (2,0) would be wrong."""
    data = rollouts(CountingEnv(max_steps=3), length=7, num_envs=2)
    pairs = np.stack([data["obs"][..., 0], data["next_obs"][..., 0]], -1)
    expected = [(0, 1), (1, 2), (2, 3), (0, 1), (1, 2), (2, 3), (0, 1)]
    np.testing.assert_array_equal(pairs[:, 0], expected)
    np.testing.assert_array_equal(pairs[:, 1], expected)
    np.testing.assert_array_equal(data["truncated"][:, 0], [0, 0, 1, 0, 0, 1, 0])
    np.testing.assert_array_equal(data["first"][:, 0], [1, 0, 0, 1, 0, 0, 1])
    assert not data["terminated"].any()


@pytest.mark.parametrize(
    ("length", "limit", "cuts_itself"),
    [
        (5, None, False),  # no cut possible: nothing is kept
        (7, 3, False),  # three rows for cuts
        (3, 1, False),  # as many rows as steps
        (4, 5, True),  # likewise, by the environment's own cuts
        (12, 2, False),  # more rows than are kept apart
    ],
)
def test_no_true_successor_is_lost(length, limit, cuts_itself):
    """Whichever way the successors are stored; over rollouts that follow each other."""
    env = toys.Fate(end=0.25, cut=0.3, max_steps=limit, cuts_itself=cuts_itself)
    data = rollouts(env, length, num_envs=6, number=24)
    ended = data["terminated"] | data["truncated"]
    on = ~data["terminated"]
    successor = data["obs"] + np.array([0, 1], np.float32).reshape(1, 1, 2)
    np.testing.assert_array_equal(data["next_obs"][on], successor[on])
    # What follows is the successor, or a new episode: another tag, step 0.
    goes_on = ~ended[:-1]
    np.testing.assert_array_equal(data["obs"][1:][goes_on], successor[:-1][goes_on])
    assert (data["obs"][1:][~goes_on][:, 1] == 0).all()
    assert (data["obs"][1:] != data["obs"][:-1])[~goes_on][:, 0].all()
    np.testing.assert_array_equal(data["first"][1:], ended[:-1])
    assert not (data["terminated"] & data["truncated"]).any()
    assert data["truncated"].any() == (limit is not None or cuts_itself)
    if not cuts_itself:  # at the limit exactly, also over the ends of rollouts
        at_limit = data["next_obs"][..., 1] == (limit or -1)
        np.testing.assert_array_equal(data["truncated"], at_limit & on)
    np.testing.assert_allclose(
        data["next_sum"][on], data["next_obs"][on].sum(-1), rtol=1e-6
    )


def test_termination_beats_truncation():
    env = CountingEnv(max_steps=3, terminate_at=3)
    data = rollouts(env, length=7, num_envs=1)
    np.testing.assert_array_equal(data["terminated"][:, 0], [0, 0, 1, 0, 0, 1, 0])
    assert not data["truncated"].any()


def test_exact_starts_are_independent_and_right():
    """Every step starts an episode: 200 x 16 tags, distinct, uniform in [0, 1).

    Of 3200 among 2^23 values, 0.6 pairs are equal by chance.
    """
    data = rollouts(toys.Fate(end=1.0), 200, 16, reset="exact")
    tags = data["obs"][..., 0]
    assert len(np.unique(tags)) > tags.size - 6
    assert stats.kstest(tags.ravel(), "uniform").pvalue > 1e-3
    for one, other in ((tags[1:], tags[:-1]), (tags[:, 1:], tags[:, :-1])):
        # Deviation of the correlation of 3000 independent pairs: 0.018.
        assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 0.07


def test_pool_starts_are_right_and_in_order():
    """Each environment takes its 8 starts a rollout in turn; new ones each rollout."""
    data = rollouts(toys.Fate(end=1.0), 24, 64, number=6, pool_size=8)
    tags = data["obs"][..., 0].reshape(6, 24, 64)[:, 1:]  # all that resets gave
    np.testing.assert_array_equal(tags[:, 8:], tags[:, :-8])
    fresh = tags[:, :8]
    assert len(np.unique(fresh)) > fresh.size - 6
    assert stats.kstest(fresh.ravel(), "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(fresh[:, 1:].ravel(), fresh[:, :-1].ravel())[0, 1]) < 0.08


def test_pool_is_used_in_order_whenever_episodes_end():
    batched = BatchedEnv(toys.Fate(end=0.3), pool_size=5)

    @toys.quick_jit
    def forty_steps(key):
        start_key, draw_key = jax.random.split(key)
        draws = batched.prepare(env_keys(draw_key, batched, 40, 7), 40)
        state, _ = batched.init(jax.random.split(start_key, 7))

        def one(state, keys):
            drawn = type(draws)(keys, (), draws.pool)
            return batched.step(state, jnp.zeros(7, jnp.int32), drawn)

        return draws.pool[1], jax.lax.scan(one, state, draws.step_keys)[1]

    pool, steps = jax.device_get(forty_steps(jax.random.key(0)))
    for i in range(7):
        starts = steps.obs[steps.terminated[:, i], i]
        assert len(starts) > 5  # all went round
        expected = [pool[(n + 1) % 5, i] for n in range(len(starts))]
        np.testing.assert_array_equal(starts, expected)


def test_instances_step_with_their_own_physics():
    """Three gravities at once give what each gives alone."""
    gravity = jnp.array([1.0, 9.8, 30.0])
    batched = BatchedEnv(Instances.of(CartPole(), 3, gravity=gravity))
    actions = jnp.array([0, 1, 1], jnp.int32)

    @toys.quick_jit
    def first_step(key):
        start_key, draw_key = jax.random.split(key)
        state, _ = batched.init(jax.random.split(start_key, 3))
        draws = batched.prepare(env_keys(draw_key, batched, 8, 3), 8)
        drawn = type(draws)(draws.step_keys[0], (), draws.pool)
        return state, batched.step(state, actions, drawn)

    state, (after, timestep) = jax.device_get(first_step(jax.random.key(1)))
    for i in range(3):
        alone = CartPole(gravity=float(gravity[i]))
        _, result = alone.step(None, state.inner[i], actions[i])
        np.testing.assert_allclose(timestep.next_obs[i], result.obs, rtol=1e-5)
    assert len(np.unique(timestep.next_obs[:, 3])) == 3
    assert after.inner.shape == (3, 4)


def test_max_cuts():
    """Only as many as can be: ceil(T / limit), or each step if the env cuts itself."""
    for limit, length in itertools.product((1, 2, 3, 5, 8), (1, 4, 7, 16)):
        env = BatchedEnv(toys.Fate(max_steps=limit))
        assert env.max_cuts(length) == -(-length // limit)
    assert BatchedEnv(toys.Fate()).max_cuts(9) == 0
    assert BatchedEnv(toys.Fate(cuts_itself=True)).max_cuts(9) == 9
    assert BatchedEnv(toys.Fate(cuts_itself=True, max_steps=5)).max_cuts(9) == 9
    many = Instances.of(toys.Fate(cuts_itself=True), 3)
    assert BatchedEnv(many).max_cuts(9) == 9
    assert BatchedEnv(Instances.of(toys.Fate(), 3)).max_cuts(9) == 0


@pytree
class Odd:
    """State: a key, a scalar and an empty part; a dictionary of observations."""

    spec = EnvSpec("odd", Box(0.0, 1.0, ()), Discrete(2))

    def reset(self, key):
        return {"key": key, "count": jnp.int32(0), "none": ()}, jnp.float32(0.0)

    def step(self, key, state, action):
        own, draw = jax.random.split(state["key"])
        count = state["count"] + 1
        state = {"key": own, "count": count, "none": ()}
        obs = jax.random.uniform(draw)
        return state, StepResult(obs, jnp.float32(1), count >= 3)


def test_states_may_hold_keys_and_scalars():
    """JAX's key-reuse check cannot follow keys through a reset's choice: off here."""
    with jax.debug_key_reuse(False):
        data = rollouts(Odd(), length=9, num_envs=4)
    np.testing.assert_array_equal(data["terminated"][:, 0], [0, 0, 1] * 3)
    drawn = data["obs"][data["obs"] != 0]
    assert len(np.unique(drawn)) == drawn.size == 6 * 4


def test_refusals_name_the_argument():
    with pytest.raises(ValueError, match="reset 'never' must be 'pool' or 'exact'"):
        BatchedEnv(CartPole(), reset="never")
    with pytest.raises(ValueError, match="pool_size 0 must be at least 1"):
        BatchedEnv(CartPole(), pool_size=0)
