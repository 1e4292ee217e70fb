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

import dataclasses
import itertools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_par import collectives
from jaxrl_par.replay.ring import Place, Ring, Transitions, divide, transitions
from jaxrl_par.types import Array, Axes, Key, pytree, static

FANOUT = 16


@pytree
class Tree:
    """Sum trees of G groups; level 0 are the leaves, the last has one node a group.

    Leaf `env * S + slot`, with the environments of the group counted from 0. All
    levels lie in one array, so that a compiled loop can go through them.
    """

    nodes: Array  # [G, nodes] float32, level after level
    widths: tuple[int, ...] = static()  # of the levels, each a whole number of nodes

    @property
    def levels(self) -> list[Array]:
        """[G, width] of each level."""
        starts = self.starts.tolist()
        sizes = zip(starts, self.widths, strict=True)
        return [self.nodes[:, start : start + width] for start, width in sizes]

    @property
    def starts(self) -> np.ndarray:
        """The place of each level among a group's nodes, int32."""
        return np.cumsum((0, *self.widths[:-1]), dtype=np.int32)

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


def check(num_envs: int, capacity: int, num_groups: int) -> None:
    """Raise ValueError for more priorities than there can be."""
    shape = jax.eval_shape(
        lambda: empty(num_envs, capacity // num_envs + 1, num_groups)
    )
    nodes = math.prod(shape.nodes.shape)
    if nodes >= 2**31:
        raise ValueError(
            f"capacity {capacity} must be less, with priorities: their sum trees would "
            f"have {nodes:,} nodes, and may have less than 2^31"
        )


def empty(num_envs: int, slots: int, num_groups: int) -> Tree:
    """Trees without mass, for the rings of `num_envs` environments."""
    widths = [num_envs // num_groups * slots]
    while widths[-1] > 1:
        widths.append(-(-widths[-1] // FANOUT))
    padded = [FANOUT * above for above in widths[1:]] + [1]
    size = -(-sum(padded) // FANOUT) * FANOUT
    return Tree(jnp.zeros((num_groups, size)), tuple(padded))


def no_changes(count: int) -> Changes:
    """Room for so many, none of them made."""
    return Changes(jnp.full(count, -1), jnp.zeros(count), jnp.float32(1.0))


def total(tree: Tree, axes: Axes) -> Array:
    """The mass of each group of all devices, [G] float32."""
    return collectives.gather(tree.nodes[:, tree.starts[-1]], axes)


def write(tree: Tree, leaf: Array, priority: Array) -> Tree:
    """Give leaves [N] of this device (group * leaves + leaf) their priorities [N].

    Of a leaf named twice the larger holds; leaves below 0 are ignored.
    """
    groups, size = tree.nodes.shape
    group, node = divide(jnp.maximum(leaf, 0), tree.widths[0])
    first = jnp.where(leaf < 0, groups, group) * size  # beyond: dropped
    flat = tree.nodes.reshape(-1)
    flat = flat.at[first + node].set(0.0, mode="drop")
    flat = flat.at[first + node].max(priority, mode="drop")
    for below, start in itertools.pairwise(tree.starts.tolist()):
        node, _ = divide(node, FANOUT)
        row = divide(first + below, FANOUT)[0] + node
        children = flat.reshape(-1, FANOUT).at[row].get(mode="clip")
        index = first + start + node
        flat = flat.at[index].set(_sums(children)[-1], mode="drop")
    return dataclasses.replace(tree, nodes=flat.reshape(groups, size))


def draw(tree: Tree, key: Key, shape: tuple[int, ...], axes: Axes) -> Draws:
    """Independent draws, each by its share of the mass of all devices."""
    masses = total(tree, axes)
    uniform = jax.random.uniform(key, (len(tree.widths), *shape))
    chosen = _choose(masses, uniform[0])
    groups, size = tree.nodes.shape
    group = chosen - collectives.index(axes) * groups
    ours = (group >= 0) & (group < groups)
    flat, first = tree.nodes.reshape(-1), jnp.clip(group, 0, groups - 1) * size
    families, starts = flat.reshape(-1, FANOUT), jnp.asarray(tree.starts[::-1])

    def down(depth: Array, node: Array) -> Array:
        row = divide(first + starts[depth], FANOUT)[0] + node
        children = families.at[row].get(mode="clip")
        return node * FANOUT + _choose(children, uniform[depth])

    # A loop, as its steps are not merged: each would compute those before it anew.
    node = jax.lax.fori_loop(1, len(starts), down, jnp.zeros(shape, jnp.int32))
    node, mass = collectives.total(
        (jnp.where(ours, node, 0), jnp.where(ours, flat[first + node], 0.0)), axes
    )
    return Draws(chosen * tree.widths[0] + node, mass / masses.sum())


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
    groups, width = len(tree.nodes), tree.widths[0]
    leaf = leaf - collectives.index(axes) * groups * width
    return jnp.where((leaf >= 0) & (leaf < groups * width), leaf, -1)


def leaf_of(tree: Tree, ring: Ring, place: Place) -> Array:
    """Leaves [...] of this device at places in its rings."""
    groups, width = len(tree.nodes), tree.widths[0]
    envs = ring.count.shape[0] // groups
    group, env = divide(place.env, envs)
    return group * width + env * ring.slots + place.slot


def place_of(tree: Tree, ring: Ring, leaf: Array) -> Place:
    """The inverse of `leaf_of`; of others' leaves (below 0) some place."""
    groups, width = len(tree.nodes), tree.widths[0]
    envs = ring.count.shape[0] // groups
    group, leaf = divide(jnp.maximum(leaf, 0), width)
    env, slot = divide(leaf, ring.slots)
    return Place(group * envs + env, slot)


def _sums(children: Array) -> list[Array]:
    """Running sums F times [...] of children [..., F], from left to right."""
    return list(itertools.accumulate(jnp.moveaxis(children, -1, 0)))


def _choose(children: Array, uniform: Array) -> Array:
    """Of each of [..., F], one of the children by its share; none without mass.

    The first whose running sum exceeds a part of the whole sum (at most 1 - 2^-24 of
    it, which is less than it): so it adds to the sum.
    """
    *sums, whole = _sums(children)
    threshold = uniform * whole
    index = jnp.zeros(threshold.shape, jnp.int32)
    for below in sums:
        index += below <= threshold
    return index
