"""What runs on the host between calls of the compiled loop."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_par.train.evaluate import Evaluation
from jaxrl_par.types import PyTree, TrainState

Row = dict[str, float | int]


@dataclasses.dataclass(frozen=True)
class Stop:
    """What a callback returns to end the run after this call, and why."""

    reason: str
    evaluate: bool = False  # once more, at the end


# The answer of a user's callback.
STOP = Stop("a callback", evaluate=True)


@dataclasses.dataclass(frozen=True)
class Progress:
    """Where a run stands. Numbers are Python's; steps are environment steps."""

    update: int  # updates done
    env_steps: int
    frames: int  # env_steps times the action repeat
    total_steps: int
    seconds: float  # of training, compilation apart, over all processes of a run
    compile_seconds: float
    rows: list[Row]  # one for each update since the last call
    evaluation: Evaluation | None  # if one was made at this point
    finished: bool
    _state: TrainState = dataclasses.field(repr=False)
    reason: str | None = None  # why a run ended before its total
    rollbacks: int = 0  # so far, after numbers that were not finite

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


class TimeBudget:
    """A callback that stops a run `seconds` after it was made."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def __call__(self, progress: Progress) -> Stop | None:
        """Stop, once the time is up."""
        return Stop("max_seconds") if time.monotonic() >= self._end else None


@dataclasses.dataclass(frozen=True)
class ReturnReached:
    """A callback that stops a run once an evaluation's mean return is high enough."""

    target: float

    def __call__(self, progress: Progress) -> Stop | None:
        """Stop, at an evaluation that reaches the target."""
        evaluation = progress.evaluation
        if evaluation is not None and evaluation.mean_return >= self.target:
            return Stop("stop_at_return")
        return None
