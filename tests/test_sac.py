"""Soft actor-critic: targets and losses by hand, saturation, bounds, temperature."""

from __future__ import annotations

import dataclasses
from functools import partial

import actors
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys
from scipy import stats

from jaxrl_par import make
from jaxrl_par.algorithms import actor_critic
from jaxrl_par.algorithms.base import check_algorithm
from jaxrl_par.algorithms.ddpg import DDPG
from jaxrl_par.algorithms.sac import SAC, Batch
from jaxrl_par.algorithms.td3 import TD3
from jaxrl_par.envs.pendulum import Pendulum
from jaxrl_par.envs.probes import MaskedAction
from jaxrl_par.networks.body import Body
from jaxrl_par.spaces import ACTION_MASK, Box, MultiDiscrete
from jaxrl_par.train.loop import train
from jaxrl_par.train.run import Run
from jaxrl_par.types import EnvSpec

ENVS = 8
LEARNER = SAC(**actors.SMALL, temperature=0.1, gamma=0.9, n_step=2)


def of_a_story(algorithm):
    """(spec, learner, batch, rows by hand) for transitions of a made-up story."""
    spec, steps, rows = actors.remembered()
    learner = toys.quick_jit(lambda key: algorithm.init(key, spec, 3).learner)
    noise = jax.random.normal(jax.random.key(1), (len(rows), 2, 2))
    return spec, learner(jax.random.key(0)), Batch(steps, noise), rows


@partial(toys.quick_jit, static_argnames="spec")
def learning(algorithm, spec, learner, batch):
    """(target [N], metrics of the loss, its gradient)."""
    target = algorithm._target(spec, learner, batch)
    derive = jax.grad(partial(algorithm._loss, spec), has_aux=True)
    grads, (metrics, _) = derive(learner.params, (batch, target))
    return target, metrics, grads


def by_hand(actor, critics, obs, noise):
    """(least value [N], -log-probability [N]) of a sample, in doubles."""
    mean, log_std = np.split(actors.mlp(actor, obs), 2, -1)
    sample = mean + np.exp(log_std) * noise
    log_prob = stats.norm.logpdf(sample, mean, np.exp(log_std)).sum(-1)
    log_prob -= np.log(1 - np.tanh(sample) ** 2).sum(-1)
    return actors.least(critics, obs, np.tanh(sample)), -log_prob


@pytest.mark.parametrize("temperature", [0.1, 0.0])
def test_targets_and_losses_are_the_papers(temperature):
    """With terminations, truncations and shortened sums of two steps.

    Without a temperature, only values count.
    """
    algorithm = dataclasses.replace(
        LEARNER, temperature=temperature, auto_temperature=temperature > 0
    )
    spec, learner, batch, rows = of_a_story(algorithm)
    other = jax.tree.map(lambda x: -0.5 * x, learner.params.critics)
    learner = dataclasses.replace(learner, target_critics=other)
    weight = jnp.arange(len(rows)) % 2.0  # every other sample counts
    steps = dataclasses.replace(batch.steps, weight=weight)
    batch, params = Batch(steps, batch.noise), learner.params
    target, metrics, grads = learning(algorithm, spec, learner, batch)

    reward, discount, next_obs = (np.stack(x) for x in zip(*rows, strict=True))
    noise = np.asarray(batch.noise, np.float64)
    value, entropy = by_hand(params.actor, other, next_obs, noise[:, 0])
    expected = reward + discount * (value + temperature * entropy)
    np.testing.assert_allclose(target, expected, rtol=1e-4, atol=1e-4)

    obs = np.asarray(steps.obs)
    value, entropy = by_hand(params.actor, params.critics, obs, noise[:, 1])
    actor_loss = -(weight * (value + temperature * entropy)).mean()
    np.testing.assert_allclose(metrics["actor_loss"], actor_loss, rtol=1e-4)
    each = [jax.tree.map(lambda x, i=i: x[i], params.critics) for i in range(2)]
    errors = [actors.mlp(p, obs, steps.action)[:, 0] - expected for p in each]
    critic_loss = (weight * 0.5 * np.square(errors).sum(0)).mean()
    np.testing.assert_allclose(metrics["critic_loss"], critic_loss, rtol=1e-4)
    if temperature:  # it rises where the entropy is below -2, and falls where above
        slope = temperature * (weight * (entropy + 2)).mean()
        np.testing.assert_allclose(grads.log_temperature, slope, rtol=1e-4)
    else:
        assert params.log_temperature is None


def test_a_saturated_policy_has_finite_densities_and_gradients():
    """mu = u = 10, sigma 0.1: tanh(u) is 1, log-probability 2 * 19.9973522 of two."""
    spec, learner, batch, _ = of_a_story(LEARNER)
    bias = jnp.array([10.0, 10.0, np.log(0.1), np.log(0.1)])
    actor = actors.with_outputs(learner.params.actor, bias)
    learner = actors.replaced(learner, actor=actor)
    batch = Batch(batch.steps, 0 * batch.noise)
    target, metrics, grads = learning(LEARNER, spec, learner, batch)
    np.testing.assert_allclose(metrics["entropy"], -2 * 19.9973522, atol=2e-3)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((target, grads)))
    assert np.abs(grads.actor["params"]["head"]["bias"]).max() > 0


@pytest.mark.parametrize("kind", [SAC, TD3, DDPG])
def test_actions_are_scaled_to_the_box_and_kept_as_units(kind):
    algorithm = kind(**actors.SMALL)
    spec, key = actors.Sides.spec, jax.random.key(0)
    state = toys.quick_jit(lambda key: algorithm.init(key, spec, 4))(key)
    bias = jnp.array([30.0, -30.0, 0.0, 0.0] if kind is SAC else [30.0, -30.0])
    learner = actors.replaced(
        state.learner, actor=actors.with_outputs(state.params.actor, bias)
    )
    state = dataclasses.replace(state, learner=learner)
    obs, carry = jnp.ones((4, 1)), algorithm.initial_carry(spec, 4)
    _, action, _ = algorithm.act(state, carry, obs, None, greedy=True)
    np.testing.assert_array_equal(action, [[5.0, 0.0]] * 4)  # the bounds, exactly
    noise = jnp.linspace(-90.0, 90.0, 8).reshape(4, 2)
    _, action, extras = algorithm.act(state, carry, obs, noise, greedy=False)
    unit = next(iter(extras.values()))
    np.testing.assert_allclose(
        action, (np.asarray(unit) + 1) / 2 * [5.0, 1.0], rtol=1e-6
    )
    assert spec.action_space.contains(np.asarray(action))
    assert (np.abs(unit) <= 1).all() and unit.min() == -1 and unit.max() == 1


REFUSED = {
    "infinite": (Box(-np.inf, np.inf, (2,)), r"dimension \(0,\) .* low -inf, high inf"),
    "one-sided": (Box(0, np.inf, (1,)), r"dimension \(0,\) .* low 0.0, high inf"),
    "empty": (Box([0.0, 0.0], [1.0, 0.0]), r"dimension \(1,\) .* low 0.0, high 0.0"),
    "whole": (Box(0, 3, (1,), np.dtype(np.int32)), r"Box\(0, 3, .*int32\) must be"),
    "several": (MultiDiscrete((2, 3)), r"MultiDiscrete.* must be"),
}


@pytest.mark.parametrize(("space", "message"), REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("kind", [SAC, TD3, DDPG])
def test_actions_without_bounds_are_refused(kind, space, message):
    spec = EnvSpec("none", Box(-1.0, 1.0, (1,)), space)
    with pytest.raises(ValueError, match=message):
        kind().validate(spec, 64)


WRONG = {
    "tau": (0.0, 1.5),
    "temperature": (0.0,),
    "min_log_std": (3.0, -21.0),
    "noise_correlation": (-0.1, 1.0, 1 - 1e-9),
    "num_critics": (0,),
    "critic_learning_rate": (0.0,),
    "target_entropy": (float("inf"), 0.7),  # at most log 2
    "network": ((64, 64),),
}


@pytest.mark.parametrize(
    ("name", "value"), [(k, v) for k, values in WRONG.items() for v in values]
)
def test_settings_out_of_range_are_refused(name, value):
    algorithm = dataclasses.replace(SAC(), **{name: value})
    with pytest.raises(ValueError, match=name):
        algorithm.validate(Pendulum().spec, 64)


def test_an_entropy_that_no_choice_can_have_is_refused():
    spec = make("CartPole-v1").spec
    for value in (-2.0, 0.7):
        rule = rf"target_entropy {value} must be in \[0.0, 0.69"
        with pytest.raises(ValueError, match=rule):
            SAC(target_entropy=value).validate(spec, 64)


def test_exploration_is_random_at_first_and_may_persist():
    """Uniform in [-1, 1] before learning; correlation 0.9 of one step with the next."""
    algorithm = dataclasses.replace(LEARNER, noise_correlation=0.9)
    noise = jax.random.normal(jax.random.key(0), (400, 200, 1))
    step = lambda x, e: (actor_critic.correlate(x, e, 0.9),) * 2  # noqa: E731
    _, drawn = jax.lax.scan(step, 0 * noise[0], noise)
    late = np.asarray(drawn[50:, :, 0])
    np.testing.assert_allclose(late.std(), 1, atol=0.02)
    lagged = np.corrcoef(late[1:].ravel(), late[:-1].ravel())[0, 1]
    np.testing.assert_allclose(lagged, 0.9, atol=0.01)
    unit = np.sort(actor_critic.uniform_of(noise).ravel())
    np.testing.assert_allclose(unit, np.linspace(-1, 1, len(unit)), atol=0.01)
    state = algorithm.init(jax.random.key(0), Pendulum().spec, 1)
    clock = dataclasses.replace(state.clock, steps=jnp.int32(64))
    acted = []
    for now in (state, dataclasses.replace(state, clock=clock)):
        args = (now, jnp.ones((1, 1)), jnp.zeros((1, 3)), jnp.full((1, 1), 0.5))
        carry, _, extras = algorithm.act(*args, greedy=False)
        np.testing.assert_allclose(carry, 0.9 + np.sqrt(0.19) * 0.5, rtol=1e-6)
        acted.append(extras["stored"][0, 0])
    np.testing.assert_allclose(acted[0], 2 * stats.norm.cdf(carry[0, 0]) - 1, 1e-5)
    np.testing.assert_allclose(acted[1], np.tanh(carry[0, 0]), 0.05)


def learned(algorithm, env, updates):
    state, metrics = toys.trained(algorithm, env, updates, ENVS)
    return Run(algorithm, env, {}, state, metrics)


def test_the_best_actions_are_learned_in_their_units():
    """And kept as units, and the temperature falls to keep the entropy at -2."""
    algorithm = dataclasses.replace(LEARNER, num_critics=3)
    run = learned(algorithm, actors.Sides(), 250)
    obs = np.array([[-1.0], [1.0]])
    np.testing.assert_allclose(run.policy(obs), actors.best(obs), atol=0.3)
    replay = run.state.algorithm.replay
    assert np.abs(replay.action).max() <= 1 and replay.reward.min() > -9
    assert run.metrics["temperature_sum"][-1] < 8 * 0.05


def test_target_critics_follow_each_gradient_step():
    """With tau 1 they are the critics."""
    algorithm = dataclasses.replace(LEARNER, num_critics=3, tau=1.0)
    learner = toys.trained(algorithm, actors.Sides(), 10, ENVS)[0].algorithm.learner
    toys.assert_equal(learner.target_critics, learner.params.critics)


def test_masked_actions_are_never_taken_nor_counted():
    """The best of each mask is found; an invalid one pays -10."""
    run = learned(
        dataclasses.replace(LEARNER, target_entropy=0.05), MaskedAction(), 200
    )
    bits = np.array([[1, *map(int, f"{i:03b}")] for i in range(8)], bool)
    obs = {"obs": np.zeros((8, 1)), ACTION_MASK: bits}
    best = [np.flatnonzero(mask).max() for mask in bits]
    np.testing.assert_array_equal(run.policy(obs), best)
    replay = run.state.algorithm.replay
    assert replay.reward.min() >= 0 and set(np.unique(replay.action)) == {0, 1, 2, 3}
    obs, params = jax.tree.map(jnp.asarray, obs), run.params
    policy = SAC(LEARNER.network)._policy(MaskedAction().spec)
    wanted = policy.target_entropy(obs)
    np.testing.assert_allclose(wanted, 0.5 * np.log(bits.sum(-1)), rtol=1e-6)
    value, entropy = policy.evaluate(params.actor, params.critics, obs, None)
    assert (entropy <= np.log(bits.sum(-1)) + 1e-6).all() and entropy[0] == 0
    only = policy.values(params.critics, obs, jnp.zeros(8, jnp.int32)).min(0)[0]
    np.testing.assert_allclose(value[0], only, rtol=1e-6)


@pytest.mark.parametrize(("kind", "devices"), [(SAC, (1, 2, 4, 8)), (TD3, (1, 8))])
def test_any_number_of_devices_learns_the_same(kind, devices):
    """Of 5 updates, of 8 gradient steps each, after two that only fill the replay."""
    algorithm = kind(**actors.SMALL | {"learning_starts": 24, "batch_size": 16})
    settings = {"num_envs": 8, "total_steps": 7 * 8, "eval_episodes": 0}
    one, *others = (
        train(algorithm, Pendulum(max_steps=3), data=data, **settings)
        for data in devices
    )
    assert one.metrics["gradient_steps"].sum() == 5 * 8
    for other in others:
        jax.tree.map(
            lambda x, y: np.testing.assert_allclose(x, y, 1e-5, 1e-5),
            *(one.params, other.params),
        )
        check_replicas(other.state.algorithm, algorithm.sharded)


def check_replicas(state, sharded):
    """Moments, targets, temperature: the same on all devices, exactly."""
    shared = dataclasses.replace(state, **dict.fromkeys(sharded))
    assert jax.tree.leaves(shared)
    for leaf in jax.tree.leaves(shared):
        copies = [np.asarray(shard.data) for shard in leaf.addressable_shards]
        assert len(copies) > 1
        assert all((copy == copies[0]).all() for copy in copies)


def test_sac_is_a_right_algorithm():
    algorithm = SAC(Body((8,)), rollout_length=5, capacity=40, batch_size=8)
    check_algorithm(dataclasses.replace(algorithm, learning_starts=1), MaskedAction())
