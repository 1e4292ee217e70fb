"""Uniform replay: every stored transition, or sequence, is as likely as any other.

The environments form groups, none of which straddles devices, and each group gives an
equal share of a minibatch. As all rings are equally full, the law is uniform over the
whole store; the random numbers are those of the groups, so what is drawn does not
depend on the devices.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from jaxrl_par import collectives
from jaxrl_par.replay.ring import Place, Ring, divide, oldest
from jaxrl_par.types import Axes, Key


def count_groups(num_envs: int, batch_size: int, num_groups: int) -> int:
    """Groups of which each has equally many environments and draws equally often."""
    return math.gcd(num_envs, batch_size, num_groups)


def draw(
    ring: Ring,
    key: Key,
    shape: tuple[int, int],
    num_groups: int,
    axes: Axes,
    length: int = 1,
) -> Place:
    """Places [K, M / devices] of independent uniform draws, for a shape (K, M).

    M samples and `num_groups` (of `count_groups`) are of all devices; `key` is the
    same on all. With `length`, from each place so many steps are stored. Undefined
    while fewer are.
    """
    num_batches, batch_size = shape
    groups = num_groups // collectives.size(axes)
    each = batch_size // num_groups
    envs = ring.count.shape[0] // groups
    starts = jnp.maximum(ring.count[0] - length + 1, 1)
    bits = jax.random.bits(key, (num_batches, num_groups, each))
    # The remainder is uniform to within its divisor / 2^32: 2e-4 for a million.
    count = (envs * starts).astype(jnp.uint32)
    number = (collectives.part(bits, 1, axes) % count).astype(jnp.int32)
    # Divided by a constant: by `starts`, it would be a third of the time of a draw.
    back, env = divide(number, envs)
    env += jnp.arange(groups)[None, :, None] * envs
    _, slot = divide(oldest(ring) + back, ring.slots)
    return Place(*(x.reshape(num_batches, groups * each) for x in (env, slot)))
