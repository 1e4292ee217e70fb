"""Stratified minibatches: the same on any number of devices.

The environments form a fixed number of groups, none of which straddles devices.
Each group shuffles its own samples; a minibatch takes an equal slice of every
group. What is shuffled are rows: the samples of one step and of one block of the
group's environments. So the sort is short and the gather copies whole rows.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from jaxrl_par import collectives
from jaxrl_par.types import Array, Axes, Key, PyTree


def count_groups(num_envs: int, num_groups: int) -> int:
    """Groups that `num_envs` environments form: their greatest common divisor."""
    return math.gcd(num_envs, num_groups)


def blocks_per_group(length: int, group_envs: int, num_minibatches: int) -> int:
    """Fewest equal blocks of a group's environments with which rows divide.

    Raises ValueError if the samples of a group do not divide by the minibatches.
    """
    for blocks in range(1, group_envs + 1):
        if group_envs % blocks == 0 and length * blocks % num_minibatches == 0:
            return blocks
    raise ValueError(
        f"num_minibatches {num_minibatches} must divide rollout_length * environments "
        f"in a group = {length} * {group_envs}"
    )


def shuffle(
    key: Key, batch: PyTree, num_minibatches: int, num_groups: int, axes: Axes
) -> PyTree:
    """Shuffle a batch [T, B, ...] into minibatches [M, T * B / M, ...].

    `key` is the same on all devices; B and the result are this device's part.
    """
    length, num_envs = jax.tree.leaves(batch)[0].shape[:2]
    devices = collectives.size(axes)
    groups = count_groups(num_envs * devices, num_groups) // devices
    blocks = blocks_per_group(length, num_envs // groups, num_minibatches)

    group_ids = collectives.index(axes) * groups + jnp.arange(groups)
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, group_ids)
    order = jax.vmap(permutation, (0, None))(keys, length * blocks)  # [G, T * blocks]
    step, block = order // blocks, order % blocks
    row = (step * groups + jnp.arange(groups)[:, None]) * blocks + block
    row = row.reshape(groups, num_minibatches, -1).swapaxes(0, 1)  # [M, G, rows]

    def gather(leaf: Array) -> Array:
        features = leaf.shape[2:]
        rows = leaf.reshape(length * groups * blocks, -1, *features)
        picked = rows.at[row.reshape(-1)].get(mode="promise_in_bounds")
        return picked.reshape(num_minibatches, -1, *features)

    return jax.tree.map(gather, batch)


def permutation(key: Key, n: int) -> Array:
    """A random order of 0 .. n-1, [n] int32.

    One unstable sort of words that hold random bits above the index: a fraction of
    the cost of `jax.random.permutation`. With b = 32 - log2(n) random bits, a pair
    of equal bits (in index order then) has probability 2^-b.
    """
    index_bits = max(n - 1, 1).bit_length()
    low = jnp.uint32((1 << index_bits) - 1)
    words = (jax.random.bits(key, (n,)) & ~low) | jnp.arange(n, dtype=jnp.uint32)
    return (jax.lax.sort(words, is_stable=False) & low).astype(jnp.int32)
