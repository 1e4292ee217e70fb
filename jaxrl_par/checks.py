"""Checks of arguments: each error names the argument, its value and the rule.

Rates may be arrays (a batch of settings) or traced; these are checked elementwise,
or not at all.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.core import Tracer


def positive_int(name: str, value: Any, below: int = 2**31) -> None:
    """A whole number of at least 1 (a bool is none), and less than `below`."""
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or value < 1:
        raise ValueError(f"{name} {value!r} must be a whole number of at least 1")
    if value >= below:
        raise ValueError(f"{name} {value!r} must be less than {below:,}")


def optional_positive_int(name: str, value: Any, below: int = 2**31) -> None:
    """None, or a whole number of at least 1."""
    if value is not None:
        positive_int(name, value, below)


def seed(name: str, value: Any) -> None:
    """A whole number that makes a key."""
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or not 0 <= value < 2**32:
        raise ValueError(f"{name} {value!r} must be a whole number in [0, 2^32)")


def sequence(name: str, value: Any) -> Sequence[Any]:
    """A list or tuple, which is given back."""
    if not isinstance(value, list | tuple):
        raise ValueError(f"{name} {value!r} must be a list or a tuple")
    return value


def boolean(name: str, value: Any) -> None:
    """True or False, and nothing that stands for them."""
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"{name} {value!r} must be True or False")


def scalar(name: str, value: Any) -> None:
    """One number: not a list or an array of them."""
    if np.ndim(value) or isinstance(value, list | tuple):
        raise ValueError(f"{name} {value!r} must be one number")


def path(name: str, value: Any) -> Path:
    """A path, which is given back as one."""
    if not isinstance(value, str | Path):
        raise ValueError(f"{name} {value!r} must be a path")
    text = str(value)
    if "\0" in text or not text.isprintable():
        raise ValueError(f"{name} {value!r} must be a path of printable characters")
    return Path(value)


def choice(name: str, value: Any, choices: Sequence[str]) -> None:
    """One of a few words."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} {value!r} must be one of {', '.join(choices)}")


def member(name: str, value: Any, choices: Sequence[int]) -> None:
    """One of a few whole numbers."""
    if type(value) is not int or value not in choices:
        raise ValueError(
            f"{name} {value!r} must be one of {', '.join(map(str, choices))}"
        )


def finite(name: str, value: Any) -> None:
    """A finite number."""
    _check(name, value, "a finite number", lambda x: x == x)


def positive(name: str, value: Any) -> None:
    """A finite number above 0."""
    _check(name, value, "a finite number above 0", lambda x: x > 0)


def not_negative(name: str, value: Any) -> None:
    """A finite number of at least 0."""
    _check(name, value, "a finite number of at least 0", lambda x: x >= 0)


def between(name: str, value: Any, low: float, high: float) -> None:
    """A number in [low, high]."""
    _check(name, value, f"in [{low}, {high}]", lambda x: (x >= low) & (x <= high))


def below_one(name: str, value: Any) -> None:
    """A number in [0, 1)."""
    _check(name, value, "in [0, 1)", lambda x: (x >= 0) & (x < 1))


def below(name: str, value: Any, other_name: str, other: Any) -> None:
    """A number less than another argument's, as float32 too."""
    if isinstance(value, Tracer) or isinstance(other, Tracer):
        return
    if not (np.float32(value) < np.float32(other)).all():
        raise ValueError(f"{name} {value!r} must be less than {other_name} {other!r}")


def _check(name: str, value: Any, rule: str, test: Any) -> None:
    if isinstance(value, Tracer):
        return
    array = np.asarray(value)
    if not np.issubdtype(array.dtype, np.number) or not _passes(array, test):
        raise ValueError(f"{name} {value!r} must be {rule}")
    with np.errstate(over="ignore", under="ignore"):
        single = array.astype(np.float32)
    if not _passes(single, test):
        raise ValueError(f"{name} {value!r} must be {rule} as float32 too")


def _passes(array: np.ndarray, test: Any) -> bool:
    return bool((np.isfinite(array) & test(array)).all())


def nearest_divisors(value: int, of: int) -> list[int]:
    """The divisors of a number around a value: one below, one above (if there are)."""
    small = [n for n in range(1, math.isqrt(of) + 1) if of % n == 0]
    divisors = sorted({*small, *(of // n for n in small)})
    below = [n for n in divisors if n <= value][-1:]
    return below + [n for n in divisors if n > value][:1]


def nearest_multiples(value: int, of: int) -> list[int]:
    """The positive multiples of a number around a value, one below and one above."""
    below = value // of * of
    return [n for n in (below, below + of) if n]


def known(kind: str, name: str, names: Iterable[str]) -> None:
    """Raise ValueError, with the nearest known names, if `name` is not known."""
    names = list(names)
    if name not in names:
        near = difflib.get_close_matches(name, names, cutoff=0.4) or names
        raise ValueError(f"no {kind} {name!r}; nearest: {', '.join(near)}")


def environment(name: str, value: Any) -> None:
    """An object with `spec`, `reset` and `step`."""
    if isinstance(value, str):
        raise ValueError(
            f"{name} {value!r} must be an environment: use jaxrl_par.make({value!r})"
        )
    _members(name, value, ("spec", "reset", "step"), "jaxrl_par.check_env")


def algorithm(name: str, value: Any) -> None:
    """An object with the methods of an algorithm."""
    members = ("validate", "max_devices", "init", "act", "update")
    _members(name, value, members, "jaxrl_par.check_algorithm")


def _members(name: str, value: Any, members: Iterable[str], check: str) -> None:
    if isinstance(value, type):
        title = value.__name__
        raise ValueError(f"{name} {title} is a class; pass an object: {title}(...)")
    for member in members:
        # Not hasattr, which would call a property.
        if member not in dir(value):
            raise ValueError(f"{name} {value!r} must have `{member}` (see {check})")
    if any(leaf is value for leaf in jax.tree.leaves(value)):
        title = type(value).__name__
        raise ValueError(
            f"{name}: {title} is no pytree; decorate it with @jaxrl_par.pytree "
            f"(see {check})"
        )
