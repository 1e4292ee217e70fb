"""Tracing a user's methods and watching them: signature, jit, purity."""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxrl_par.conformance.kinds import describe
from jaxrl_par.types import PyTree


@dataclasses.dataclass(frozen=True)
class Fixed:
    """An argument that is no array: it is passed on as it is."""

    value: Any


class Call:
    """One method of an object, called abstractly and watched meanwhile.

    `names` are the arguments with which it is called, for example "(key, state)".
    What it gets wrong is added to `problems`. With `traced`, the object's own leaves
    are traced too, as in a run. `keywords` are passed on as they are.
    """

    def __init__(
        self,
        owner: Any,
        method: str,
        names: str,
        problems: list[str],
        traced: bool = False,
        **keywords: Any,
    ) -> None:
        self.owner, self.method, self.names = owner, method, names
        self.problems, self.traced, self.keywords = problems, traced, keywords

    def __call__(self, *args: PyTree | Fixed) -> Any:
        """The result with arrays as ShapeDtypeStruct; None after an exception."""
        found = []
        function = getattr(self.owner, self.method)
        try:
            inspect.signature(function).bind(*args, **self.keywords)
        except TypeError as error:
            self._add(f"{error}; it is called as {self.method}{self.names}")
            return None
        call, arrays = self._of_arrays(args)

        def run(*arrays: PyTree) -> None:
            found.append(jax.tree.map(describe, call(*arrays)))

        before = snapshot(self.owner)
        try:
            jax.eval_shape(run, *arrays)
        except Exception as error:
            self._add(explain(error))
        self._restore(before)
        return found[0] if found else None

    def check_purity(self, *args: PyTree | Fixed) -> None:
        """Trace twice with the same arguments: the programs must be the same."""
        programs = []
        for _ in range(2):
            before = snapshot(self.owner)
            call, arrays = self._of_arrays(args)
            try:
                lowered = jax.jit(call).lower(*arrays)
            except Exception as error:
                self._add(explain(error))
                return
            finally:
                self._restore(before)
            programs.append(lowered.as_text())
        # A host callback's address is in the text, and differs.
        if programs[0] != programs[1] and "callback" not in programs[0]:
            self._add(
                "is not pure: two traces of the same call differ (NumPy's or Python's "
                "randomness, a clock, or state kept outside); draw from the key that "
                "is given, and keep what changes in the state"
            )

    def _of_arrays(self, args: Sequence[PyTree | Fixed]) -> tuple[Callable, list]:
        """The call as a function of arrays only, made anew, and the arrays."""
        arrays = [self.owner] if self.traced else []
        arrays += [arg for arg in args if not isinstance(arg, Fixed)]

        def call(*arrays: PyTree) -> Any:
            left = list(arrays)
            owner = left.pop(0) if self.traced else self.owner
            full = [a.value if isinstance(a, Fixed) else left.pop(0) for a in args]
            return getattr(owner, self.method)(*full, **self.keywords)

        return call, arrays

    def _restore(self, before: dict[str, Any]) -> None:
        changed = [k for k, v in snapshot(self.owner).items() if _differs(before, k, v)]
        if changed:
            rule = "it must be pure: keep what changes in the state"
            self._add(f"changes self.{', self.'.join(changed)}; {rule}")
            put_back(self.owner, before)

    def _add(self, text: str) -> None:
        self.problems.append(f"{self.method}: {text}")


def put_back(owner: Any, before: dict[str, Any]) -> None:
    """Give an object the attributes of a snapshot."""
    if any(_differs(before, k, v) for k, v in snapshot(owner).items()):
        vars(owner).clear()
        vars(owner).update({name: copy.copy(value) for name, value in before.items()})


def snapshot(owner: Any) -> dict[str, Any]:
    """Its attributes now; lists, dictionaries, sets and arrays are copied."""

    def keep(value: Any) -> Any:
        mutable = isinstance(value, list | dict | set | np.ndarray)
        return copy.copy(value) if mutable else value

    caches = {
        name
        for name in getattr(owner, "__dict__", {})
        if isinstance(getattr(type(owner), name, None), functools.cached_property)
    }
    fields = getattr(owner, "__dict__", {}).items()
    return {name: keep(value) for name, value in fields if name not in caches}


def _differs(before: dict[str, Any], name: str, after: Any) -> bool:
    if name not in before:
        return True
    old = before[name]
    if type(old) is not type(after):
        return True
    if isinstance(old, np.ndarray):
        return not np.array_equal(old, after)
    if isinstance(old, dict):
        old, after = [*old, *old.values()], [*after, *after.values()]
    if isinstance(old, list):
        pairs = zip(old, after, strict=False)
        return len(old) != len(after) or any(a is not b for a, b in pairs)
    return old != after if isinstance(old, set) else old is not after


def explain(error: Exception) -> str:
    """What an exception in a traced method means."""
    if "Legacy uint32 key" in str(error):
        return (
            "uses a raw uint32 key; keys are typed: split the key that is given, and "
            "make new ones with jax.random.key, not jax.random.PRNGKey"
        )
    if isinstance(
        error,
        jax.errors.ConcretizationTypeError
        | jax.errors.TracerArrayConversionError
        | jax.errors.TracerIntegerConversionError
        | jax.errors.NonConcreteBooleanIndexError,
    ):
        return (
            f"cannot be jitted, {short(error)}; values are traced: use jnp.where or "
            "jax.lax.cond in place of if, and jnp in place of np, float() and int()"
        )
    return f"raises {short(error)}"


def short(error: Exception) -> str:
    """The kind of an exception and its first line."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:200]}"
