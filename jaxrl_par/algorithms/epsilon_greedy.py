"""Epsilon-greedy actions in a Discrete space; masked actions are never taken."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl_par.networks.q_network import greedy
from jaxrl_par.types import Array, Key


def noise(key: Key, length: int) -> Array:
    """Randomness of `length` steps, [T, 2]."""
    return jax.random.uniform(key, (length, 2))


def act(
    values: Array, mask: Array | None, noise: Array, epsilon: Array | float
) -> Array:
    """Indices [N] int32: with probability `epsilon` any action, else the best.

    `values` [N, actions]; `mask` [N, actions] of valid ones, or None; `noise` [N, 2].
    """
    best = greedy(values, mask)
    count = values.shape[-1]
    if mask is None:
        any_action = (noise[:, 1] * count).astype(jnp.int32)
    else:  # the k-th valid one
        valid = mask.astype(bool)
        rank = jnp.cumsum(valid, -1)
        k = (noise[:, 1] * rank[:, -1]).astype(jnp.int32)
        any_action = jnp.argmax(valid & (rank == k[:, None] + 1), -1)
    return jnp.where(noise[:, 0] < epsilon, any_action.astype(jnp.int32), best)
