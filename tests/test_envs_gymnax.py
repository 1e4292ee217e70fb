"""The gymnax adapter: every environment, in types at least, and the true successor."""

from __future__ import annotations

import dataclasses
import importlib.metadata

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_par.envs import Instances, check_env, make
from jaxrl_par.envs.adapters import gymnax as adapter
from jaxrl_par.spaces import Discrete, zeros

FULLY_CHECKED = {  # in the default suite; the others when slow tests run
    "Breakout-MinAtar",
    "Catch-bsuite",
    "MemoryChain-bsuite",
    "BernoulliBandit-misc",
    "FrozenLake-misc",
}


def made(name, **parameters):
    # gymnax's Swimmer promotes ranks, which our tests do not allow.
    with jax.numpy_rank_promotion("allow"):
        return make(f"gymnax:{name}", **parameters)


def kinds(tree):
    return jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype, leaf.weak_type), tree)


@pytest.mark.parametrize("name", adapter.NAMES)
def test_types_are_as_declared(name):
    env = made(name)
    key = jax.random.key(0)
    with jax.numpy_rank_promotion("allow"):
        state, obs = jax.eval_shape(env.reset, key)
        action = jax.eval_shape(env.spec.action_space.sample, key)
        after, result = jax.eval_shape(env.step, key, state, action)
    declared = jax.eval_shape(lambda: zeros(env.spec.obs_space))
    assert kinds(obs) == kinds(result.obs) == kinds(declared)
    assert kinds(after) == kinds(state)
    assert not any(leaf.weak_type for leaf in jax.tree.leaves(state))
    scalar = ((), np.dtype(np.float32), False)
    assert kinds(result.reward) == scalar
    assert kinds(result.terminated) == ((), np.dtype(bool), False)
    assert isinstance(env.spec.max_steps, int)
    assert hash(env.spec) == hash(made(name).spec)
    assert jax.tree.structure(env) == jax.tree.structure(made(name))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=() if n in FULLY_CHECKED else pytest.mark.slow)
        for n in adapter.NAMES
    ],
)
def test_full_check(name):
    env = made(name)
    with jax.numpy_rank_promotion("allow"):
        check_env(env)


@pytest.mark.parametrize("name", ["CartPole-v1", "Catch-bsuite"])
def test_obs_is_the_true_successor(name):
    """Equal to gymnax's final observation, which at an end is not what it returns."""
    env = made(name)
    state, _ = env.reset(jax.random.key(0))
    step, theirs = jax.jit(env.step), env.env.step
    ends = 0
    for t in range(60):
        key = jax.random.key(100 + t)
        action = env.spec.action_space.sample(jax.random.key(t))
        obs, _, reward, terminated, _, info = theirs(
            jax.random.clone(key), state, action, env.params
        )
        state, result = step(jax.random.split(key)[0], state, action)
        np.testing.assert_allclose(result.obs, info["final_observation"], atol=1e-6)
        assert result.reward == reward
        assert result.terminated == terminated
        if terminated:
            ends += 1
            assert not np.allclose(result.obs, obs)
            state, _ = env.reset(jax.random.key(200 + t))
    assert ends >= 1


def test_time_limit_is_the_specs_alone():
    """Pendulum does not end at its limit; the limit can be set and taken away."""
    env = made("Pendulum-v1", max_steps=2)
    assert env.spec.max_steps == 2
    assert made("Pendulum-v1", max_steps=None).spec.max_steps is None
    assert made("Pendulum-v1").spec.max_steps == 200
    assert made("BernoulliBandit-misc").spec.max_steps == 100
    state, _ = env.reset(jax.random.key(0))
    step = jax.jit(env.step)
    for t in range(4):
        state, result = step(jax.random.key(t), state, jnp.zeros(1))
        assert not result.terminated
    assert state.time == 4


def test_parameters_reach_constructor_and_params():
    env = made("DeepSea-bsuite", size=5, unscaled_move_cost=0.02)
    assert env.spec.obs_space.shape == (5, 5)
    assert env.spec.max_steps == 5
    assert env.params.unscaled_move_cost == 0.02
    with pytest.raises(ValueError, match=r"no parameter 'sise'; nearest: \['size'"):
        made("DeepSea-bsuite", sise=5)
    with pytest.raises(ValueError, match=r"no environment 'Catch'; nearest: Catch-b"):
        made("Catch")


def test_names_and_spaces():
    assert make("Breakout-MinAtar").spec.name == "Breakout-MinAtar"
    assert make("Breakout-MinAtar").env is made("Breakout-MinAtar").env
    assert made("CartPole-v1").spec.name == "gymnax:CartPole-v1"
    assert made("FrozenLake-misc").spec.obs_space == Discrete(16)
    high = made("CartPole-v1").spec.obs_space.high
    np.testing.assert_array_equal(np.isinf(high), [False, True, False, True])
    assert not np.isfinite(made("MemoryChain-bsuite").spec.obs_space.low).any()


def test_params_are_leaves():
    env = made("CartPole-v1")
    gravities = jnp.array([1.0, 9.8, 20.0])
    copies = Instances.of(env, 3).env
    copies = dataclasses.replace(
        copies, params=copies.params.replace(gravity=gravities)
    )
    state, _ = env.reset(jax.random.key(0))
    step = jax.vmap(lambda env: env.step(jax.random.key(1), state, jnp.int32(1)))
    _, result = jax.jit(step)(copies)
    assert len(np.unique(result.obs[:, 3])) == 3


def test_an_environment_object_can_be_wrapped():
    theirs = made("Catch-bsuite").env
    env = adapter.wrap(theirs, theirs.default_params.replace(max_steps_in_episode=9))
    assert env.spec.max_steps == 9
    assert env.spec.name == "gymnax:Catch-bsuite"


def test_old_or_missing_gymnax_is_explained(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.0.9")
    with pytest.raises(ImportError, match=r"gymnax 0.0.9 is installed, but 1.0"):
        adapter.make("Catch-bsuite")

    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    with pytest.raises(ImportError, match="gymnax is not installed: pip install"):
        adapter.make("Catch-bsuite")
