"""Reductions over a tuple of mesh axes; over an empty tuple they do nothing.

The only code that reduces over devices. `gradient` is the only place where
gradients are: parameters are first marked as varying over the axes, so that the
derivative stays local and the mean is taken once. Differentiating and then taking
`pmean` of replicated parameters is right or N times too large, depending on the
`check_vma` mode of the enclosing `shard_map`; this form is right under both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from jaxrl_par.types import Array, Axes, PyTree

# Activations of so many samples of a small network stay in a core's cache: 1.5
# times faster than a whole minibatch of 65,536 (two 64x64 networks, one core).
CPU_MICROBATCH = 2048
# Several CPU devices share one pool of threads. What is larger than this is cut up
# and handed to it, where it waits for the other devices' work: 5 % slower.
CPU_MICROBATCH_OF_MANY = 256


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
) -> tuple[PyTree, Any, PyTree]:
    """As `gradient`, with something of each sample: (gradient, aux, each [N, ...]).

    `loss(params, batch)` gives (loss, (aux, each)); N are this device's samples.
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
    # One flat vector, one reduction: a collective costs more than its bytes.
    flat, unravel = ravel_pytree((grads, aux))
    grads, aux = unravel(jax.lax.pmean(flat, axes))
    return grads, aux, each


def _cpu_microbatch(batch: PyTree, axes: Axes) -> int:
    """At most the constant; all samples where their number has no fitting divisor."""
    samples = jax.tree.leaves(batch)[0].shape[0]
    fewest = -(-samples // (CPU_MICROBATCH_OF_MANY if axes else CPU_MICROBATCH))
    fitting = (n for n in range(fewest, 4 * fewest) if samples % n == 0)
    return samples // next(fitting, 1)


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
