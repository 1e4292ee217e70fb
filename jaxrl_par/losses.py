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
