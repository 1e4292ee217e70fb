"""PPO with the filter: what is dropped leaves no trace, what is clipped its bound."""

from __future__ import annotations

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys
from jax.sharding import PartitionSpec as P

from jaxrl_par import spaces
from jaxrl_par.algorithms.ppo import PPO, Batch
from jaxrl_par.cli.train import read
from jaxrl_par.envs.batched import BatchedEnv
from jaxrl_par.envs.cartpole import CartPole
from jaxrl_par.networks.actor_critic import MLP
from jaxrl_par.train import step
from jaxrl_par.train.describe import describe, rebuild
from jaxrl_par.train.layout import Layout
from jaxrl_par.train.loop import train
from jaxrl_par.types import EnvSpec

ENVS, LENGTH = 8, 32
SMALL = PPO(
    network=MLP((16,)),
    rollout_length=LENGTH,
    num_epochs=2,
    num_minibatches=2,
    num_groups=4,
    learning_rate=0.01,
    normalize_obs=True,
    normalize_reward=True,
)
DROP = dataclasses.replace(SMALL, outliers="drop")
CLIP = dataclasses.replace(SMALL, outliers="clip")
COUNTS = ("outlier_rewards", "outlier_obs", "outlier_td_errors")
PLACE = (11, 3)
SEED = 5


@toys.quick_jit
def update(algorithm, state, rollout):
    """One update on one device."""
    return algorithm.update(state, rollout, jax.random.key(SEED), ())


@pytest.fixture(scope="module")
def collected():
    """PPO's state after two updates of CartPole cut at 20 steps, and a rollout."""
    env = BatchedEnv(CartPole(max_steps=20))

    @toys.quick_jit
    def collect(key):
        init_key, key = jax.random.split(key)
        state = step.init_state(SMALL, env, ENVS, init_key)
        state, *_ = step.chunk(SMALL, env, state, jnp.float32(9), jnp.int32(2), 2, ())
        _, rollout = step.collect(SMALL, env, state, key, (jnp.zeros(()),) * 2, ())
        return state.algorithm, rollout

    return collect(jax.random.key(0))


def planted(rollout, **changes):
    """The rollout with a number put at `PLACE` of a field, or of an extra."""
    for name, value in changes.items():
        if name in rollout.extras:
            new = rollout.extras[name].at[PLACE].set(value)
            rollout = dataclasses.replace(rollout, extras=rollout.extras | {name: new})
        else:
            place = (*PLACE, 2) if name == "obs" else PLACE
            new = getattr(rollout, name).at[place].set(value)
            rollout = dataclasses.replace(rollout, **{name: new})
    return rollout


@pytest.mark.parametrize("name", ["reward", "obs", "value"])
def test_a_dropped_transition_leaves_no_trace(collected, name):
    """Whatever its fault, and whatever the policy did then: the same to the bit."""
    state, rollout = collected
    expected, metrics = update(DROP, state, planted(rollout, **{name: 1e3}))
    counts = {"reward": (1, 0, 0), "obs": (0, 1, 0), "value": (0, 0, 2)}[name]
    assert tuple(metrics[name] for name in COUNTS) == counts
    others = [{name: 1e6}, {name: 2e30}]
    acted = {"log_prob": -50.0, "sample": 1 - rollout.extras["sample"][PLACE]}
    others.append({name: 1e6, **acted})
    if name == "obs":
        others.append({name: 1e6, **acted, "value": np.inf, "log_prob": np.nan})
    for other in others:
        found, also = update(DROP, state, planted(rollout, **other))
        toys.assert_equal((found, also), (expected, metrics))
    assert np.isfinite(metrics["loss"])
    clean, _ = update(DROP, state, rollout)
    kernel = lambda state: jax.tree.leaves(state.params)[1]  # noqa: E731
    assert (kernel(clean) != kernel(expected)).any()  # one sample the fewer


def test_a_dropped_sample_has_no_weight(collected):
    """One step on all but one: its means are theirs, and so are its moments."""
    state, rollout = collected
    ppo = dataclasses.replace(DROP, num_epochs=1, num_minibatches=1)
    _, metrics = update(ppo, state, planted(rollout, reward=1e3))
    obs = ppo._normalize(state, rollout.obs.reshape(-1, 4))
    outputs, _ = ppo._forward(state.spec, state.params, obs, None)
    entropy = ppo._distribution(state.spec).entropy(outputs)
    kept = np.arange(LENGTH * ENVS) != PLACE[0] * ENVS + PLACE[1]
    assert abs(entropy[kept].mean() - entropy.mean()) > 1e-5
    np.testing.assert_allclose(metrics["entropy"], entropy[kept].mean(), rtol=2e-6)
    # Of standardised advantages, at a ratio of 1.
    np.testing.assert_allclose(metrics["policy_loss"], 0, atol=1e-6)


def test_a_clipped_reward_is_its_bound(collected):
    """CartPole's reward is 1, the spread 1: from -9 to 11."""
    state, rollout = collected
    expected, _ = update(CLIP, state, planted(rollout, reward=11.0))
    for fault in (11.5, 1e3, 3e38):
        found, metrics = update(CLIP, state, planted(rollout, reward=fault))
        toys.assert_equal(found, expected)
        assert metrics["outlier_rewards"] == 1


def test_a_clipped_observation_is_its_bound(collected):
    """The value with which the critic acted on the fault is of no effect."""
    state, rollout = collected
    fault = planted(rollout, obs=1e6, value=1e6)
    found, metrics = update(CLIP, state, fault)
    assert metrics["outlier_obs"] == 1 and metrics["outlier_td_errors"] == 0
    replaced, _, _ = CLIP._outliers().rollout(fault, ())
    bound = replaced.obs[(*PLACE, 2)]
    value = CLIP._value(state, replaced.obs.reshape(-1, 4)).reshape(LENGTH, ENVS)[PLACE]
    expected, _ = update(CLIP, state, planted(rollout, obs=bound, value=value))
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5),
        found,
        expected,
    )


def test_a_clipped_td_error_counts_as_its_bound(collected):
    """Then the size of the fault is of no effect on the advantages."""
    state, rollout = collected
    ppo = dataclasses.replace(CLIP, normalize_advantage=False, value_coef=0.0)
    one, other = (
        update(ppo, state, planted(rollout, value=fault)) for fault in (1e3, 1e6)
    )
    assert one[1]["outlier_td_errors"] == 2
    toys.assert_equal(one[0], other[0])


def test_a_weight_of_zero_takes_a_sample_out_of_the_loss():
    """Loss, metrics and gradient of three samples, of the five that are given."""
    spec = EnvSpec("one", spaces.Box(-1.0, 1.0, (2,)), spaces.Discrete(3))
    rng = np.random.default_rng(0)
    draw = lambda *shape: rng.normal(size=shape).astype(np.float32)  # noqa: E731
    batch = Batch(
        obs=draw(5, 2),
        mask=None,
        sample=jnp.array([0, 2, 1, 1, 0]),
        log_prob=draw(5) - 1,
        value=draw(5),
        advantage=draw(5),
        target=draw(5),
    )
    kept = np.array([True, False, True, True, False])
    weighed = dataclasses.replace(batch, weight=kept * 5 / 3)
    alone = jax.tree.map(lambda x: x[kept], batch)
    params = SMALL.init(jax.random.key(0), spec, 1).params
    loss = toys.quick_jit(jax.value_and_grad(partial(SMALL._loss, spec), has_aux=True))
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6),
        loss(params, weighed),
        loss(params, alone),
    )


def test_off_is_off():
    """The numbers are of no effect then, and there are no more columns."""
    (one, metrics), (other, same) = (
        toys.trained(ppo, CartPole(), 5, ENVS)
        for ppo in (
            SMALL,
            dataclasses.replace(SMALL, outlier_bound=1e-6, outlier_spread=0.0),
        )
    )
    toys.assert_equal((one, metrics), (other, same))
    assert not set(COUNTS) & set(metrics)
    _, filtered = toys.trained(DROP, CartPole(), 5, ENVS)
    assert set(filtered) == set(metrics) | set(COUNTS)


@pytest.mark.parametrize("algorithm", [DROP, CLIP], ids=["drop", "clip"])
def test_the_number_of_devices_is_of_no_effect(collected, algorithm):
    """Though all faults lie on one of them."""
    state, rollout = collected
    rollout = planted(rollout, obs=1e6, value=5e3)
    reward = rollout.reward.at[4, 2].set(1e3).at[9, 3].set(-1e6)
    value = rollout.extras["value"].at[20, 2].set(300.0)
    extras = rollout.extras | {"value": value}
    rollout = dataclasses.replace(rollout, reward=reward, extras=extras)
    expected, metrics = update(algorithm, state, rollout)
    assert tuple(metrics[name] for name in COUNTS) == (2, 1, 2)
    for devices in (2, 4):
        found, also = update_over(devices, algorithm, state, rollout)
        for name in COUNTS:
            assert metrics[name] == also[name]
        jax.tree.map(
            lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5),
            (found.params, found.return_moments.mean, found.obs_moments),
            (expected.params, expected.return_moments.mean, expected.obs_moments),
        )


def update_over(devices, algorithm, state, rollout):
    """`update` with the environments split over devices."""
    layout = Layout(tuple(jax.devices()[:devices]))
    first, second = P(layout.axes), P(None, layout.axes)
    states = jax.tree.map(lambda x: P(), state)
    states = dataclasses.replace(states, running_return=first)
    parts = jax.tree.map(lambda x: second, rollout)
    parts = dataclasses.replace(parts, last_obs=first, progress=P(), next_progress=P())
    return toys.quick_jit(
        jax.shard_map(
            lambda state, rollout: algorithm.update(
                state, rollout, jax.random.key(SEED), layout.axes
            ),
            mesh=layout.mesh,
            in_specs=(states, parts),
            out_specs=(states, P()),
            check_vma=False,
        )
    )(state, rollout)


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("outliers", "both", "must be 'drop', 'clip' or None"),
        ("outlier_bound", -1.0, "must be a finite number above 0"),
        ("outlier_bound", [1.0], "must be one number"),
        ("outlier_spread", float("nan"), "must be a finite number of at least 0"),
    ],
)
def test_settings_are_checked_before_a_run(name, value, rule):
    ppo = dataclasses.replace(PPO(), **{name: value})
    with pytest.raises(ValueError) as error:
        train(ppo, CartPole())
    assert str(error.value) == f"{name} {value!r} {rule}"


def test_settings_come_from_the_command_line_and_from_a_description():
    flags = ["--outliers", "drop", "--outlier-bound", "5", "--outlier-spread", "0.5"]
    ppo = read(["ppo", "CartPole-v1", *flags]).algorithm
    assert (ppo.outliers, ppo.outlier_bound, ppo.outlier_spread) == ("drop", 5.0, 0.5)
    assert rebuild(describe(ppo), "algorithm") == ppo
    assert read(["ppo", "CartPole-v1"]).algorithm.outliers is None
