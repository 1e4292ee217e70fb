"""Reductions over a tuple of mesh axes; over an empty tuple they do nothing.

The only code that reduces over devices, or knows of parts. `gradient` is the only place
where gradients are: parameters are first marked as varying over the axes, so that the
derivative stays local and the mean is taken once. Differentiating and then taking
`pmean` of replicated parameters is right or N times too large, depending on the
`check_vma` mode of the enclosing `shard_map`; this form is right under both.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from jaxrl_par.types import Array, Axes, PyTree, pytree, static

# Activations of so many samples of a small network stay in a core's cache: 1.5
# times faster than a whole minibatch of 65,536 (two 64x64 networks, one core).
CPU_MICROBATCH = 2048
# Several CPU devices share one pool of threads. What is larger than this is cut up
# and handed to it, where it waits for the other devices' work: 5 % slower.
CPU_MICROBATCH_OF_MANY = 256


@pytree
class Split:
    """This device's part of an array that is split along one dimension.

    A parameter that is split is one within a compiled update: to `jax.tree.map`, the
    part. A network sees it `whole`, and its gradient is then this device's part of the
    sum over the devices, as the transpose of a gathering is a scattering sum.
    """

    part: Array
    dimension: int = static()
    axes: Axes = static()


def is_split(leaf: object) -> bool:
    """Whether this, which may be any part of a tree, is a `Split`."""
    return isinstance(leaf, Split)


def whole(tree: PyTree) -> PyTree:
    """The tree with an array in place of each `Split`."""

    def join(leaf: Array | Split) -> Array:
        if not isinstance(leaf, Split):
            return leaf
        return jax.lax.all_gather(leaf.part, leaf.axes, axis=leaf.dimension, tiled=True)

    return jax.tree.map(join, tree, is_leaf=is_split)


def own_part(x: Array, like: Split) -> Split:
    """Of an array that all devices have, the part of this one."""
    own = part(x, like.dimension, like.axes)
    return Split(own, like.dimension, like.axes)


def index(axes: Axes) -> Array | int:
    """This device's number along the axes, row-major; 0 without axes."""
    return jax.lax.axis_index(axes) if axes else 0


def size(axes: Axes) -> int:
    """Number of devices along the axes; 1 without axes."""
    return jax.lax.axis_size(axes) if axes else 1


def mean(tree: PyTree, axes: Axes) -> PyTree:
    """Mean over the axes of every leaf."""
    return jax.lax.pmean(tree, axes) if axes else tree


def total(tree: PyTree, axes: Axes) -> PyTree:
    """Sum over the axes of every leaf."""
    return jax.lax.psum(tree, axes) if axes else tree


def gather(tree: PyTree, axes: Axes) -> PyTree:
    """The leaves [n, ...] of all devices, one after another: [devices * n, ...]."""
    return jax.lax.all_gather(tree, axes, tiled=True) if axes else tree


def share(tree: PyTree, axis: int, axes: Axes) -> PyTree:
    """This device's part, along an array axis, of every leaf's sum over the devices."""

    def scatter(x: Array) -> Array:
        numbers = x.astype(jnp.uint8) if x.dtype == bool else x
        summed = jax.lax.psum_scatter(numbers, axes, scatter_dimension=axis, tiled=True)
        return summed.astype(x.dtype)

    return jax.tree.map(scatter, tree) if axes else tree


def part(x: Array, axis: int, axes: Axes) -> Array:
    """This device's share of an array that is the same on all, along an axis."""
    if not axes:
        return x
    width = x.shape[axis] // size(axes)
    return jax.lax.dynamic_slice_in_dim(x, index(axes) * width, width, axis)


def moments(x: Array, axis: int | tuple[int, ...], axes: Axes) -> tuple[Array, Array]:
    """Mean and population variance over array axes and mesh axes together.

    Two passes, so that a large mean does not cancel the variance.
    """
    centre = mean(jnp.mean(x, axis), axes)
    spread = jnp.square(x - jnp.expand_dims(centre, axis))
    return centre, mean(jnp.mean(spread, axis), axes)


def norm(tree: PyTree) -> Array:
    """The norm of all numbers of a tree, of which some leaves may be `Split`."""
    squares = jnp.float32(0.0)
    parts: dict[Axes, Array] = {}
    for leaf in jax.tree.leaves(tree, is_leaf=is_split):
        if isinstance(leaf, Split):
            known = parts.get(leaf.axes, 0.0)
            parts[leaf.axes] = known + jnp.square(leaf.part).sum()
        else:
            squares += jnp.square(leaf).sum()
    for axes, square in parts.items():
        squares += total(square, axes)
    return jnp.sqrt(squares)


def gradient(
    loss: Callable[[PyTree, PyTree], tuple[Array, Any]],
    params: PyTree,
    batch: PyTree,
    axes: Axes,
    microbatch_size: int | None = None,
) -> tuple[PyTree, Any]:
    """Gradient of a mean loss over the samples of all devices: (gradient, aux).

    `loss(params, batch)` is a mean over the leading axis of `batch`, and so is
    each scalar of its aux. The batch is taken in the fewest equal parts of at most
    `microbatch_size` samples, one after another, whose results are averaged: the
    same mean in less memory. By default it is taken whole on an accelerator, and
    on a CPU in parts of `CPU_MICROBATCH`, or `CPU_MICROBATCH_OF_MANY`.
    """

    def with_nothing(params: PyTree, batch: PyTree) -> tuple[Array, tuple[Any, tuple]]:
        value, aux = loss(params, batch)
        return value, (aux, ())

    found = gradient_and_each(with_nothing, params, batch, axes, microbatch_size)
    return found[:2]


def gradient_and_each(
    loss: Callable[[PyTree, PyTree], tuple[Array, tuple[Any, PyTree]]],
    params: PyTree,
    batch: PyTree,
    axes: Axes,
    microbatch_size: int | None = None,
    like: PyTree = None,
) -> tuple[PyTree, Any, PyTree]:
    """As `gradient`, with something of each sample: (gradient, aux, each [N, ...]).

    `loss(params, batch)` gives (loss, (aux, each)); N are this device's samples. Where
    a leaf of `like`, or of `params`, is a `Split` the gradient is one too.
    """
    params = _varying(params, axes)
    # Traced once for all its uses.
    derive = jax.jit(jax.grad(loss, has_aux=True))
    if microbatch_size is not None:
        found = _accumulate(derive, params, batch, axes, microbatch_size)
    else:
        found = jax.lax.platform_dependent(
            params,
            batch,
            cpu=lambda p, b: _accumulate(derive, p, b, axes, _cpu_microbatch(b, axes)),
            default=derive,
        )
    grads, (aux, each) = found
    if not axes:
        return grads, aux, each
    grads, aux = _reduced(grads, params if like is None else like, aux, axes)
    return grads, aux, each


def _reduced(grads: PyTree, like: PyTree, aux: Any, axes: Axes) -> tuple[PyTree, Any]:
    """Means over the devices, of `Split`s their parts."""
    leaves, structure = jax.tree.flatten(grads, is_leaf=is_split)
    likes = structure.flatten_up_to(like)
    whole: dict[int, Array] = {}
    for place, (leaf, target) in enumerate(zip(leaves, likes, strict=True)):
        if isinstance(leaf, Split):  # summed where it was gathered
            leaves[place] = jax.tree.map(lambda x: x / size(axes), leaf)
        elif isinstance(target, Split):
            part = jax.lax.psum_scatter(
                leaf, axes, scatter_dimension=target.dimension, tiled=True
            )
            leaves[place] = dataclasses.replace(target, part=part / size(axes))
        else:
            whole[place] = leaf
    if _has_other_axes():  # a vector of all would have to be brought together first
        whole, aux = mean((whole, aux), axes)
    else:
        # One flat vector, one reduction: a collective costs more than its bytes.
        flat, unravel = ravel_pytree((whole, aux))
        whole, aux = unravel(jax.lax.pmean(flat, axes))
    for place, leaf in whole.items():
        leaves[place] = leaf
    return jax.tree.unflatten(structure, leaves), aux


def _cpu_microbatch(batch: PyTree, axes: Axes) -> int:
    """At most the constant; all samples where their number has no fitting divisor."""
    samples = jax.tree.leaves(batch)[0].shape[0]
    fewest = -(-samples // (CPU_MICROBATCH_OF_MANY if axes else CPU_MICROBATCH))
    fitting = (n for n in range(fewest, 4 * fewest) if samples % n == 0)
    return samples // next(fitting, 1)


def _has_other_axes() -> bool:
    """Whether parameters may lie in parts on an axis that is the compiler's."""
    mesh = jax.sharding.get_abstract_mesh()
    return any(mesh.shape[name] > 1 for name in mesh.auto_axes)


def _varying(tree: PyTree, axes: Axes) -> PyTree:
    return jax.lax.pcast(tree, axes, to="varying") if axes else tree


def _accumulate(
    derive: Callable[[PyTree, PyTree], PyTree],
    params: PyTree,
    batch: PyTree,
    axes: Axes,
    most: int,
) -> PyTree:
    """`derive` over the fewest equal parts of at most `most` samples.

    (mean gradient, (mean aux, what there is of each sample)).
    """
    samples = jax.tree.leaves(batch)[0].shape[0]
    fewest = -(-samples // most)
    parts = next(n for n in range(fewest, samples + 1) if samples % n == 0)
    if parts == 1:
        return derive(params, batch)
    split = jax.tree.map(lambda x: x.reshape(parts, -1, *x.shape[1:]), batch)
    shapes = jax.eval_shape(derive, params, jax.tree.map(lambda x: x[0], split))
    means = (shapes[0], shapes[1][0])
    zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), means)

    def add(sums: PyTree, part: PyTree) -> tuple[PyTree, PyTree]:
        grads, (aux, each) = derive(params, part)
        return jax.tree.map(jnp.add, sums, (grads, aux)), each

    sums, each = jax.lax.scan(add, _varying(zeros, axes), split)
    grads, aux = jax.tree.map(lambda x: x / parts, sums)
    each = jax.tree.map(lambda x: x.reshape(samples, *x.shape[2:]), each)
    return grads, (aux, each)
