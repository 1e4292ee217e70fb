"""Losses against NumPy and hand-worked numbers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxrl_par import PPO, losses
from jaxrl_par.algorithms.ppo import Batch
from jaxrl_par.distributions import Categorical
from jaxrl_par.spaces import Box, Discrete
from jaxrl_par.types import EnvSpec

F = np.float32
TWO_ACTIONS = EnvSpec("two", Box(-1.0, 1.0, (1,)), Discrete(2))


def test_clipped_surrogate():
    # Schulman et al. 2017, fig. 1, eps .2: the ratio counts up to 1.2 for A > 0,
    # and from .8 for A < 0. Losses, -min(r A, clip(r) A):
    # r 1.5, A 2: -min(3, 2.4) = -2.4;     r 1.5, A -2: -min(-3, -2.4)  = 3
    # r .5,  A 2: -min(1, 1.6) = -1;       r .5,  A -2: -min(-1, -1.6)  = 1.6
    # r 1.1, A 2: -2.2;                    r 1.1, A -2: 2.2
    ratio = np.array([1.5, 1.5, 0.5, 0.5, 1.1, 1.1], F)
    advantage = np.array([2, -2, 2, -2, 2, -2], F)

    def loss(log_ratio):
        return losses.ppo_clip(log_ratio, advantage, 0.2)

    found = loss(np.log(ratio))
    np.testing.assert_allclose(found, [-2.4, 3, -1, 1.6, -2.2, 2.2], rtol=1e-6)
    gradient = jax.grad(lambda x: loss(x).sum())(jnp.log(ratio))
    # d/d log r = -r A where r A is the smaller, else 0.
    np.testing.assert_allclose(gradient, [0, 3, -1, 0, -2.2, 2.2], rtol=1e-5)


@pytest.mark.parametrize("log_ratio", [-1e4, -100.0, 0.0, 100.0, 1e4])
def test_extreme_ratios_have_finite_losses_and_gradients(log_ratio):
    advantage = np.array([-1, 0, 1], F)
    value, gradient = jax.value_and_grad(
        lambda x: losses.ppo_clip(x, advantage, 0.2).mean()
    )(jnp.full(3, log_ratio))
    assert np.isfinite(value) and np.isfinite(gradient).all()


def value_loss(value, old_value, target, clip):
    return jax.value_and_grad(
        lambda v: losses.value_loss(v, F(old_value), F(target), clip)
    )(F(value))


def test_value_loss_takes_the_worse_of_the_two():
    # c .2, R 10.
    # v_old 5, v 1: max((1 - 10)^2, (4.8 - 10)^2) = max(81, 27.04);  81 / 2 = 40.5,
    # and d/dv = v - R = -9.
    np.testing.assert_allclose(value_loss(1, 5, 10, 0.2), (40.5, -9), rtol=1e-6)
    # v_old 1, v 5: max((5 - 10)^2, (1.2 - 10)^2) = max(25, 77.44);  38.72, and 0: the
    # clipped value does not move with v.
    np.testing.assert_allclose(value_loss(5, 1, 10, 0.2), (38.72, 0), rtol=1e-6)
    # Within the clip, and without one, it is half the squared error.
    np.testing.assert_allclose(value_loss(1.1, 1, 3, 0.2), (1.805, -1.9), rtol=1e-5)
    np.testing.assert_allclose(value_loss(5, 1, 10, None), (12.5, -5), rtol=1e-6)


def test_approx_kl_is_the_k3_estimator():
    # (r - 1) - log r for r = 1, 2, 1/2: 0, 1 - log 2, log 2 - 1/2.
    log_ratio = np.log(np.array([1, 2, 0.5], F))
    expected = [0, 1 - np.log(2), np.log(2) - 0.5]
    np.testing.assert_allclose(losses.approx_kl(log_ratio), expected, rtol=1e-5)
    # Its mean over draws of old is the KL: sum p_old (r - 1 - log r) = KL.
    old, new = np.array([0.2, 0.5, 0.3], F), np.array([0.4, 0.4, 0.2], F)
    kl = (old * np.log(old / new)).sum()
    mean = (old * losses.approx_kl(np.log(new / old))).sum()
    np.testing.assert_allclose(mean, kl, rtol=1e-5)
    assert losses.approx_kl(F(1e-4)) > 0  # no cancellation near 0


def standardize(x):
    x = jnp.asarray(x, jnp.float32)
    return losses.standardize(x, x.mean(), x.var())


def test_standardize():
    # The population deviation: (1 - 2.5) / sqrt(1.25) = -1.3416408.
    expected = [-1.3416408, -0.4472136, 0.4472136, 1.3416408]
    np.testing.assert_allclose(standardize([1, 2, 3, 4]), expected, rtol=1e-6)
    np.testing.assert_array_equal(standardize([3.7]), [0])
    np.testing.assert_array_equal(standardize([2, 2, 2, 2]), [0, 0, 0, 0])
    # What differs by rounding only is not blown up to 1.
    for value in (0.1, 100.1, -3e5):
        rounded = jnp.full(7, value) + jnp.array([0, 1, 0, 0, 0, 0, 0]) * 1e-7 * value
        assert np.abs(standardize(rounded)).max() < 0.05
    # A small but real deviation is.
    np.testing.assert_allclose(standardize([1e-6, 3e-6]), [-1, 1], rtol=1e-3)


def test_standardize_of_a_constant_has_a_finite_gradient():
    # The plain form, x / std(x), has a NaN gradient there.
    constant = jnp.full(4, 2.0)
    assert np.isnan(jax.grad(lambda x: (x / x.std()).sum())(constant)).all()
    gradient = jax.grad(lambda x: (standardize(x) * jnp.arange(4.0)).sum())(constant)
    assert np.isfinite(gradient).all()


def test_clipping_zero_gradients_leaves_zeros():
    # The plain form, g * (c / norm(g)), is 0 * inf.
    optimizer = PPO()._optimizer()
    zeros = {"w": jnp.zeros((2, 2)), "b": jnp.zeros(2)}
    new, _ = jax.jit(optimizer.follow)(zeros, zeros, optimizer.init(zeros), 1.0)
    for leaf in jax.tree.leaves(new):
        np.testing.assert_array_equal(leaf, 0)


def ppo_loss(ppo, logits, **values):
    """PPO's loss of a policy that has these logits everywhere, for one sample."""
    batch = Batch(
        obs=jnp.zeros((1, 1)),
        mask=None,
        sample=jnp.zeros(1, jnp.int32),
        log_prob=jnp.log(jnp.full(1, 0.5)),
        value=jnp.zeros(1),
        advantage=jnp.full(1, values.get("advantage", 0.0)),
        target=jnp.full(1, values.get("target", 0.0)),
    )
    return ppo._loss(TWO_ACTIONS, jnp.asarray(logits), batch)[0]


def constant_network(params, obs):
    return jnp.broadcast_to(params, (len(obs), 2)), jnp.zeros(len(obs))


def test_entropy_is_subtracted_from_the_loss():
    # Logits [0, 0]: H = log 2; only the bonus counts: -.01 * .6931472.
    ppo = PPO(network=(lambda key: None, constant_network), entropy_coef=0.01)
    loss = jax.jit(lambda x: ppo_loss(ppo, x))(np.zeros(2, F))
    np.testing.assert_allclose(loss, -0.0069314718, rtol=1e-5)
    # From [2, 0], H .3653339, one step of SGD of size 1 must raise H, to .3662162.
    logits = jnp.array([2.0, 0.0])
    np.testing.assert_allclose(Categorical(2).entropy(logits), 0.3653339, rtol=1e-6)
    step = optax.sgd(1.0)
    gradient = jax.jit(jax.grad(lambda x: ppo_loss(ppo, x)))(logits)
    updates, _ = step.update(gradient, step.init(logits))
    entropy = Categorical(2).entropy(optax.apply_updates(logits, updates))
    np.testing.assert_allclose(entropy, 0.3662162, rtol=1e-6)


def test_loss_is_policy_plus_value_minus_entropy():
    # Ratio 1, advantage 3: -3. Value 0, target 2: .5 * 4 / 2 = 1 with coefficient .5.
    # Entropy log 2, coefficient .1.
    ppo = PPO(
        network=(lambda key: None, constant_network), value_coef=0.5, entropy_coef=0.1
    )
    found = jax.jit(lambda x: ppo_loss(ppo, x, advantage=3.0, target=2.0))(
        np.zeros(2, F)
    )
    np.testing.assert_allclose(found, -3 + 1 - 0.1 * np.log(2), rtol=1e-6)
