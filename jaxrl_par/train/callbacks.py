"""What runs on the host between calls of the compiled loop."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_par.train.evaluate import Evaluation
from jaxrl_par.types import PyTree, TrainState

Row = dict[str, float | int]


# What a callback returns to end the run after this call.
STOP = "stop"


@dataclasses.dataclass(frozen=True)
class Progress:
    """Where a run stands. Numbers are Python's; steps are environment steps."""

    update: int  # updates done
    env_steps: int
    frames: int  # env_steps times the action repeat
    total_steps: int
    seconds: float  # of training, compilation apart
    compile_seconds: float
    rows: list[Row]  # one for each update since the last call
    evaluation: Evaluation | None  # if one was made at this point
    finished: bool
    _state: TrainState = dataclasses.field(repr=False)

    @property
    def metrics(self) -> Row:
        """The last update's metrics."""
        return self.rows[-1] if self.rows else {}

    @property
    def state(self) -> TrainState:
        """A copy of the training state: it stays readable as training goes on."""
        return _copy("state", self._state)

    @property
    def params(self) -> PyTree:
        """A copy of the parameters."""
        return _copy("params", self._state.algorithm.params)


def _copy(name: str, tree: PyTree) -> PyTree:
    if any(leaf.is_deleted() for leaf in jax.tree.leaves(tree)):
        raise RuntimeError(
            f"progress.{name} must be taken while the callback runs: training has "
            "gone on since, and used the arrays up"
        )
    return jax.tree.map(jnp.copy, tree)


Callback = Callable[[Progress], Any]
