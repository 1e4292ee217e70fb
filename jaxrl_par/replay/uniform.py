"""Uniform replay: every stored transition, or sequence, is as likely as any other.

The environments form groups, none of which straddles devices, and each group draws an
equal share of a minibatch by a key of its own. As all rings are equally full, the law
is uniform over the whole store, and what is drawn does not depend on the devices.
"""

from __future__ import annotations

import math
from functools import partial

import jax
import jax.numpy as jnp

from jaxrl_par import collectives
from jaxrl_par.replay.ring import Place, Ring, oldest
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
    ids = collectives.index(axes) * groups + jnp.arange(groups)
    keys = jax.vmap(partial(jax.random.fold_in, key))(ids)
    number = jax.vmap(
        lambda k: jax.random.randint(k, (num_batches, each), 0, envs * starts)
    )(keys)  # [G, K, each]
    # Divided by a constant: by `starts`, it would be a third of the time of a draw.
    env = jnp.arange(groups)[:, None, None] * envs + number % envs
    slot = (oldest(ring) + number // envs) % ring.slots
    return Place(
        *(x.swapaxes(0, 1).reshape(num_batches, groups * each) for x in (env, slot))
    )
