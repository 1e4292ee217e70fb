"""Agents learn what they should: probes with known values, then CartPole.

The five probes run in one compiled program; which one fails tells where the fault
is (see `envs.probes`).
"""

from __future__ import annotations

import dataclasses

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys

from jaxrl_par.algorithms.ppo import PPO
from jaxrl_par.envs.cartpole import CartPole
from jaxrl_par.envs.probes import (
    PROBES,
    ContinuousEcho,
    EchoEnv,
    MaskedAction,
    MultiDiscreteEcho,
)
from jaxrl_par.networks.actor_critic import MLP
from jaxrl_par.spaces import ACTION_MASK, Box, Discrete
from jaxrl_par.train.loop import train
from jaxrl_par.train.run import Run
from jaxrl_par.types import Array, EnvSpec, pytree

GAMMA = 0.9
LEARNER = PPO(
    network=MLP((16,)),
    rollout_length=8,
    num_minibatches=2,
    learning_rate=0.01,
    gamma=GAMMA,
)
ENVS = 16


@pytree
class AnyProbe:
    """The probe with number `which`, so that one program serves all five."""

    which: Array

    spec = EnvSpec("any-probe", Box(-1.0, 1.0, (1,)), Discrete(2))

    def reset(self, key):
        return jax.lax.switch(self.which, [probe().reset for probe in PROBES], key)

    def step(self, key, state, action):
        steps = [probe().step for probe in PROBES]
        state, result = jax.lax.switch(
            self.which,
            [lambda k, s, a, f=f: _with_flag(f(k, s, a)) for f in steps],
            key,
            state,
            action,
        )
        return state, dataclasses.replace(result, truncated=False)


def _with_flag(after):
    """The branches of a switch return arrays, not False."""
    return after[0], dataclasses.replace(after[1], truncated=jnp.bool_(False))


@pytest.fixture(scope="module")
def probes():
    """For each probe: values and action probabilities at observations -1, 0 and 1."""

    network = LEARNER.network(AnyProbe.spec)
    results = []
    for which in range(len(PROBES)):
        env = AnyProbe(jnp.int32(which))
        state, _ = toys.trained(LEARNER, env, 150, ENVS)
        obs = jnp.array([[-1.0], [0.0], [1.0]])
        logits, value = network.apply(state.algorithm.params, obs)
        results.append((np.asarray(value), np.asarray(jax.nn.softmax(logits))))
    return results


def test_a_constant_reward_is_valued(probes):
    value, _ = probes[0]
    np.testing.assert_allclose(value[1], 1, atol=0.02)


def test_values_depend_on_observations(probes):
    value, _ = probes[1]
    np.testing.assert_allclose(value[[0, 2]], [-1, 1], atol=0.02)


def test_later_rewards_are_discounted(probes):
    value, _ = probes[2]
    np.testing.assert_allclose(value[[1, 2]], [GAMMA, 1], atol=0.02)


def test_the_better_action_is_learned(probes):
    value, policy = probes[3]
    assert policy[1, 1] > 0.98
    np.testing.assert_allclose(value[1], 1, atol=0.05)


def test_the_policy_depends_on_observations(probes):
    value, policy = probes[4]
    assert policy[0, 0] > 0.98 and policy[2, 1] > 0.98
    np.testing.assert_allclose(value[[0, 2]], [1, 1], atol=0.05)


def learned(env, updates=150, algorithm=LEARNER):
    state, metrics = toys.trained(algorithm, env, updates, ENVS)
    return Run(algorithm, env, {}, state, metrics)


def test_actions_reach_the_environment_as_declared():
    """Discrete(2, start=10): reward 1 iff the action is 10 + obs; all eight steps."""
    run = learned(EchoEnv())
    assert run.evaluate(64).mean_return == 8.0
    np.testing.assert_array_equal(run.policy(np.array([[0.0], [1.0]])), [10, 11])
    sums, counts = (run.metrics[f"episode_{x}"] for x in ("return_sum", "count"))
    assert (sums / counts)[-10:].mean() > 7.9


def test_masked_actions_are_never_taken():
    """An invalid one pays -10; the best of each mask is found: all eight masks."""
    learner = toys.Recorder(LEARNER)
    first, _ = toys.trained(learner, MaskedAction(), 1, ENVS)
    last = jax.device_get(first.algorithm.last)  # by a policy that is all but uniform
    taken = np.take_along_axis(last["obs"][ACTION_MASK], last["action"][..., None], -1)
    assert taken.all() and set(last["action"].ravel()) == {0, 1, 2, 3}
    run = learned(MaskedAction(), algorithm=learner)
    bits = np.array([[1, *map(int, f"{i:03b}")] for i in range(8)], bool)
    actions = run.policy({"obs": np.zeros((8, 1)), ACTION_MASK: bits})
    best = [np.flatnonzero(mask).max() for mask in bits]
    np.testing.assert_array_equal(actions, best)
    assert run.evaluate(64).returns.min() >= 0


def test_several_discrete_actions_are_learned():
    run = learned(MultiDiscreteEcho())
    assert run.evaluate(64).mean_return == 1.0
    obs = np.array([[0, 0], [1, 1], [0, 2]])
    np.testing.assert_array_equal(run.policy(obs), obs)


@pytree
class UnboundedEcho(ContinuousEcho):
    """The same task with an action space without bounds."""

    @property
    def spec(self):
        unbounded = Box(-np.inf, np.inf, (1,))
        return dataclasses.replace(super().spec, action_space=unbounded)


@pytest.mark.parametrize(
    ("env", "squash"),
    [(UnboundedEcho(), False), (ContinuousEcho(), True)],
    ids=["unbounded", "squashed"],
)
def test_continuous_actions_are_learned_in_their_units(env, squash):
    """The best action is the observation, which scaling to +-2 must not change.

    Seeds 0 to 2: errors of 0.015 at most without bounds, 0.027 squashed.
    """
    run = learned(env, 300, dataclasses.replace(LEARNER, squash=squash))
    obs = np.linspace(-0.9, 0.9, 7)[:, None]
    np.testing.assert_allclose(run.policy(obs), obs, atol=0.1)
    assert run.evaluate(64).mean_return > -0.005


@pytest.fixture(scope="module")
def balanced():
    """PPO on CartPole, 130,000 steps. Seeds 0 to 4 each reach 500."""
    return train(
        PPO(learning_rate=2e-3, rollout_length=32, num_minibatches=8),
        CartPole(),
        num_envs=32,
        total_steps=130_000,
        eval_episodes=64,
    )


def test_cartpole_is_balanced(balanced):
    assert balanced.evaluation.mean_return > 400


def test_gymnasium_agrees(balanced):
    """The policy balances Gymnasium's own CartPole-v1: ten episodes, one each."""
    envs = gymnasium.make_vec("CartPole-v1", num_envs=10)
    obs, _ = envs.reset(seed=0)
    total, going = np.zeros(10), np.ones(10, bool)
    while going.any():
        action = np.asarray(balanced.policy(obs))
        obs, reward, terminated, truncated, _ = envs.step(action)
        total += reward * going
        going &= ~(terminated | truncated)
    assert total.mean() > 400
