"""Settings of a run, beside the algorithm's and the environment's."""

from __future__ import annotations

import dataclasses
from typing import Literal

import numpy as np

from jaxrl_par import checks
from jaxrl_par.envs.batched import ResetMode
from jaxrl_par.networks.partition import ZERO_STAGES, Partition
from jaxrl_par.train.evaluate import MAX_EPISODES

NonFinite = Literal["stop", "skip", "rollback"]
POLICIES: tuple[NonFinite, ...] = ("stop", "skip", "rollback")
_NUMBERS = ("chunk_seconds", "save_every", "max_seconds", "stop_at_return")


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """Settings of a run, beside the algorithm's and the environment's.

    `total_steps` (environment steps over all environments) is rounded up to whole
    updates. `eval_every` steps, at the next end of an update, `eval_episodes` greedy
    episodes are played (None: only at the end; `eval_episodes` 0: never). `reset`
    and `pool_size` are `BatchedEnv`'s. `data`, `model`, `zero` and `device` are those
    of `Plan`, `split` and `min_split` the `rules` and `min_size` of a `Partition`.

    `stop_at_return` ends a run at the first evaluation whose mean return reaches it
    (`eval_every` is then a twentieth of the run, unless given); `max_seconds` ends this
    process's part of it.
    `on_nonfinite` says what becomes of an update in which a reward, an observation,
    an action, a metric (a loss, a gradient's norm) or the algorithm's state is not
    finite: "stop" the run before it; "skip" it, and start the environments concerned
    anew; or "rollback" to the last checkpoint with another key, at most
    `max_rollbacks` times.

    Between calls of the compiled loop, `chunk_seconds` apart, callbacks are called.
    In a run with a directory the state is saved after a few seconds, and then every
    `save_every` (0: after every call), at a new best evaluation, and at the end. The
    newest `keep_checkpoints` are kept, and the best.
    """

    num_envs: int = 64
    total_steps: int = 500_000
    seed: int = 0
    eval_every: int | None = None
    eval_episodes: int = 100
    reset: ResetMode = "pool"
    pool_size: int = 8
    data: int | None = None
    model: int = 1
    zero: int = 0
    split: tuple[tuple[str, int | None], ...] = ()
    min_split: int = Partition.min_size
    device: str = "auto"
    stop_at_return: float | None = None
    max_seconds: float | None = None
    on_nonfinite: NonFinite = "stop"
    max_rollbacks: int = 3
    chunk_seconds: float = 0.5
    save_every: float = 60.0
    keep_checkpoints: int = 2

    def __post_init__(self) -> None:
        for name in ("num_envs", "pool_size", "max_rollbacks", "keep_checkpoints"):
            checks.positive_int(name, getattr(self, name))
        checks.positive_int("total_steps", self.total_steps, below=2**63)
        checks.optional_positive_int("eval_every", self.eval_every, below=2**63)
        if self.eval_episodes is False or self.eval_episodes != 0:
            checks.positive_int("eval_episodes", self.eval_episodes, MAX_EPISODES)
        checks.optional_positive_int("data", self.data)
        checks.positive_int("model", self.model)
        checks.member("zero", self.zero, ZERO_STAGES)
        # From JSON they come as lists.
        rules = [tuple(rule) for rule in checks.sequence("split", self.split)]
        object.__setattr__(self, "split", Partition(tuple(rules)).rules)
        Partition(min_size=self.min_split)
        checks.seed("seed", self.seed)
        checks.choice("on_nonfinite", self.on_nonfinite, POLICIES)
        self._check_times()
        for field in dataclasses.fields(self):  # NumPy's overflow, and are no JSON
            value = getattr(self, field.name)
            if isinstance(value, np.integer):
                object.__setattr__(self, field.name, int(value))
            elif field.name in _NUMBERS and value is not None:
                object.__setattr__(self, field.name, float(value))
        if self.eval_every is None and self.stop_at_return is not None:
            object.__setattr__(self, "eval_every", -(-self.total_steps // 20))

    def _check_times(self) -> None:
        for name in _NUMBERS:
            checks.scalar(name, getattr(self, name))
        checks.positive("chunk_seconds", self.chunk_seconds)
        checks.not_negative("save_every", self.save_every)
        if self.max_seconds is not None:
            checks.positive("max_seconds", self.max_seconds)
        if self.stop_at_return is not None:
            checks.finite("stop_at_return", self.stop_at_return)
            if self.eval_episodes == 0:
                raise ValueError(
                    f"stop_at_return {self.stop_at_return!r} needs evaluations: "
                    "eval_episodes 0 must be at least 1"
                )
