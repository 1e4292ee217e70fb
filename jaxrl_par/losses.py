"""Losses, per sample and as means. Arrays are [N]."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl_par.types import Array


def ppo_clip(log_ratio: Array, advantage: Array, clip_eps: Array | float) -> Array:
    """The clipped surrogate, to be minimised, [N]: -min(r A, clip(r, 1 +- eps) A).

    `log_ratio` is log pi(a|s) - log pi_old(a|s). Schulman et al. 2017, eq. 7.
    """
    # An infinite ratio has a NaN gradient even where the clipped one is chosen.
    ratio = jnp.exp(jnp.minimum(log_ratio, 20.0))
    clipped = jnp.clip(ratio, 1 - clip_eps, 1 + clip_eps)
    return -jnp.minimum(ratio * advantage, clipped * advantage)


def value_loss(
    value: Array, old_value: Array, target: Array, clip: Array | float | None
) -> Array:
    """Half squared error, [N]; with `clip`, the worse of it and the clipped value's.

    0.5 max((v - R)^2, (clip(v, v_old - c, v_old + c) - R)^2): the value may move
    at most c from what it was when the data were collected.
    """
    error = jnp.square(value - target)
    if clip is not None:
        near = old_value + jnp.clip(value - old_value, -clip, clip)
        error = jnp.maximum(error, jnp.square(near - target))
    return 0.5 * error


def huber(error: Array, delta: Array | float | None) -> Array:
    """Half the squared error within `delta`, linear beyond, [...]; None: squared.

    Its slope is the error, clipped to `delta` (Mnih et al. 2015, "error clipping").
    """
    if delta is None:
        return 0.5 * jnp.square(error)
    within = jnp.clip(error, -delta, delta)
    return within * (error - 0.5 * within)


def project(support: Array, probs: Array, targets: Array) -> Array:
    """A distribution on `targets` [N, K] brought onto an even `support` [K]: [N, K].

    Each target's share of `probs` [N, K] goes to its two neighbours, by nearness;
    targets beyond the ends go to these. Bellemare et al. 2017, algorithm 1.
    """
    low, high = support[0], support[-1]
    spacing = (high - low) / (support.shape[0] - 1)
    targets = jnp.clip(targets, low, high)
    distance = jnp.abs(targets[:, None, :] - support[None, :, None])  # [N, K, K]
    share = jnp.clip(1.0 - distance / spacing, 0.0, 1.0)
    return (share * probs[:, None, :]).sum(-1)


def cross_entropy(logits: Array, probs: Array) -> Array:
    """-sum p log softmax(logits), [...] over the last axis."""
    return -(probs * jax.nn.log_softmax(logits)).sum(-1)


def quantile_huber(quantiles: Array, targets: Array, delta: Array | float) -> Array:
    """Quantile regression of samples [N, J] by quantiles [N, K]: losses [N].

    Quantile k is at the middle of the k-th of K equal shares. Sum over k of the mean
    over j of |tau_k - 1(t_j < q_k)| L_delta(t_j - q_k) / delta. Dabney et al. 2018,
    eq. 10 and algorithm 1.
    """
    count = quantiles.shape[-1]
    tau = (jnp.arange(count) + 0.5) / count
    error = targets[:, None, :] - quantiles[:, :, None]  # [N, K, J]
    tilt = jnp.abs(tau[None, :, None] - (error < 0))
    return (tilt * huber(error, delta) / delta).mean(-1).sum(-1)


def approx_kl(log_ratio: Array) -> Array:
    """Estimate of KL(old || new) from samples of old, [N]: (r - 1) - log r >= 0.

    Schulman 2020, "Approximating KL divergence", k3.
    """
    return jnp.expm1(log_ratio) - log_ratio


def standardize(x: Array, mean: Array, var: Array) -> Array:
    """(x - mean) / std with the population deviation; zeros where x is constant.

    A deviation far below 1e-5 of the mean is rounding and is not blown up to 1.
    """
    return (x - mean) * jax.lax.rsqrt(var + jnp.square(1e-5 * mean) + 1e-16)
