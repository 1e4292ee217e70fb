"""Comparing structures, shapes and dtypes, and saying what differs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from jaxrl_par.spaces import Dict, Space
from jaxrl_par.types import PyTree, strong


def describe(leaf: Any) -> Any:
    """An array as a ShapeDtypeStruct; anything else as it is."""
    if not isinstance(leaf, np.ndarray | np.generic | jax.Array):
        return leaf
    weak = bool(getattr(leaf, "weak_type", False))
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, weak_type=weak)


def change_problems(
    before: PyTree, after: PyTree, name: str, source: str, rule: str
) -> list[str]:
    """Where what comes out (`name`) is not of the kind that `source` gave."""
    old, new = jax.tree.structure(before), jax.tree.structure(after)
    if old != new:
        return [f"{name} is {new}, and {old} from {source}; {rule}"]
    problems = []
    leaves = jax.tree_util.tree_leaves_with_path(before)
    for (path, a), b in zip(leaves, jax.tree.leaves(after), strict=True):
        if kind(a) != kind(b):
            where = name + jax.tree_util.keystr(path)
            problems.append(
                f"{where} is {kind(b)}, and {kind(a)} from {source}; {rule}"
            )
    return problems


def settled(tree: PyTree) -> PyTree:
    """The abstract tree that the engine keeps: without weak types."""
    return jax.eval_shape(strong, jax.tree.map(_without_weak_type, tree))


def _without_weak_type(leaf: Any) -> Any:
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
    return leaf


def leaf_problems(tree: PyTree, name: str) -> list[str]:
    """Leaves that are no arrays, or of weak type."""
    problems = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        where = name + jax.tree_util.keystr(path)
        if isinstance(leaf, bool | int | float):
            problems.append(weak(where, leaf))
        elif not isinstance(leaf, jax.ShapeDtypeStruct):
            rule = "states are pytrees of arrays (see jaxrl_par.types.pytree)"
            problems.append(f"{where} is {kind(leaf)}, which is no array; {rule}")
        elif leaf.weak_type:
            problems.append(weak(where, leaf))
    return problems


def match_problems(space: Space, value: PyTree, name: str) -> list[str]:
    """Where an abstract value has not the structure, shape and dtype of its space."""
    if isinstance(space, Dict):
        keys = sorted(space.spaces)
        if not isinstance(value, Mapping) or sorted(value) != keys:
            found = (
                f"keys {sorted(value)}" if isinstance(value, Mapping) else kind(value)
            )
            return [f"{name} is {found}; the space is a Dict with keys {keys}"]
        parts = [
            match_problems(part, value[k], f"{name}[{k!r}]") for k, part in space.items
        ]
        return [problem for part in parts for problem in part]
    wanted = jax.ShapeDtypeStruct(space.shape, space.dtype)
    if not isinstance(value, jax.ShapeDtypeStruct):
        return [f"{name} is {kind(value)}; the space says {kind(wanted)}"]
    if (value.shape, value.dtype) != (wanted.shape, wanted.dtype):
        return [f"{name} is {kind(value)}; the space says {kind(wanted)}"]
    return [weak(name, value)] if value.weak_type else []


def weak(name: str, value: Any) -> str:
    """The problem of a weak type."""
    names = {bool: "bool_", int: "int32", float: "float32"}
    array = isinstance(value, jax.ShapeDtypeStruct)
    dtype = value.dtype.name if array else names[type(value)]
    return (
        f"{name} is {kind(value)}, a weak type, which may change at the first "
        f"operation and compile twice; write jnp.{dtype}(...)"
    )


def kind(value: Any) -> str:
    """What a value is, in words."""
    if isinstance(value, jax.ShapeDtypeStruct):
        return f"{value.dtype.name}{list(value.shape)}"
    if isinstance(value, bool | int | float):
        return f"a Python {type(value).__name__}"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return f"a {type(value).__name__}"
