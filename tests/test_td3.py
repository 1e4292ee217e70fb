"""TD3 and DDPG: targets by hand, delayed policies, what one is of the other."""

from __future__ import annotations

import dataclasses

import actors
import jax
import numpy as np
import optax
import pytest
import toys

from jaxrl_par.algorithms.base import check_algorithm
from jaxrl_par.algorithms.ddpg import DDPG
from jaxrl_par.algorithms.td3 import TD3, Batch, Params
from jaxrl_par.envs.pendulum import Pendulum
from jaxrl_par.networks.body import Body
from jaxrl_par.train.run import Run

ENVS = 8
LEARNER = TD3(**actors.SMALL)


def initial(algorithm, spec):
    init = toys.quick_jit(lambda key: algorithm.init(key, spec, 3).params)
    return init(jax.random.key(0))


def test_targets_are_the_least_values_near_the_target_policys_action():
    """Noise of deviation 2 is cut at 0.5, and the action then at the bounds."""
    algorithm = dataclasses.replace(LEARNER, gamma=0.9, n_step=2, target_noise=2.0)
    spec, steps, rows = actors.remembered()
    noise = jax.random.normal(jax.random.key(1), (len(rows), 2))
    target = initial(algorithm, spec)
    bias = np.array([1.0, -0.2], np.float32)
    target = Params(actors.with_outputs(target.actor, bias), target.critics)
    find = toys.quick_jit(lambda *args: algorithm._target(spec, *args))
    found = find(target, Batch(steps, noise))
    reward, discount, next_obs = (np.stack(x) for x in zip(*rows, strict=True))
    unit = np.tanh(actors.mlp(target.actor, next_obs))
    unit = np.clip(unit + np.clip(2 * np.asarray(noise), -0.5, 0.5), -1, 1)
    assert (unit == 1).any()
    expected = reward + discount * actors.least(target.critics, next_obs, unit)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_the_policys_loss_is_its_value_by_the_first_critic():
    spec, steps, _ = actors.remembered()
    params = initial(LEARNER, spec)
    loss, _ = LEARNER._policy_loss(spec, params.critics, params.actor, steps)
    unit = np.tanh(actors.mlp(params.actor, steps.obs))
    first = jax.tree.map(lambda x: x[0], params.critics)
    expected = -actors.mlp(first, steps.obs, unit).mean()
    np.testing.assert_allclose(loss, expected, rtol=1e-5)


def test_the_policy_waits_for_its_turn_across_updates():
    """8 gradient steps an update, a policy's with each third: 2, 3, 3, 2, 3, ..."""
    algorithm = dataclasses.replace(LEARNER, policy_delay=3)
    state, metrics = toys.trained(algorithm, Pendulum(), 20, ENVS)
    steps = np.cumsum(metrics["gradient_steps"])
    assert steps[-1] == 20 * ENVS - 64 + ENVS
    np.testing.assert_array_equal(np.cumsum(metrics["policy_updates"]), steps // 3)
    learner = state.algorithm.learner
    assert learner.since_policy == steps[-1] % 3
    parts = (learner.opt_state.actor, learner.opt_state.critics)
    counts = [optax.tree.get(part, "count") for part in parts]
    assert counts == [steps[-1] // 3, steps[-1]]


def test_targets_move_with_the_policy_alone():
    """One with each gradient step, tau 1: the networks themselves; else not yet."""
    for delay, same in ((1, True), (1000, False)):
        algorithm = dataclasses.replace(LEARNER, policy_delay=delay, tau=1.0)
        learner = toys.trained(algorithm, Pendulum(), 12, ENVS)[0].algorithm.learner
        pairs = jax.tree.map(
            lambda x, y: (x == y).all(), learner.params, learner.target
        )
        assert all(jax.tree.leaves(pairs.critics)) == same
        assert all(jax.tree.leaves(pairs.actor))  # moved together, or never moved


def test_ddpg_is_td3_without_its_tricks():
    """Whatever the smoothing is cut at, as there is none."""
    shared = actors.SMALL | {"critic_learning_rate": 1e-2, "exploration_noise": 0.3}
    plain = TD3(
        **shared,
        **{"num_critics": 1, "policy_delay": 1, "target_noise": 0.0},
        target_noise_clip=0.1,
        noise_correlation=0.85,
        tau=0.001,
    )
    one, other = (
        toys.trained(algorithm, Pendulum(), 20, ENVS)[0].algorithm
        for algorithm in (DDPG(**shared), plain)
    )
    toys.assert_equal(one, other)
    assert {x.shape[0] for x in jax.tree.leaves(one.params.critics)} == {1}


@pytest.mark.parametrize("kind", [TD3, DDPG])
def test_the_best_actions_are_learned_in_their_units(kind):
    """Seeds 0 to 4 miss by a tenth of the ranges at most; the middle by 0.3."""
    algorithm = kind(**actors.SMALL, exploration_noise=0.3, tau=0.02)
    state, metrics = toys.trained(algorithm, actors.Sides(), 250, ENVS)
    run = Run(algorithm, actors.Sides(), {}, state, metrics)
    obs = np.array([[-1.0], [1.0]])
    miss = np.asarray(run.policy(obs) - actors.best(obs)) / (actors.HIGH - actors.LOW)
    assert np.abs(miss).max() < 0.2
    replay = state.algorithm.replay
    assert np.abs(replay.action).max() <= 1 and replay.reward.min() > -9


def test_td3_is_a_right_algorithm():
    algorithm = TD3(Body((8,)), rollout_length=5, capacity=40, batch_size=8)
    check_algorithm(dataclasses.replace(algorithm, learning_starts=1), Pendulum())
