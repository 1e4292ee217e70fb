"""Spaces: what an observation or an action may be. Immutable and hashable."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_FLOAT32 = np.dtype(np.float32)


@dataclasses.dataclass(frozen=True)
class Discrete:
    """The integers `start .. start + n - 1`, as a scalar int32."""

    n: int
    start: int = 0

    def __post_init__(self) -> None:
        if self.n < 1:
            raise ValueError(f"n {self.n} must be at least 1")

    @property
    def shape(self) -> tuple[int, ...]:
        return ()

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(np.int32)

    def sample(self, key: jax.Array) -> jax.Array:
        """A uniform draw, () int32."""
        return self.start + jax.random.randint(key, (), 0, self.n, jnp.int32)

    def contains(self, value: Any) -> bool:
        """Whether every element of `value` is in the space."""
        value = np.asarray(value)
        whole = np.issubdtype(value.dtype, np.integer)
        inside = (value >= self.start) & (value < self.start + self.n)
        return bool(whole and inside.all())


@dataclasses.dataclass(frozen=True)
class MultiDiscrete:
    """Several discrete choices at once: element i is in `0 .. nvec[i] - 1`, int32."""

    nvec: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "nvec", tuple(int(n) for n in self.nvec))
        if not self.nvec or min(self.nvec) < 1:
            raise ValueError(f"nvec {self.nvec} must have entries of at least 1")

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.nvec),)

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(np.int32)

    def sample(self, key: jax.Array) -> jax.Array:
        """A uniform draw, [len(nvec)] int32."""
        return jax.random.randint(key, self.shape, 0, jnp.array(self.nvec), jnp.int32)

    def contains(self, value: Any) -> bool:
        """Whether `value`, [..., len(nvec)], is in the space."""
        value = np.asarray(value)
        whole = np.issubdtype(value.dtype, np.integer)
        if not whole or value.shape[-1:] != self.shape:
            return False
        return bool(((value >= 0) & (value < np.array(self.nvec))).all())


def _bound(name: str, bound: Any, dtype: np.dtype) -> np.ndarray:
    """A bound of a Box in its dtype; refused where it is not one of its values."""
    given = np.asarray(bound)
    if np.issubdtype(dtype, np.floating):
        if np.isnan(given).any():
            raise ValueError(f"Box {name} {bound} must not be NaN")
        return given.astype(dtype)
    with np.errstate(invalid="ignore"):
        array = given.astype(dtype)
    if (array != given).any():
        raise ValueError(f"Box {name} {bound} must be a value of {dtype.name}")
    return array


@dataclasses.dataclass(frozen=True, eq=False)
class Box:
    """Arrays with elementwise bounds (which may be infinite).

    `low` and `high` broadcast to `shape`; `shape` defaults to theirs.
    """

    low: Any
    high: Any
    shape: tuple[int, ...] = None  # type: ignore[assignment]  # set below
    dtype: np.dtype = _FLOAT32

    def __post_init__(self) -> None:
        dtype = np.dtype(self.dtype)
        shape = self.shape
        if shape is None:
            shape = np.broadcast_shapes(np.shape(self.low), np.shape(self.high))
        shape = tuple(int(n) for n in shape)
        bounds = []
        for name, bound in (("low", self.low), ("high", self.high)):
            array = np.broadcast_to(_bound(name, bound, dtype), shape).copy()
            array.setflags(write=False)
            bounds.append(array)
            object.__setattr__(self, name, array)
        if (bounds[0] > bounds[1]).any():
            raise ValueError(f"Box low {self.low} must not exceed high {self.high}")
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "dtype", dtype)

    def _identity(self) -> tuple:
        return self.shape, self.dtype.str, self.low.tobytes(), self.high.tobytes()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Box) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def __repr__(self) -> str:
        def show(bound: np.ndarray) -> str:
            same = bound.size and (bound == bound.flat[0]).all()
            return str(bound.flat[0] if same else bound.tolist())

        low, high = show(self.low), show(self.high)
        return f"Box({low}, {high}, {self.shape}, {self.dtype.name})"

    @property
    def bounded(self) -> bool:
        """Whether every bound, and the span between them, is a finite number."""
        with np.errstate(over="ignore", invalid="ignore"):
            return bool(np.isfinite(self.high - self.low).all())

    def sample(self, key: jax.Array) -> jax.Array:
        """Uniform within finite bounds; standard normal, cut to the bounds, else."""
        if self.dtype == np.bool_:
            low, high = self.low.astype(np.int32), self.high.astype(np.int32)
            return jax.random.randint(key, self.shape, low, high + 1) > 0
        if np.issubdtype(self.dtype, np.integer):
            low, high = self.low.astype(np.int64), self.high.astype(np.int64)
            span = jnp.asarray(np.minimum(high - low + 1, 2**31 - 1), jnp.int32)
            draw = jax.random.randint(key, self.shape, 0, span, jnp.int32)
            return (draw + jnp.asarray(low, jnp.int32)).astype(self.dtype)
        with np.errstate(over="ignore"):  # a span beyond the largest float
            finite = np.isfinite(self.high - self.low)
        low, high = np.where(finite, self.low, 0), np.where(finite, self.high, 1)
        uniform = jax.random.uniform(key, self.shape, self.dtype, low, high)
        normal = jax.random.normal(jax.random.fold_in(key, 1), self.shape, self.dtype)
        return jnp.where(finite, uniform, jnp.clip(normal, self.low, self.high))

    def contains(self, value: Any) -> bool:
        """Whether `value`, [..., *shape], is within the bounds (and not NaN)."""
        value = np.asarray(value)
        if value.shape[value.ndim - len(self.shape) :] != self.shape:
            return False
        return bool(((value >= self.low) & (value <= self.high)).all())


@dataclasses.dataclass(frozen=True)
class Dict:
    """A dictionary of spaces. `action_mask` is the key of a mask of valid actions."""

    items: tuple[tuple[str, Any], ...]

    def __post_init__(self) -> None:
        parts = dict(self.items)
        # Sorted as JAX sorts a dictionary's keys: equal spaces are then equal.
        items = tuple((name, parts[name]) for name in sorted(parts))
        object.__setattr__(self, "items", items)

    @property
    def spaces(self) -> dict[str, Any]:
        return dict(self.items)

    def sample(self, key: jax.Array) -> dict[str, jax.Array]:
        """An independent draw of each part."""
        keys = jax.random.split(key, len(self.items))
        return {
            name: space.sample(k)
            for (name, space), k in zip(self.items, keys, strict=True)
        }

    def contains(self, value: Any) -> bool:
        """Whether `value` has exactly these keys, each within its space."""
        if not isinstance(value, Mapping) or set(value) != set(self.spaces):
            return False
        return all(space.contains(value[name]) for name, space in self.items)


Space = Discrete | MultiDiscrete | Box | Dict
ACTION_MASK = "action_mask"


def zeros(space: Space) -> Any:
    """A placeholder value with the space's structure, shape and dtype."""
    if isinstance(space, Dict):
        return {name: zeros(part) for name, part in space.items}
    return jnp.zeros(space.shape, space.dtype)


def flat_size(space: Space) -> int:
    """Numbers in one value of the space."""
    if isinstance(space, Dict):
        return sum(flat_size(part) for _, part in space.items)
    return math.prod(space.shape)


def from_unit(box: Box, unit: jax.Array) -> jax.Array:
    """Map [-1, 1] onto a bounded box: low + (unit + 1) / 2 * (high - low).

    The result never leaves the box, whatever the rounding; a unit value outside
    [-1, 1] gives the nearest bound.
    """
    low, high = (np.broadcast_to(bound, unit.shape) for bound in (box.low, box.high))
    scaled = low + (unit + 1) * 0.5 * (high - low)
    return jnp.clip(scaled, low, high).astype(box.dtype)


def to_unit(box: Box, value: jax.Array) -> jax.Array:
    """The inverse of `from_unit`: a bounded box onto [-1, 1]."""
    low, high = (np.broadcast_to(bound, value.shape) for bound in (box.low, box.high))
    return (value - low) / (high - low) * 2 - 1
