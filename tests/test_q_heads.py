"""Heads and their losses, against loops written from the papers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_par import losses
from jaxrl_par.algorithms import q_heads

RNG = np.random.default_rng(0)


def projected(support, probs, targets):
    """Bellemare et al. 2017, algorithm 1, for one sample."""
    result = np.zeros(len(support))
    spacing = support[1] - support[0]
    for p, target in zip(probs, targets, strict=True):
        b = (np.clip(target, support[0], support[-1]) - support[0]) / spacing
        low, high = int(np.floor(b)), int(np.ceil(b))
        if low == high:
            result[low] += p
        else:
            result[low] += p * (high - b)
            result[high] += p * (b - low)
    return result


def test_the_projection_is_the_papers():
    support = np.linspace(-2, 3, 11)
    probs = RNG.dirichlet(np.ones(11), 40)
    targets = RNG.normal(0, 3, (40, 11))
    targets[0] = support  # onto itself
    found = losses.project(*map(jnp.float32, (support, probs, targets)))
    expected = [projected(support, *row) for row in zip(probs, targets, strict=True)]
    np.testing.assert_allclose(found, expected, atol=1e-6)
    np.testing.assert_allclose(found.sum(-1), 1, rtol=1e-5)
    np.testing.assert_allclose(found[0], probs[0], atol=1e-6)


def test_c51_loss_is_the_cross_entropy_with_the_projected_law():
    head = q_heads.C51(-2.0, 3.0, 11)
    outputs, after = RNG.normal(size=(2, 40, 11)).astype(np.float32)
    reward, discount = RNG.normal(size=40), RNG.choice([0, 0.9], 40)
    loss, priority = head.loss(*map(jnp.float32, (outputs, after, reward, discount)))
    support = np.linspace(-2, 3, 11)
    for i in range(40):
        law = np.exp(after[i]) / np.exp(after[i]).sum()
        target = projected(support, law, reward[i] + discount[i] * support)
        log_probs = outputs[i] - np.log(np.exp(outputs[i]).sum())
        np.testing.assert_allclose(loss[i], -(target * log_probs).sum(), rtol=1e-5)
    assert (loss == priority).all()
    # all mass on the atom 0.5 (of -2, -1.5 .. 3): that is the value
    certain = jnp.where(jnp.arange(11) == 5, 50.0, 0.0)
    np.testing.assert_allclose(head.values(certain), 0.5, rtol=1e-6)


def test_quantile_loss_is_the_papers():
    """Dabney et al. 2018, eq. 10, over all pairs of a quantile and a target."""
    quantiles, targets = RNG.normal(size=(2, 30, 5)).astype(np.float32)
    found = losses.quantile_huber(quantiles, targets, 0.7)
    for n in range(30):
        total = 0.0
        for k in range(5):
            tau = (k + 0.5) / 5
            for j in range(5):
                u = targets[n, j] - quantiles[n, k]
                huber = 0.5 * u**2 if abs(u) <= 0.7 else 0.7 * (abs(u) - 0.35)
                total += abs(tau - (u < 0)) * huber / 0.7 / 5
        np.testing.assert_allclose(found[n], total, rtol=1e-5)


def test_quantiles_settle_at_the_middles_of_equal_shares():
    """Of targets 0 .. 99 the four quantiles are 12.5, 37.5, 62.5 and 87.5."""
    targets = jnp.arange(100.0)[None]
    loss = jax.grad(lambda q: losses.quantile_huber(q[None], targets, 0.01).sum())
    quantiles = jax.lax.fori_loop(
        0, 9000, lambda _, q: q - 0.1 * loss(q), jnp.full(4, 50.0)
    )
    np.testing.assert_allclose(quantiles, [12.5, 37.5, 62.5, 87.5], atol=0.6)


@pytest.mark.parametrize(
    ("error", "delta", "loss", "slope"),
    [(0.5, 1.0, 0.125, 0.5), (3.0, 1.0, 2.5, 1.0), (-3.0, 2.0, 4.0, -2.0),
     (3.0, None, 4.5, 3.0)],
)  # fmt: skip
def test_huber(error, delta, loss, slope):
    found = jax.value_and_grad(losses.huber)(error, delta)
    np.testing.assert_allclose(found, (loss, slope), rtol=1e-6)


def test_a_value_learns_its_td_error():
    head = q_heads.Expected(None)
    columns = [[2.0], [5.0], 1.0, 0.9]  # target 1 + .9 * 5 = 5.5
    loss, priority = head.loss(*(jnp.array(x)[None] for x in columns))
    np.testing.assert_allclose((loss[0], priority[0]), (0.5 * 3.5**2, 3.5), rtol=1e-6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("c52", 51, (0, 1), 1.0), r"head 'c52' must be one of value, c51, quantile"),
        (("c51", 1, (0, 1), 1.0), r"num_atoms 1: the head 'c51' needs at least 2"),
        (("c51", 51, (1, 1), 1.0), r"v_min 1 must be less than v_max 1"),
        (("c51", 51, (0, np.inf), 1.0), r"v_max inf must be a finite number"),
        (("quantile", 51, (0, 1), None), r"huber_delta None: the head 'quantile'"),
        (("value", 0, (0, 1), 1.0), r"num_atoms 0 must be a whole number"),
        (("value", 1, (0, 1), -1.0), r"huber_delta -1.0 must be a finite number above"),
    ],
)
def test_heads_that_cannot_be_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        q_heads.check(*settings)
