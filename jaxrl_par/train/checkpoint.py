"""A training state on disk: arrays in one npz file, nothing that could be executed.

Written aside and renamed, so a file is whole or absent.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxrl_par.types import PyTree, is_key


def save(path: Path, tree: PyTree) -> None:
    """Write every leaf under its path in the tree; typed keys as their words."""
    arrays = {name: np.asarray(_plain(leaf)) for name, leaf in _named(tree)}
    aside = path.with_suffix(".partial")
    with open(aside, "wb") as file:
        np.savez(file, allow_pickle=False, **arrays)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)


def load(path: Path, like: PyTree) -> PyTree:
    """Read a tree with the structure, shapes and dtypes of `like`.

    Raises ValueError, before anything is used, naming the first leaf that differs.
    """
    try:
        # Opened here: NumPy leaves a file open that it cannot read.
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as members:
            arrays = dict(members)
    except Exception as error:
        raise ValueError(f"checkpoint {path} cannot be read: {error}") from error
    names = [name for name, _ in _named(like)]
    for name in [*names, *arrays]:
        if (name in arrays) != (name in names):
            where = "the checkpoint" if name in arrays else "the state to restore"
            raise ValueError(f"checkpoint {path}: leaf {name} is only in {where}")
    leaves = []
    for name, leaf in _named(like):
        expected, found = jax.eval_shape(_plain, leaf), arrays[name]
        if not isinstance(found, np.ndarray):
            raise ValueError(f"checkpoint {path}: leaf {name} is no array")
        if (expected.shape, expected.dtype) != (found.shape, found.dtype):
            raise ValueError(
                f"checkpoint {path}: leaf {name} is {found.dtype}{found.shape}, "
                f"expected {expected.dtype}{expected.shape}"
            )
        if jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaves.append(jax.random.wrap_key_data(jax.numpy.asarray(found)))
        else:
            leaves.append(jax.numpy.asarray(found))
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def _named(tree: PyTree) -> list[tuple[str, Any]]:
    pairs = jax.tree_util.tree_flatten_with_path(tree)[0]
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in pairs]


def _plain(leaf: Any) -> Any:
    return jax.random.key_data(leaf) if is_key(leaf) or _is_key_shape(leaf) else leaf


def _is_key_shape(leaf: Any) -> bool:
    return jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)
