"""Action repeat and instances."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_par.envs.cartpole import CartPole
from jaxrl_par.envs.mountain_car_continuous import MountainCarContinuous
from jaxrl_par.envs.pendulum import Pendulum
from jaxrl_par.envs.wrappers import ActionRepeat, Instances
from jaxrl_par.types import Environment


def test_action_repeat_sums_the_frames():
    """Three frames of Pendulum by hand."""
    env = Pendulum(max_steps=300)
    state, _ = env.reset(jax.random.key(0))
    action, total, by_hand = jnp.array([1.5]), 0.0, state
    for _ in range(3):
        by_hand, result = env.step(None, by_hand, action)
        total += result.reward
    repeated = ActionRepeat(env, 3)
    state, got = jax.jit(repeated.step)(jax.random.key(1), state, action)
    np.testing.assert_allclose(state, by_hand, rtol=1e-5)
    np.testing.assert_allclose(got.obs, result.obs, rtol=1e-5)
    np.testing.assert_allclose(got.reward, total, rtol=1e-5)
    assert got.reward.dtype == jnp.float32


def test_action_repeat_stops_at_the_end():
    """The pole falls at the second of four frames: two rewards, and it lies there."""
    env = CartPole()
    start = jnp.array([0.0, 0.0, 0.2, 0.4])  # 0.2094 is the limit: 0.208, then 0.216
    state, first = env.step(None, start, jnp.int32(0))
    assert not first.terminated
    fallen, second = env.step(None, state, jnp.int32(0))
    assert second.terminated
    state, got = ActionRepeat(env, 4).step(jax.random.key(0), start, jnp.int32(0))
    assert got.reward == 2
    assert got.terminated
    np.testing.assert_allclose(got.obs, second.obs, rtol=1e-6)
    np.testing.assert_allclose(state, fallen, rtol=1e-6)


def test_action_repeat_counts_steps_and_frames():
    spec = ActionRepeat(CartPole(), 4).spec
    assert (spec.max_steps, spec.frames_per_step) == (125, 4)
    assert ActionRepeat(CartPole(max_steps=None), 3).spec.max_steps is None
    twice = ActionRepeat(ActionRepeat(CartPole(), 2), 5)
    assert (twice.spec.max_steps, twice.spec.frames_per_step) == (50, 10)
    assert isinstance(twice, Environment)


def test_action_repeat_of_one_changes_nothing():
    env = CartPole()
    state, _ = env.reset(jax.random.key(0))
    _, plain = env.step(None, state, jnp.int32(1))
    _, got = ActionRepeat(env, 1).step(jax.random.key(1), state, jnp.int32(1))
    np.testing.assert_allclose(got.obs, plain.obs, rtol=1e-6)
    assert got.reward == plain.reward


def test_action_repeat_refuses_what_does_not_divide():
    with pytest.raises(ValueError, match=r"repeats 2 .* 999.*\[998, 1000\]"):
        ActionRepeat(MountainCarContinuous(), 2)
    with pytest.raises(ValueError, match="repeats 0 must be at least 1"):
        ActionRepeat(CartPole(), 0)


def test_action_repeat_keeps_that_env_never_truncates():
    """And keeps a truncation of the environment's own."""
    env = CartPole()
    state, _ = env.reset(jax.random.key(0))
    _, got = ActionRepeat(env, 2).step(jax.random.key(1), state, jnp.int32(1))
    assert got.truncated is False

    class Cutting:
        spec = env.spec
        reset = env.reset

        def step(self, key, state, action):
            state, result = env.step(key, state, action)
            return state, dataclasses.replace(result, truncated=state[1] > 0)

    _, got = ActionRepeat(Cutting(), 2).step(jax.random.key(1), state, jnp.int32(1))
    assert got.truncated
    assert got.reward == 1  # cut at the first frame


def test_instances_give_each_environment_its_physics():
    gravities = jnp.array([1.0, 9.8, 20.0])
    many = Instances.of(CartPole(), 3, gravity=gravities)
    assert many.spec == CartPole().spec
    assert all(leaf.shape == (3,) for leaf in jax.tree.leaves(many))
    state = jnp.array([0.0, 0.0, 0.1, 0.0])
    step = jax.vmap(lambda env: env.step(None, state, jnp.int32(1)))
    _, got = jax.jit(step)(many.env)
    for i, gravity in enumerate(gravities):
        _, one = CartPole(gravity=gravity).step(None, state, jnp.int32(1))
        np.testing.assert_allclose(got.obs[i], one.obs, rtol=1e-5)
    assert len(np.unique(got.obs[:, 3])) == 3


def test_instances_refuse_wrong_parameters():
    with pytest.raises(ValueError, match="parameter 'gravitas' must be one of"):
        Instances.of(CartPole(), 3, gravitas=jnp.ones(3))
    with pytest.raises(ValueError, match="'max_steps' must be one of"):
        Instances.of(CartPole(), 3, max_steps=jnp.ones(3))
    with pytest.raises(ValueError, match=r"'gravity' of shape \(2,\) .* num_envs 3"):
        Instances.of(CartPole(), 3, gravity=jnp.ones(2))
