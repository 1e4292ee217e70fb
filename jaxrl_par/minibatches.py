"""Stratified minibatches: the same on any number of devices.

The environments form a fixed number of groups, none of which straddles devices.
Each group shuffles its own samples; a minibatch takes an equal slice of every
group. What is shuffled are rows: the samples of one step and of one block of the
group's environments. So the sort is short and the gather copies whole rows.
"""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_par import checks, collectives
from jaxrl_par.types import Array, Axes, Key, PyTree


class Sizes(NamedTuple):
    """One device's part of a batch: its steps, groups and blocks in a group."""

    length: int
    groups: int
    blocks: int
    num_minibatches: int


def sizes_of(
    length: int, num_envs: int, num_minibatches: int, num_groups: int, axes: Axes
) -> Sizes:
    """Sizes for a batch [length, num_envs] on each device."""
    devices = collectives.size(axes)
    groups = count_groups(num_envs * devices, num_groups) // devices
    blocks = blocks_per_group(length, num_envs // groups, num_minibatches)
    return Sizes(length, groups, blocks, num_minibatches)


def count_groups(num_envs: int, num_groups: int) -> int:
    """Groups that `num_envs` environments form: their greatest common divisor."""
    return math.gcd(num_envs, num_groups)


def blocks_per_group(length: int, group_envs: int, num_minibatches: int) -> int:
    """Fewest equal blocks of a group's environments with which rows divide.

    Raises ValueError if the samples of a group do not divide by the minibatches.
    """
    blocks = num_minibatches // math.gcd(length, num_minibatches)
    if group_envs % blocks == 0:
        return blocks
    near = checks.nearest_divisors(num_minibatches, length * group_envs)
    raise ValueError(
        f"num_minibatches {num_minibatches} must divide rollout_length * environments "
        f"in a group = {length} * {group_envs}; nearest: {near}"
    )


def shuffled_rows(key: Key, sizes: Sizes, num_epochs: int, axes: Axes) -> Array:
    """Which rows make each minibatch, [epochs, M, rows] int32, for `gather`.

    `key` is the same on all devices; the rows are this device's.
    """
    groups, blocks = sizes.groups, sizes.blocks
    group_ids = collectives.index(axes) * groups + jnp.arange(groups)
    epochs = jnp.arange(num_epochs)[:, None] * (groups * collectives.size(axes))
    ids = (epochs + group_ids[None]).reshape(-1)
    keys = jax.vmap(partial(jax.random.fold_in, key))(ids)
    order = permutations(keys, sizes.length * blocks)
    order = order.reshape(num_epochs, groups, -1)  # [epochs, G, T * blocks]
    step, block = order // blocks, order % blocks
    row = (step * groups + jnp.arange(groups)[None, :, None]) * blocks + block
    row = row.reshape(num_epochs, groups, sizes.num_minibatches, -1).swapaxes(1, 2)
    return row.reshape(num_epochs, sizes.num_minibatches, -1)


def gather(batch: PyTree, rows: Array, sizes: Sizes) -> PyTree:
    """The minibatches [M, T * B / M, ...] of a batch [T, B, ...], by rows [M, rows]."""

    def pick(leaf: Array) -> Array:
        features = leaf.shape[2:]
        table = leaf.reshape(sizes.length * sizes.groups * sizes.blocks, -1, *features)
        picked = table.at[rows.reshape(-1)].get(mode="promise_in_bounds")
        return picked.reshape(sizes.num_minibatches, -1, *features)

    return jax.tree.map(pick, batch)


def permutations(keys: Key, n: int) -> Array:
    """A random order of 0 .. n-1 for each key [K]: [K, n] int32.

    One unstable sort of words that hold random bits above the index: a fraction of
    the cost of `jax.random.permutation`. With b = 32 - log2(n) random bits, a pair
    of equal bits (in index order then) has probability 2^-b.
    """
    bits = jax.vmap(lambda key: jax.random.bits(key, (n,)))(keys)
    low = jnp.uint32((1 << max(n - 1, 1).bit_length()) - 1)
    words = (bits & ~low) | jnp.arange(n, dtype=jnp.uint32)[None]
    return (jax.lax.sort(words, is_stable=False) & low).astype(jnp.int32)
