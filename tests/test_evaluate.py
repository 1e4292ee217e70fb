"""Evaluation: equal quotas, raw rewards, keys of its own, nothing changed."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys

from jaxrl_par.envs.batched import BatchedEnv
from jaxrl_par.envs.pendulum import Pendulum
from jaxrl_par.envs.probes import CountingEnv, MultiDiscreteEcho
from jaxrl_par.envs.wrappers import Instances
from jaxrl_par.spaces import Box, Discrete
from jaxrl_par.train import evaluate, step
from jaxrl_par.train.evaluate import Evaluation, Evaluator
from jaxrl_par.types import EnvSpec, StepResult, pytree


@pytree
class Lasting:
    """Episodes of `length` steps; reward 1, or the action's number if `pay_action`."""

    length: float = 1.0
    pay_action: bool = toys.static(default=False)

    spec = EnvSpec("lasting", Box(0.0, np.inf, (1,)), Discrete(100))

    def reset(self, key):
        return jnp.zeros(1), jnp.zeros(1)

    def step(self, key, state, action):
        state = state + 1
        reward = action.astype(jnp.float32) if self.pay_action else jnp.float32(1)
        return state, StepResult(state, reward, state[0] >= self.length)


def play(env, episodes, seed=0):
    algorithm = toys.Tally()
    state = algorithm.init(jax.random.key(1), env.spec, 2)
    key = jax.random.key(seed)
    return Evaluator(episodes)(algorithm, BatchedEnv(env), state, key)


def test_short_episodes_are_not_counted_more_often():
    """Lengths 1 and 10 in turn, four episodes: mean 5.5, not 1 (first come)."""
    env = Instances.of(Lasting(), 2, length=jnp.array([1.0, 10.0]))
    result = play(env, 4)
    np.testing.assert_array_equal(result.returns, [1, 10, 1, 10])
    np.testing.assert_array_equal(result.lengths, [1, 10, 1, 10])
    assert (result.mean_return, result.unfinished) == (5.5, 0)


def test_a_time_limit_may_be_as_long_as_an_integer_is():
    """Two episodes an environment: twice the limit would not fit."""
    result = play(toys.Fate(end=0.5, max_steps=2**31 - 1), 256)
    assert (result.returns.size, result.unfinished) == (256, 0)


def test_every_environment_plays_its_quota(monkeypatch):
    """Twelve episodes in four environments: three each, in order of environment."""
    monkeypatch.setattr(evaluate, "MAX_ENVS", 4)
    env = Instances.of(Lasting(), 4, length=jnp.array([1.0, 2.0, 5.0, 9.0]))
    result = play(env, 12)
    np.testing.assert_array_equal(result.returns, np.repeat([1, 2, 5, 9], 3))
    np.testing.assert_array_equal(result.lengths, np.repeat([1, 2, 5, 9], 3))


def test_memory_starts_afresh_with_each_episode(monkeypatch):
    """Tally plays the episode's step: 0 + 1 + 2 + 3 in each, not more in later ones."""
    monkeypatch.setattr(evaluate, "MAX_ENVS", 2)
    result = play(Lasting(length=4.0, pay_action=True), 6)
    np.testing.assert_array_equal(result.returns, [6] * 6)


def test_episodes_start_and_step_at_random():
    """And repeat with the seed; all of 200 differ (starts and rewards are random)."""
    env = toys.Fate(end=0.2)
    one, again, other = (play(env, 200, seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one.returns, again.returns)
    np.testing.assert_array_equal(one.lengths, again.lengths)
    assert len(np.unique(np.concatenate([one.returns, other.returns]))) == 400
    # Geometric lengths of mean 5 and deviation sqrt(20): 0.22 of the mean of 400.
    both = np.concatenate([one.lengths, other.lengths])
    assert abs(both.mean() - 5) < 0.9


def test_the_time_limit_counts(monkeypatch):
    """Of each episode: three of seven steps in each of two environments."""
    monkeypatch.setattr(evaluate, "MAX_ENVS", 2)
    result = play(CountingEnv(max_steps=7), 6)
    np.testing.assert_array_equal(result.returns, [7] * 6)
    np.testing.assert_array_equal(result.lengths, [7] * 6)


def test_an_endless_episode_is_cut_and_said_to_be(monkeypatch):
    monkeypatch.setattr(evaluate, "MAX_STEPS", 50)
    endless = play(CountingEnv(max_steps=None), 3)
    assert (endless.returns.size, endless.unfinished) == (0, 3)
    assert np.isnan(endless.mean_return)
    env = Instances.of(Lasting(), 2, length=jnp.array([3.0, 1e9]))
    mixed = play(env, 4)
    np.testing.assert_array_equal(mixed.returns, [3, 3])
    assert mixed.unfinished == 2


@pytest.mark.parametrize("env", [Pendulum(max_steps=20), MultiDiscreteEcho()])
def test_other_action_spaces(env):
    result = play(env, 8)
    assert np.isfinite(result.returns).all()
    assert result.returns.shape == (8,)
    assert (result.lengths == (env.spec.max_steps or 1)).all()


def test_nothing_is_changed():
    """A hundred episodes: the state that they were played with is as before."""
    algorithm, env = toys.Tally(), BatchedEnv(toys.Fate(end=0.5))
    state = step.init_state(algorithm, env, 4, jax.random.key(0))
    before = jax.tree.map(toys.host, state)
    Evaluator(100)(algorithm, env, state.algorithm, jax.random.key(1))
    toys.assert_equal(before, state)


def test_number_of_environments_divides_the_episodes():
    for episodes in (1, 7, 100, 128, 200, 256, 1000, 131):
        number = Evaluator(episodes).num_envs
        assert episodes % number == 0 and number <= evaluate.MAX_ENVS
    assert Evaluator(100).num_envs == 100
    assert Evaluator(1000).num_envs == 125
    with pytest.raises(ValueError, match="eval_episodes 0 must be a whole number"):
        Evaluator(0)


def test_mean_return():
    assert Evaluation(np.array([1.0, 2.0]), np.array([1, 1]), 0).mean_return == 1.5
