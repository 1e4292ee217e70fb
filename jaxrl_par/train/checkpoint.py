"""One checkpoint: a directory that is whole or absent, and that is never executed.

    manifest.json   format, facts, the path, dtype and shape of every leaf, and the
                    size and SHA-256 of every file
    state/          the arrays, as orbax writes them

It is written under another name, flushed to the disk, and renamed. When it is read,
all files are compared with the manifest, and all leaves with what is expected, before
any array is. There are arrays and JSON, no pickle.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_par.train import files
from jaxrl_par.types import PyTree

# Of run directories and checkpoints.
FORMAT = 2
MANIFEST = "manifest.json"


def name_of(update: int) -> str:
    """The name of the checkpoint of an update."""
    return f"{update:010d}"


class DamagedError(ValueError):
    """A checkpoint that is not whole, or was not written by this program."""


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """A tree's leaves, copied to the host: what training does next changes nothing."""

    leaves: list[dict[str, Any]]  # path, dtype, shape
    arrays: list[np.ndarray]  # of typed keys, the words

    @classmethod
    def of(cls, tree: PyTree) -> Snapshot:
        """Waits until the tree is computed, and copies it."""
        found = jax.device_get([_plain(leaf) for leaf in jax.tree.leaves(tree)])
        return cls([_describe(*x) for x in _named(tree)], [np.array(x) for x in found])


def save(path: Path, snapshot: Snapshot, facts: Mapping[str, Any]) -> None:
    """Write a snapshot, and some numbers beside it, as the directory `path`.

    Replaces a checkpoint of that name. Raises OSError, leaving what was there, if the
    disk is full or cannot be written.
    """
    aside = path.with_name(f".{path.name}.partial")
    shutil.rmtree(aside, ignore_errors=True)
    try:
        aside.mkdir(parents=True)
        _write_arrays(aside / "state", snapshot.arrays)
        content = {
            "format": FORMAT,
            "facts": files.finite(dict(facts)),
            "leaves": snapshot.leaves,
            "files": {name: _digest(aside / name) for name in _files(aside)},
        }
        for name in _files(aside):
            files.flush(aside / name)
        files.write_json(aside / MANIFEST, content | {"sha256": _seal(content)})
        _publish(aside, path)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise


def read_manifest(path: Path) -> dict[str, Any]:
    """What a checkpoint holds; DamagedError, naming the file, if it is not whole."""
    where = path / MANIFEST
    try:
        data = where.read_bytes()
        if not data.endswith(b"}\n"):
            raise ValueError(f"it has {len(data):,} bytes, and no end")
        content = json.loads(data)
        if not isinstance(content, dict) or "format" not in content:
            raise ValueError("it has no format")
        if content["format"] != FORMAT:
            raise ValueError(
                f"format {content['format']!r} must be {FORMAT}: it was written by "
                "another version of jaxrl_par"
            )
        if content.pop("sha256", None) != _seal(content):
            raise ValueError("its own SHA-256 differs")
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DamagedError(f"checkpoint {where} cannot be used: {reason}") from None
    found = {name: path / name for name in _files(path) if name != MANIFEST}
    for name in sorted({*content["files"], *found}):
        if name not in content["files"]:
            rule = "it is not in the manifest"
        elif name not in found:
            rule = "it is not below the checkpoint"
        elif _digest(found[name]) != content["files"][name]:
            rule = "its size or SHA-256 differs from the manifest's"
        else:
            continue
        raise DamagedError(f"checkpoint file {path / name} cannot be used: {rule}")
    return content


def load(path: Path, like: PyTree) -> tuple[PyTree, dict[str, Any]]:
    """A tree with the structure, shapes and dtypes of `like`, and the facts.

    Leaves go where those of `like` say (their `sharding`). Raises DamagedError for
    what is not whole, and ValueError, naming the first leaf that differs with both
    shapes, for what does not fit; before any array is read.
    """
    content = read_manifest(path)
    expected = [_describe(*pair) for pair in _named(like)]
    _compare(path, content["leaves"], expected)
    arrays = _read_arrays(path / "state", expected)
    leaves = [_place(*pair) for pair in zip(arrays, jax.tree.leaves(like), strict=True)]
    return jax.tree.unflatten(jax.tree.structure(like), leaves), content["facts"]


def _compare(path: Path, saved: list[Any], expected: list[Any]) -> None:
    """Raise ValueError for the first leaf that differs."""
    ours, theirs = ({leaf["path"]: leaf for leaf in x} for x in (expected, saved))
    for name in [*ours, *theirs]:
        if (name in ours) != (name in theirs):
            where = "the checkpoint" if name in theirs else "the state to restore"
            raise ValueError(f"checkpoint {path}: leaf {name} is only in {where}")
        if ours[name] != theirs[name]:
            found, wanted = (
                f"{leaf['dtype']}{tuple(leaf['shape'])}"
                for leaf in (theirs[name], ours[name])
            )
            raise ValueError(
                f"checkpoint {path}: leaf {name} is {found}, expected {wanted}"
            )
    if list(ours) != list(theirs):
        raise ValueError(f"checkpoint {path}: its leaves are in another order")


def _write_arrays(path: Path, arrays: list[np.ndarray]) -> None:
    """Numbered in the order of the leaves; orbax takes none without an element."""
    numbered = {f"{i:05d}": array for i, array in enumerate(arrays) if array.size}
    try:
        _checkpointer().save(path.absolute(), numbered)
    except Exception as error:  # of several kinds, for one that the system gave
        raise OSError(
            f"checkpoint {path.parent}: cannot be written: {error}"
        ) from error


def _read_arrays(path: Path, leaves: list[Any]) -> list[np.ndarray]:
    try:
        arrays = _checkpointer().restore(path.absolute())
        return [
            _fit(arrays[f"{i:05d}"] if np.prod(leaf["shape"]) else None, leaf)
            for i, leaf in enumerate(leaves)
        ]
    except Exception as error:
        raise DamagedError(f"checkpoint {path} cannot be read: {error}") from error


def _fit(found: Any, leaf: Any) -> np.ndarray:
    """The array, if it is as the manifest says."""
    is_key = leaf["dtype"].startswith("key<")
    shape = tuple(leaf["shape"])
    dtype = np.dtype(np.uint32 if is_key else leaf["dtype"])
    array = np.zeros(shape, dtype) if found is None else found
    if (array.shape, array.dtype) != (shape, dtype):
        raise ValueError(f"{leaf['path']} is {array.dtype}{array.shape}")
    return array


def _checkpointer() -> Any:
    # Here, for it takes half a second to import.
    import orbax.checkpoint as orbax

    return orbax.Checkpointer(orbax.PyTreeCheckpointHandler())


def _publish(aside: Path, path: Path) -> None:
    """Rename, in the place of a checkpoint of that name if there is one."""
    old = path.with_name(f".{path.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if path.exists():
        path.rename(old)
    aside.rename(path)
    files.flush(path.parent)
    shutil.rmtree(old, ignore_errors=True)


def _files(path: Path) -> list[str]:
    """Names of all files below a directory, relative to it; links are files too."""
    found = (
        Path(folder) / name for folder, _, names in os.walk(path) for name in names
    )
    return sorted(str(file.relative_to(path)) for file in found)


def _digest(path: Path) -> list[Any]:
    """Size in bytes and SHA-256."""
    with open(path, "rb") as file:
        return [
            os.fstat(file.fileno()).st_size,
            hashlib.file_digest(file, "sha256").hexdigest(),
        ]


def _seal(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _named(tree: PyTree) -> list[tuple[str, Any]]:
    pairs = jax.tree_util.tree_flatten_with_path(tree)[0]
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in pairs]


def _describe(path: str, leaf: Any) -> dict[str, Any]:
    """Of a typed key: its generator, and the shape of its words."""
    shape = jax.eval_shape(_plain, leaf).shape
    return {"path": path, "dtype": str(leaf.dtype), "shape": list(shape)}


def _plain(leaf: Any) -> Any:
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def _place(array: np.ndarray, like: Any) -> jax.Array:
    """On the devices that `like` names, as a key where it is one."""
    leaf = jnp.asarray(array)
    if _is_key(like):
        leaf = jax.random.wrap_key_data(leaf, impl=_implementation(like))
    sharding = getattr(like, "sharding", None)
    return leaf if sharding is None else jax.device_put(leaf, sharding)


def _implementation(like: Any) -> str:
    """The random number generator whose keys have this dtype."""
    for name in ("threefry2x32", "rbg", "unsafe_rbg"):
        if jax.eval_shape(partial(jax.random.key, 0, impl=name)).dtype == like.dtype:
            return name
    raise ValueError(f"keys of {like.dtype} cannot be restored")


def _is_key(leaf: Any) -> bool:
    dtype = getattr(leaf, "dtype", None)
    return dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)
