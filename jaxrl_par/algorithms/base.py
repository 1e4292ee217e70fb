"""`check_algorithm`: what an algorithm of your own gets wrong, all of it at once.

The protocol itself is `jaxrl_par.types.Algorithm`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np

from jaxrl_par.algorithms.method_check import Methods
from jaxrl_par.algorithms.run_check import run_problems
from jaxrl_par.conformance.calls import explain, short
from jaxrl_par.conformance.kinds import kind
from jaxrl_par.conformance.report import ConformanceError
from jaxrl_par.types import EnvSpec, Key

_METHODS = (
    "validate",
    "max_devices",
    "init",
    "initial_carry",
    "noise",
    "act",
    "update",
)
_MEMBERS = ("sharded", "rollout_length", *_METHODS)


class AlgorithmError(ConformanceError):
    """What an algorithm gets wrong; `problems` has one string for each."""


def check_algorithm(
    algorithm: Any, env: Any, num_envs: int = 4, key: Key | None = None
) -> None:
    """Raise AlgorithmError with every breach of the protocol that can be found.

    Checked: members, pytree, signatures, shapes, dtypes, structure, weak types,
    purity and jit of each method; that rates may be traced; that actions are within
    the environment's space, and of each environment alone; that an update stays
    finite; and, where there are two devices, that what is not split is the same on
    both and on one. Observations are drawn from `env.spec`: `env` itself never runs.
    Takes seconds (it compiles one update).
    """
    key = jax.random.key(0) if key is None else key
    name = getattr(algorithm, "__name__", type(algorithm).__name__)
    if isinstance(algorithm, type):
        raise AlgorithmError(name, [f"is a class; pass an object: {name}(...)"])
    missing = [m for m in _MEMBERS if m not in dir(algorithm)]
    if missing:
        rule = f"an algorithm has {', '.join(_MEMBERS)} (jaxrl_par.types.Algorithm)"
        raise AlgorithmError(name, [f"{m}: missing; {rule}" for m in missing])
    spec: EnvSpec = env.spec
    with jax.legacy_prng_key("error"):
        problems = _pytree_problems(algorithm)
        problems += problems or _size_problems(algorithm, spec, num_envs)
        problems += problems or Methods(algorithm, spec, num_envs).check()
        problems += problems or run_problems(algorithm, spec, num_envs, key)
    if problems:
        raise AlgorithmError(name, problems)


def _pytree_problems(algorithm: Any) -> list[str]:
    """No pytree; leaves that are no numbers; static fields that cannot be hashed."""
    leaves = jax.tree_util.tree_leaves_with_path(algorithm)
    if any(leaf is algorithm for _, leaf in leaves):
        return ["class: is no pytree; decorate it with @jaxrl_par.pytree"]
    problems = []
    for path, leaf in leaves:
        numeric = bool | int | float | np.ndarray | np.generic | jax.Array
        if not isinstance(leaf, numeric):
            field = jax.tree_util.keystr(path)
            rule = "leaves are rates: declare it with static(...)"
            problems.append(f"class: {field} is {kind(leaf)}; {rule}")
    fields = (
        dataclasses.fields(algorithm) if dataclasses.is_dataclass(algorithm) else ()
    )
    for field in fields:
        try:
            if field.metadata.get("static"):
                hash(getattr(algorithm, field.name))
        except TypeError as error:
            rule = "static fields must be hashable (tuples, not lists or arrays)"
            problems.append(f"class: .{field.name}, {error}; {rule}")
    return problems


def _size_problems(algorithm: Any, spec: EnvSpec, num_envs: int) -> list[str]:
    """What is read before anything is traced: names, sizes, validation."""
    problems = []
    sharded = algorithm.sharded
    if not isinstance(sharded, tuple) or not all(isinstance(s, str) for s in sharded):
        rule = 'it must be a tuple of names of fields, as ("running_return",)'
        problems.append(f"sharded: is {sharded!r}; {rule}")
    lengths = []
    try:  # as in a run, where rates are traced
        jax.eval_shape(lambda a: lengths.append(a.rollout_length), algorithm)
    except Exception as error:
        problems.append(f"rollout_length: {explain(error)}")
    for length in lengths:
        if isinstance(length, jax.Array):
            rule = "it is a leaf, and traced: declare it with static(...)"
            problems.append(f"rollout_length: {rule}")
        elif not isinstance(length, int) or length < 1:
            rule = "it must be a whole number of at least 1"
            problems.append(f"rollout_length: is {length!r}; {rule}")
    try:
        algorithm.validate(spec, num_envs)
    except ValueError as error:
        problems.append(
            f"validate: refuses {num_envs} environments of {spec.name}: {error}; check "
            "with an environment and a number that it can train on"
        )
    except Exception as error:
        problems.append(
            f"validate: raises {short(error)}; it is called as (spec, "
            "num_envs), and raises ValueError for what cannot work"
        )
    try:
        most = algorithm.max_devices(num_envs)
    except Exception as error:
        return [*problems, f"max_devices: raises {short(error)}"]
    if not isinstance(most, int) or most < 1 or num_envs % most:
        rule = f"it must be a whole number that divides num_envs, {num_envs}"
        problems.append(f"max_devices: is {most!r}; {rule}")
    return problems
