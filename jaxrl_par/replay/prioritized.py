"""Prioritised replay, exact over all devices (Schaul et al. 2016).

Priorities lie in sum trees of `FANOUT` children a node, one for each group of
environments; no group straddles devices. A draw goes to a group by the share of its
root, on the roots of all devices, and down its tree by the shares of the children, at
each level by a random number of its own: one float32 for all levels would have too
few bits for a million leaves.

A node is always the sum of its children in one fixed order, computed anew from them
whenever one changes: rounding does not build up, however many changes are made (the
root is within 1e-6 of the true sum), and a child without mass is never chosen.

Every device finds all the draws that fall to its groups, and a sum over the devices
brings each minibatch together; so any device can have any share of the mass, and the
minibatch is the same on any number of them.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_par import collectives
from jaxrl_par.replay.ring import Place, Ring, Transitions, transitions
from jaxrl_par.types import Array, Axes, Key, pytree

FANOUT = 16


@pytree
class Tree:
    """Sum trees of G groups; level 0 are the leaves, the last has one node a group.

    Leaf `env * S + slot`, with the environments of the group counted from 0.
    """

    levels: tuple[Array, ...]  # [G, nodes] float32

    def rewound(self, fault: Array, before: Tree) -> Tree:
        """The same: what was written is written again, before it is next read."""
        del fault, before
        return self


@pytree
class Changes:
    """Priorities that are still to be written; equal on all devices."""

    leaf: Array  # [N] int32, over the groups of all devices; see `Draws`
    priority: Array  # [N] float32; 0 where there is none
    largest: Array  # () float32, the largest priority so far: that of what is new


class Draws(NamedTuple):
    """Drawn leaves, and how often each should have come; equal on all devices."""

    leaf: Array  # [...] int32: group * leaves of a group + leaf
    probability: Array  # [...] float32, of one draw


def empty(num_envs: int, slots: int, num_groups: int) -> Tree:
    """Trees without mass, for the rings of `num_envs` environments."""
    widths = [num_envs // num_groups * slots]
    while widths[-1] > 1:
        widths.append(-(-widths[-1] // FANOUT))
    padded = [FANOUT * above for above in widths[1:]] + [1]
    return Tree(tuple(jnp.zeros((num_groups, width)) for width in padded))


def no_changes(count: int) -> Changes:
    """Room for so many, none of them made."""
    return Changes(jnp.full(count, -1), jnp.zeros(count), jnp.float32(1.0))


def total(tree: Tree, axes: Axes) -> Array:
    """The mass of each group of all devices, [G] float32."""
    return collectives.gather(tree.levels[-1][:, 0], axes)


def write(tree: Tree, leaf: Array, priority: Array) -> Tree:
    """Give leaves [N] of this device (group * leaves + leaf) their priorities [N].

    Of a leaf named twice the larger holds; leaves below 0 are ignored.
    """
    groups, width = tree.levels[0].shape
    group = jnp.where(leaf < 0, groups, leaf // width)  # beyond: dropped
    node = leaf % width
    index = group * width + node
    flat = tree.levels[0].reshape(-1)
    flat = flat.at[index].set(0.0, mode="drop").at[index].max(priority, mode="drop")
    levels = [flat.reshape(groups, width)]
    for level in tree.levels[1:]:
        node //= FANOUT
        children = _children(levels[-1], group, node)
        index = group * level.shape[1] + node
        flat = level.reshape(-1).at[index].set(_sums(children)[-1], mode="drop")
        levels.append(flat.reshape(level.shape))
    return Tree(tuple(levels))


def draw(tree: Tree, key: Key, shape: tuple[int, ...], axes: Axes) -> Draws:
    """Independent draws, each by its share of the mass of all devices."""
    masses = total(tree, axes)
    uniform = jax.random.uniform(key, (len(tree.levels), *shape))
    chosen = _choose(jnp.broadcast_to(masses, (*shape, len(masses))), uniform[0])
    groups, width = tree.levels[0].shape
    group = chosen - collectives.index(axes) * groups
    ours = (group >= 0) & (group < groups)
    group, node = jnp.clip(group, 0, groups - 1), jnp.zeros(shape, jnp.int32)
    below = zip(tree.levels[-2::-1], uniform[1:], strict=True)
    for level, u in below:
        node = node * FANOUT + _choose(_children(level, group, node), u)
    mass = tree.levels[0].reshape(-1)[group * width + node]
    node, mass = collectives.total(
        (jnp.where(ours, node, 0), jnp.where(ours, mass, 0.0)), axes
    )
    return Draws(chosen * width + node, mass / masses.sum())


def weights(probability: Array, count: Array, exponent: Array | float) -> Array:
    """Importance weights [..., N] of draws, the largest of each minibatch N being 1.

    (count * probability)^-exponent over the largest, `count` transitions being stored
    on all devices. Schaul et al. 2016, section 3.4.
    """
    log_weight = -exponent * jnp.log(jnp.maximum(count * probability, 1e-30))
    return jnp.exp(log_weight - log_weight.max(-1, keepdims=True))


def refresh(tree: Tree, ring: Ring, length: int, changes: Changes, axes: Axes) -> Tree:
    """Write what was left, and the largest priority of the steps just added.

    `ring` is the one after `length` steps were. What it has in their place is gone,
    and so are its priorities; the slot of the observation to act on has none.
    """
    old = local(tree, changes.leaf, axes)
    slot = place_of(tree, ring, old).slot
    gone = (ring.position[0] - slot) % ring.slots <= length
    back = jnp.arange(length + 1)
    slots = (ring.position[0] - back) % ring.slots
    envs = jnp.arange(ring.count.shape[0])[:, None]
    new = leaf_of(tree, ring, Place(envs, slots[None])).reshape(-1)
    priority = jnp.where(back == 0, 0.0, changes.largest)
    return write(
        tree,
        jnp.concatenate([jnp.where(gone, -1, old), new]),
        jnp.concatenate([changes.priority, jnp.tile(priority, len(envs))]),
    )


def fetch(
    tree: Tree, ring: Ring, leaf: Array, n_step: int, gamma: Array | float, axes: Axes
) -> Transitions:
    """The transitions at leaves [K, M] of all devices; of them, this device's share.

    [K, M / devices], in order.
    """
    mine = local(tree, leaf, axes)
    found = transitions(ring, place_of(tree, ring, mine), n_step, gamma)

    if not axes:
        return found

    def ours(x: Array) -> Array:
        mask = (mine >= 0).reshape(mine.shape + (1,) * (x.ndim - mine.ndim))
        return jnp.where(mask, x, jnp.zeros_like(x))

    return collectives.share(jax.tree.map(ours, found), 1, axes)


def local(tree: Tree, leaf: Array, axes: Axes) -> Array:
    """Leaves of all devices as this device's, for `write`; -1 for others'."""
    groups, width = tree.levels[0].shape
    leaf = leaf - collectives.index(axes) * groups * width
    return jnp.where((leaf >= 0) & (leaf < groups * width), leaf, -1)


def leaf_of(tree: Tree, ring: Ring, place: Place) -> Array:
    """Leaves [...] of this device at places in its rings."""
    groups, width = tree.levels[0].shape
    envs = ring.count.shape[0] // groups
    group, env = place.env // envs, place.env % envs
    return group * width + env * ring.slots + place.slot


def place_of(tree: Tree, ring: Ring, leaf: Array) -> Place:
    """The inverse of `leaf_of`; of others' leaves (below 0) some place."""
    groups, width = tree.levels[0].shape
    envs = ring.count.shape[0] // groups
    leaf = jnp.maximum(leaf, 0)
    group, leaf = leaf // width, leaf % width
    return Place(group * envs + leaf // ring.slots, leaf % ring.slots)


def _children(level: Array, group: Array, node: Array) -> Array:
    """The children [..., F], at `level`, of the nodes above it."""
    rows = level.reshape(-1, FANOUT)
    return rows.at[group * (level.shape[1] // FANOUT) + node].get(mode="clip")


def _sums(children: Array) -> list[Array]:
    """Running sums [...] of children [..., F], from left to right."""
    columns = (children[..., i] for i in range(children.shape[-1]))
    return list(itertools.accumulate(columns))


def _choose(children: Array, uniform: Array) -> Array:
    """A child [...] of each row [..., F] by its share; none without mass.

    The first whose running sum exceeds a part of the whole sum (at most 1 - 2^-24 of
    it, which is less than it): so it adds to the sum.
    """
    *sums, whole = _sums(children)
    threshold = uniform * whole
    index = jnp.zeros(whole.shape, jnp.int32)
    for below in sums:
        index += below <= threshold
    return index
