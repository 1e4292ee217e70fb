"""PQN: one update by hand, exploration, masks, probes, devices, refusals."""

from __future__ import annotations

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys
from test_returns_lambda import mixture

from jaxrl_par import check_algorithm, train
from jaxrl_par.algorithms.pqn import PQN
from jaxrl_par.algorithms.random_rollout import random_rollout
from jaxrl_par.envs.cartpole import CartPole
from jaxrl_par.envs.pendulum import Pendulum
from jaxrl_par.envs.probes import EchoEnv, MaskedAction
from jaxrl_par.networks import base
from jaxrl_par.networks.body import Body
from jaxrl_par.spaces import ACTION_MASK, Box, Dict, Discrete
from jaxrl_par.train.callbacks import STOP
from jaxrl_par.types import EnvSpec

ENVS, LENGTH = 16, 8
STEPS = ENVS * LENGTH
LEARNER = PQN(
    network=Body((16,), layer_norm=True),
    rollout_length=LENGTH,
    num_epochs=4,
    num_minibatches=2,
    learning_rate=0.01,
    gamma=0.9,
)
MASK = Box(False, True, (3,), np.dtype(bool))
MASKED = EnvSpec(
    "masked",
    Dict(((ACTION_MASK, MASK), ("obs", Box(-1.0, 1.0, (2,))))),
    Discrete(3, start=5),
)
LINEAR = base.Network(
    lambda key: jax.random.normal(key, (2, 3)), lambda params, obs: obs @ params
)
act = toys.quick_jit(LEARNER.act, static_argnums=4)
values_of = toys.quick_jit(LEARNER._values, static_argnums=0)


@dataclasses.dataclass(frozen=True)
class Env:
    """As much of an environment as `check_algorithm` reads."""

    spec: EnvSpec = MASKED


def test_it_keeps_the_protocol():
    check_algorithm(dataclasses.replace(LEARNER, num_epochs=1), Env())


def best(weights, obs):
    """The value [...] of the best action of those allowed."""
    return np.where(obs[ACTION_MASK], obs["obs"] @ weights, -np.inf).max(-1)


def test_an_update_is_that_of_the_paper():
    """One step on a linear network, against NumPy.

    Adam's first step is g / (|g| + eps), which with an eps of 1 tells the size of g.
    """
    algorithm = PQN(
        network=LINEAR,
        rollout_length=LENGTH,
        num_epochs=1,
        num_minibatches=1,
        learning_rate=0.1,
        max_grad_norm=0.1,
        adam_eps=1.0,
        epsilon=0.5,
    )
    state = algorithm.init(jax.random.key(0), MASKED, 4)
    rollout = random_rollout(algorithm, state, MASKED, 4, jax.random.key(1))
    new, metrics = toys.quick_jit(algorithm.update, static_argnums=3)(
        state, rollout, jax.random.key(2), ()
    )
    weights, rates = np.asarray(state.params), (algorithm.gamma, algorithm.lambda_)
    obs, next_obs = jax.device_get((rollout.obs, rollout.next_obs()))
    assert rollout.truncated.any() and rollout.terminated.any()
    target = mixture(
        *map(np.asarray, (rollout.reward, best(weights, next_obs))),
        *map(np.asarray, (rollout.terminated, rollout.truncated)),
        *rates,
    )
    chosen = np.eye(3)[np.asarray(rollout.action) - 5]  # [T, B, 3]
    value = (obs["obs"] @ weights * chosen).sum(-1)
    error = value - target
    grad = np.einsum("tb,tbi,tba->ia", error, obs["obs"], chosen) / error.size
    norm = np.linalg.norm(grad)
    assert norm > algorithm.max_grad_norm
    grad *= algorithm.max_grad_norm / norm
    expected = weights - 0.075 * grad / (np.abs(grad) + 1)  # a quarter is done
    np.testing.assert_allclose(new.params, expected, rtol=1e-4, atol=1e-5)
    found = {
        "loss": np.square(error).mean() / 2,
        "q_value": value.mean(),
        "grad_norm": norm,
        "learning_rate": 0.075,
        "epsilon": 0.5,
        "gradient_steps": 1,
    }
    assert metrics.keys() == found.keys()
    for name, number in found.items():
        np.testing.assert_allclose(metrics[name], number, rtol=1e-4)
    np.testing.assert_allclose(new.epsilon, 0.05, rtol=1e-5)  # at half the run


def test_actions_are_random_with_probability_epsilon():
    """Of 4,000 at epsilon 0.4, and of two or three allowed; the value is the best's."""
    state = LEARNER.init(jax.random.key(0), MASKED, 4)
    state = dataclasses.replace(state, epsilon=jnp.float32(0.4))
    mask = jnp.array([[1, 1, 1], [1, 0, 1]], bool)
    obs = {ACTION_MASK: mask.repeat(2000, 0), "obs": jnp.full((4000, 2), 0.5)}
    noise = LEARNER.noise(state, jax.random.key(1), 4000)
    _, action, extras = jax.device_get(act(state, (), obs, noise, False))
    _, greedy, _ = jax.device_get(act(state, (), obs, None, True))
    values = values_of(MASKED, state.params, jnp.full((1, 2), 0.5))[0]
    for rows, allowed in ((slice(0, 2000), [0, 1, 2]), (slice(2000, 4000), [0, 2])):
        choice = max(allowed, key=lambda i: values[i])
        assert (greedy[rows] == 5 + choice).all()
        np.testing.assert_allclose(extras["value"][rows], values[choice], rtol=1e-6)
        shares = np.bincount(action[rows] - 5, minlength=3) / 2000
        expected = np.zeros(3)
        expected[allowed] = 0.4 / len(allowed)
        expected[choice] += 0.6
        np.testing.assert_allclose(shares, expected, atol=0.03)
        assert (shares[expected == 0] == 0).all()


def test_the_value_where_no_action_is_allowed_is_a_number():
    """As after a terminal state, times a discount of 0: 0, not NaN."""
    state = LEARNER.init(jax.random.key(0), MASKED, 4)
    obs = {ACTION_MASK: jnp.zeros((4, 3), bool), "obs": jnp.full((4, 2), 0.5)}
    assert jnp.isfinite(LEARNER._value(state, obs)).all()


def test_values_go_on_over_a_truncation():
    """Actions 10 and 11, cut after 8 steps: 1 or 0 now, and 0.9 / (1 - 0.9) later."""
    state, _ = toys.trained(LEARNER, EchoEnv(), 600, ENVS)
    params, obs = state.algorithm.params, jnp.array([[0.0], [1.0]])
    found = values_of(EchoEnv().spec, params, obs)
    np.testing.assert_allclose(found, [[10, 9], [9, 10]], atol=0.3)


@pytest.fixture(scope="module")
def masked():
    """150 updates where an invalid action pays -10."""
    return toys.trained(LEARNER, MaskedAction(), 150, ENVS)


def test_masked_actions_are_never_taken(masked):
    state, metrics = masked
    assert (metrics["episode_return_sum"] >= 0).all()
    bits = jnp.array([[1, *map(int, f"{i:03b}")] for i in range(8)], bool)
    obs = {"obs": jnp.zeros((8, 1)), ACTION_MASK: bits}
    np.testing.assert_array_equal(
        act(state.algorithm, (), obs, None, True)[1], [0, 3, 2, 3, 1, 3, 2, 3]
    )


def test_rates_fall_with_the_steps_of_the_run(masked):
    """Epsilon from 1 to 0.05 over a tenth of the run, the learning rate over all."""
    _, metrics = masked
    done = np.arange(150) / 150
    epsilon = 1 - 0.95 * np.minimum(done / 0.1, 1)
    np.testing.assert_allclose(metrics["epsilon"], epsilon, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(metrics["learning_rate"], 0.01 * (1 - done), rtol=1e-5)
    assert (metrics["gradient_steps"] == 8).all()


@pytest.fixture(scope="module")
def runs():
    """Of 1, 2, 4, 8 devices: states after 1 and 5 of 20 updates, and the metrics."""
    return {data: _run(data) for data in (1, 2, 4, 8)}


def _run(data):
    states = {}

    def keep(progress):
        states[progress.update] = jax.tree.map(toys.host, progress.state)
        return STOP if progress.update == 5 else None

    run = train(
        dataclasses.replace(LEARNER, epsilon=0.5),
        CartPole(),
        num_envs=ENVS,
        total_steps=20 * STEPS,
        data=data,
        eval_every=5 * STEPS,
        eval_episodes=0,
        callbacks=[keep],
    )
    return states[1], states[5], run.metrics


@pytest.mark.parametrize("data", [2, 4, 8])
def test_devices_change_nothing(runs, data):
    """The first rollout ends in the same states to the bit; parameters stay close."""
    for name in ("env", "obs", "first", "episode_return", "episode_length"):
        toys.assert_equal(*(getattr(runs[n][0], name) for n in (1, data)))
    one, many = (runs[n][1].algorithm.params for n in (1, data))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, 1e-5, 1e-5), one, many)
    for name in ("loss", "q_value", "grad_norm"):
        np.testing.assert_allclose(*(runs[n][2][name] for n in (1, data)), rtol=1e-3)


WRONG = {
    "learning_rate": (0.0, float("nan"), "fast"),
    "gamma": (-0.1, 1.1),
    "lambda_": (2.0,),
    "epsilon": (1.5,),
    "final_epsilon": (-0.1,),
    "exploration_fraction": (2.0, [0.1]),
    "max_grad_norm": (0.0,),
    "adam_eps": (0.0,),
    "rollout_length": (0, 1.5, True),
    "num_epochs": (0,),
    "num_minibatches": (0,),
    "num_groups": (0,),
    "anneal": ("no", None),
}


@pytest.mark.parametrize(
    ("name", "value"), [(k, v) for k, values in WRONG.items() for v in values]
)
def test_settings_out_of_range_are_refused(name, value):
    algorithm = dataclasses.replace(PQN(), **{name: value})
    with pytest.raises(ValueError, match=re.escape(f"{name} {value!r} must be")):
        train(algorithm, CartPole())


def test_what_does_not_fit_is_refused():
    message = r"num_minibatches 7 must divide .*32 \* 8; nearest: \[4, 8\]"
    with pytest.raises(ValueError, match=message):
        train(PQN(num_minibatches=7), CartPole(), num_envs=64)
    with pytest.raises(ValueError, match=r"action space .* must be Discrete"):
        train(PQN(), Pendulum())
