"""Along which dimension a parameter is split over the mesh axis `model`.

Dense layers and convolutions of the built-in networks are split in turns by their
outputs and by their inputs, so that between the two of a pair nothing is exchanged
(Shoeybi et al. 2019, section 3). Of any other large parameter it is the largest
dimension that divides. An optimiser's moments lie as their parameters do, as their
paths end alike.
"""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any

import jax

from jaxrl_par import checks

# 1: the optimiser's moments are split too, 3: and the parameters, over `data`.
ZERO_STAGES = (0, 1, 3)
# Flax's names, and the dimension from the end: -1 are outputs, -2 inputs.
_BUILT_IN = (
    (r"(Dense|Conv)_\d*[02468]/kernel$", -1),
    (r"(Dense|Conv)_\d*[13579]/kernel$", -2),
)


@dataclasses.dataclass(frozen=True)
class Partition:
    """How parameters are split.

    Each of `rules` is (a regular expression, a dimension or None). Of a parameter whose
    path, such as "actor_torso/Dense_0/kernel", has a match the dimension is split, or
    with None nothing; the first rule that matches holds. What has fewer than
    `min_size` elements, and no rule, stays whole.
    """

    rules: tuple[tuple[str, int | None], ...] = ()
    min_size: int = 2**14

    def __post_init__(self) -> None:
        checks.positive_int("min_split", self.min_size)
        for rule in self.rules:
            try:
                pattern, dimension = rule
                re.compile(pattern)
                fits = dimension is None or type(dimension) is int
            except (TypeError, ValueError, re.error):
                fits = False
            if not fits:
                raise ValueError(
                    f"split rule {rule!r} must be a pair of a regular expression and "
                    "a dimension (or None)"
                )

    def dimension(self, path: str, shape: tuple[int, ...], parts: int) -> int | None:
        """The dimension of a parameter to split into so many parts, from 0; or None.

        Raises ValueError if a rule names one that is not there or does not divide.
        """
        for pattern, dimension in self.rules:
            if re.search(pattern, path):
                if dimension is None:
                    return None
                if not -len(shape) <= dimension < len(shape):
                    raise ValueError(
                        f"split rule {pattern!r}: {path} of shape {shape} has no "
                        f"dimension {dimension}"
                    )
                if shape[dimension] % parts:
                    raise ValueError(
                        f"split rule {pattern!r}: dimension {dimension} of {path}, of "
                        f"shape {shape}, must divide by model {parts}"
                    )
                return dimension % len(shape)
        if math.prod(shape) < self.min_size:
            return None
        for pattern, dimension in _BUILT_IN:
            if re.search(pattern, path) and shape[dimension] % parts == 0:
                return dimension % len(shape)
        return largest_dimension(shape, parts)


def largest_dimension(shape: tuple[int, ...], parts: int) -> int | None:
    """The largest dimension that divides into so many parts, the first of equals."""
    sizes = [
        (size, -place)
        for place, size in enumerate(shape)
        if size % parts == 0 and size > 1
    ]
    return -max(sizes)[1] if sizes else None


def path_of(keys: tuple[Any, ...]) -> str:
    """A path in a tree, as in "params/Dense_0/kernel"."""
    return jax.tree_util.keystr(keys, simple=True, separator="/")
