"""The probes give the rewards and ends from which their values follow."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_par.envs import probes


def outcomes(env, actions, num_envs=2000):
    """Start observations and the results of one step with `actions` [num_envs]."""
    state, obs = jax.vmap(env.reset)(jax.random.split(jax.random.key(0), num_envs))
    key = jax.random.key(1)
    _, result = jax.vmap(env.step, (None, 0, 0))(key, state, actions)
    return obs, result


def random_actions(env, num_envs=2000):
    keys = jax.random.split(jax.random.key(1), num_envs)
    return jax.vmap(env.spec.action_space.sample)(keys)


def test_constant_reward():
    _, result = outcomes(probes.ConstantReward(), jnp.zeros(4, jnp.int32), 4)
    assert (result.reward == 1).all()
    assert result.terminated.all()


def test_obs_reward():
    env = probes.ObsReward()
    obs, result = outcomes(env, random_actions(env))
    np.testing.assert_array_equal(result.reward, obs[:, 0])
    assert set(np.unique(obs)) == {-1, 1}
    assert abs(obs.mean()) < 0.08  # deviation 0.022
    assert result.terminated.all()


def test_delayed_reward():
    env = probes.DelayedReward()
    state, obs = env.reset(jax.random.key(0))
    state, first = env.step(None, state, jnp.int32(0))
    state, second = env.step(None, state, jnp.int32(0))
    assert (obs[0], first.obs[0]) == (0, 1)
    assert (first.reward, second.reward) == (0, 1)
    assert (first.terminated, second.terminated) == (False, True)


def test_action_reward():
    _, result = outcomes(probes.ActionReward(), jnp.arange(2), 2)
    np.testing.assert_array_equal(result.reward, [-1, 1])
    assert result.terminated.all()


def test_obs_action_reward():
    env = probes.ObsActionReward()
    actions = random_actions(env)
    obs, result = outcomes(env, actions)
    match = (obs[:, 0] > 0) == (actions == 1)
    np.testing.assert_array_equal(result.reward, np.where(match, 1, -1))
    assert len(np.unique(np.stack([obs[:, 0], actions]), axis=1).T) == 4


@pytest.mark.parametrize("terminate_at", [None, 3])
def test_counting(terminate_at):
    env = probes.CountingEnv(terminate_at=terminate_at)
    state, obs = env.reset(jax.random.key(0))
    assert obs[0] == 0
    for t in range(1, 4):
        state, result = env.step(None, state, jnp.int32(0))
        assert result.obs[0] == t
        assert result.reward == 1
        assert result.terminated == (t == terminate_at)
        assert result.truncated is False
    assert probes.CountingEnv(max_steps=7).spec.max_steps == 7


def test_echo():
    env = probes.EchoEnv()
    actions = random_actions(env)
    assert set(np.unique(actions)) == {10, 11}
    obs, result = outcomes(env, actions)
    np.testing.assert_array_equal(result.reward, actions == 10 + obs[:, 0])
    assert not result.terminated.any()
    keys = jax.random.split(jax.random.key(2), 500)
    nexts = jax.vmap(env.step, (0, None, None))(keys, obs[0], actions[0])[1].obs
    assert set(np.unique(nexts)) == {0, 1}


def test_continuous_echo():
    env = probes.ContinuousEcho()
    obs, result = outcomes(env, random_actions(env))
    actions = random_actions(env)
    np.testing.assert_allclose(result.reward, -((actions - obs)[:, 0] ** 2), rtol=1e-5)
    obs, result = outcomes(env, obs)
    assert (result.reward == 0).all()


def test_masked_action():
    env = probes.MaskedAction()
    obs, result = outcomes(env, random_actions(env))
    assert env.spec.obs_space.contains(jax.tree.map(np.asarray, obs))
    mask, actions = np.asarray(obs["action_mask"]), np.asarray(random_actions(env))
    valid = mask[np.arange(2000), actions]
    np.testing.assert_array_equal(result.reward, np.where(valid, actions, -10))
    best = 3 - np.argmax(mask[:, ::-1], axis=1)
    _, result = outcomes(env, jnp.asarray(best))
    assert abs(float(result.reward.mean()) - 2.125) < 0.1  # deviation 0.02
    assert len(np.unique(mask, axis=0)) == 8


def test_multi_discrete_echo():
    env = probes.MultiDiscreteEcho()
    obs, result = outcomes(env, random_actions(env))
    assert {tuple(row) for row in np.asarray(obs)} == set(
        itertools.product(range(2), range(3))
    )
    assert abs(float(result.reward.mean()) - 5 / 12) < 0.04  # deviation 0.008
    _, result = outcomes(env, obs.astype(jnp.int32))
    assert (result.reward == 1).all()
