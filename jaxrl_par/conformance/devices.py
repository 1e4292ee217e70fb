"""Trying a function on two devices, to see what it gives on each."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from jaxrl_par.types import Axes, PyTree

_AXES: Axes = ("data",)
# Compiling takes most of a check's time, and nothing runs for long.
quick_jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


def available() -> bool:
    """Whether there are two devices to try on."""
    return len(jax.local_devices()) >= 2


def on_two(
    function: Callable[..., PyTree], args: tuple[PyTree, ...], split: PyTree
) -> PyTree:
    """What `function(*args, axes)` gives on each of two devices: leaves [2, ...].

    `split` has the structure of `args`, or of their upper part: for each array the
    axis that is shared out, or -1 where every device gets the whole.
    """
    specs = jax.tree.map(
        lambda axis: P(*(None,) * axis, *_AXES) if axis >= 0 else P(), split
    )

    def run(*args: PyTree) -> Any:
        return jax.tree.map(lambda x: x[None], function(*args, _AXES))

    mesh = jax.make_mesh(
        (2,), _AXES, axis_types=(AxisType.Auto,), devices=jax.local_devices()[:2]
    )
    return quick_jit(
        jax.shard_map(
            run,
            mesh=mesh,
            in_specs=specs,
            out_specs=P(*_AXES),
            check_vma=False,  # as in a run
        )
    )(*args)
