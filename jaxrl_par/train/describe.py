"""Algorithms, networks and environments as JSON and back.

Only what this package defines is rebuilt, from its class's path and its fields;
nothing in a file is executed. What a user wrote is named, and must be passed again.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from typing import Any

import jax
import numpy as np

from jaxrl_par.envs.adapters.gymnax import Gymnax
from jaxrl_par.envs.registry import make

# Where agents and environments are made of; nothing else is looked up by a name.
_ROOMS = {"algorithms", "envs", "losses", "networks", "spaces"}
_PACKAGE = __name__.split(".")[0]


def describe(value: Any) -> Any:
    """A JSON value for a dataclass, a function, a tuple, an array or a number."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case tuple() | list():
            return [describe(item) for item in value]
        case np.ndarray() | jax.Array() | np.generic():
            array = np.asarray(value)
            if array.ndim:
                return {"array": array.tolist(), "dtype": array.dtype.name}
            return array.item()
        case Gymnax() if value.arguments is not None:
            leaves = [np.asarray(leaf).tolist() for leaf in jax.tree.leaves(value)]
            given = {name: describe(argument) for name, argument in value.arguments}
            given["max_steps"] = value.spec.max_steps
            return {"make": value.spec.name, "arguments": given, "leaves": leaves}
    if inspect.isfunction(value) or inspect.isclass(value):
        return {"path": f"{value.__module__}:{value.__qualname__}"}
    path = f"{type(value).__module__}:{type(value).__qualname__}"
    if dataclasses.is_dataclass(value):
        fields = [f.name for f in dataclasses.fields(value) if f.init]
        parts = {name: describe(getattr(value, name)) for name in fields}
        return {"type": path, "fields": parts}
    return {"type": path}


def rebuild(data: Any, what: str) -> Any:
    """The inverse of `describe`. Raises ValueError for what is not this package's."""
    if isinstance(data, list):
        return tuple(rebuild(item, what) for item in data)
    if not isinstance(data, dict):
        return data
    if "array" in data:
        return np.asarray(data["array"], data["dtype"])
    if "make" in data:
        given = {k: rebuild(v, f"{what}.{k}") for k, v in data["arguments"].items()}
        env = make(data["make"], **given)
        leaves, structure = jax.tree.flatten(env)
        values = [
            np.asarray(value, np.asarray(leaf).dtype)
            for value, leaf in zip(data["leaves"], leaves, strict=True)
        ]
        return jax.tree.unflatten(structure, values)
    found = _find(data.get("path") or data["type"], what)
    if "path" in data:
        return found
    return found(**{k: rebuild(v, f"{what}.{k}") for k, v in data["fields"].items()})


def _find(path: str, what: str) -> Any:
    module, _, name = path.partition(":")
    parts = module.split(".")
    if parts[0] == _PACKAGE and set(parts[1:2]) <= _ROOMS and name.isidentifier():
        found = getattr(importlib.import_module(module), name, None)
        usable = inspect.isfunction(found) or dataclasses.is_dataclass(found)
        if usable and getattr(found, "__module__", None) == module:
            return found
    raise ValueError(
        f"{what} {path} is not part of {_PACKAGE}: it can be loaded in Python alone, "
        f"with the object itself: {_PACKAGE}.load(directory, algorithm, env)"
    )
