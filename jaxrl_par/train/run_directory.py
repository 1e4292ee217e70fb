"""A run's directory, written as the run goes on.

    config.json          settings, versions, devices, commit; and all its processes
    metrics.jsonl        a row for each update, equal to the byte however often the
                         run was stopped and resumed
    timing.jsonl         seconds of training, a row for each call of the compiled loop
    evaluations.jsonl    a row for each evaluation, with every episode
    checkpoints/         training states (see `checkpoint`)
    summary.json         where the run stands, and the result
    curves.png           the learning curve, if an episode ended

Rows are only appended, and before the checkpoint that covers them; the other files
are whole at every instant. No file has a bare NaN: what is not finite is null.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

from jaxrl_par import checks
from jaxrl_par.train import files
from jaxrl_par.train.callbacks import Progress
from jaxrl_par.train.checkpoints import Checkpoints
from jaxrl_par.train.config import TrainConfig
from jaxrl_par.train.evaluate import Evaluation
from jaxrl_par.train.places import Lock, check_fresh
from jaxrl_par.train.provenance import commit
from jaxrl_par.train.run import CHECKPOINTS

_FILES = ("metrics.jsonl", "timing.jsonl", "evaluations.jsonl")
# Seconds to the first checkpoint, before which nothing can be gone on with.
_FIRST = 5.0
# Episodes of the mean return in the summary.
_RECENT_EPISODES = 100


class RunDirectory:
    """Writes `path`; `description` becomes `config.json`.

    Raises ValueError, by name, for a directory that is not empty or not writable.
    Nothing is created before the first update has been made. With the `lock` of a
    directory that is there, its run goes on (see `rewind`), and `description` has
    its earlier `processes`.
    """

    def __init__(
        self,
        path: str | Path,
        description: dict[str, Any],
        config: TrainConfig,
        lock: Lock | None = None,
    ) -> None:
        self.path = checks.path("out", path)
        self.checkpoints = Checkpoints(self.path / CHECKPOINTS, config.keep_checkpoints)
        self._description = description
        self._every = config.save_every
        self._lock = lock
        self._started = False
        self._saved_at = time.monotonic()
        self._saved: int | None = None  # update
        self._evaluated: int | None = None  # update
        self._evaluation: dict[str, Any] | None = None  # the last one's summary
        self._best: float | None = None
        self._recent: list[tuple[int, float]] = []  # episodes, mean return
        self._skipped = 0
        if lock is None:
            check_fresh(self.path)

    def append(self, progress: Progress) -> None:
        """Add the rows, and the evaluation, that are new."""
        # A stopped run's last call repeats an evaluation made just before.
        made = progress.evaluation if self._evaluated != progress.update else None
        if not progress.rows and made is None:
            return
        if not self._started:
            self._start(progress)
        files.append(self.path / "metrics.jsonl", progress.rows)
        self._note(progress.rows)
        point = {"update": progress.update, "env_steps": progress.env_steps}
        if progress.rows:
            timing = point | {"seconds": progress.seconds}
            files.append(self.path / "timing.jsonl", [timing])
        if made is not None:
            self._evaluated = progress.update
            row = point | summarize(made)
            self._evaluation = row
            if progress.reason is not None:
                row = row | {"at_stop": True}
            row = row | {
                "returns": made.returns.tolist(),
                "lengths": made.lengths.tolist(),
            }
            files.append(self.path / "evaluations.jsonl", [row])

    def save_due(self, progress: Progress) -> bool:
        """At the end, at a new best evaluation, and once in a while."""
        mean_return = _mean_return(progress)
        best = mean_return is not None and (
            self._best is None or mean_return > self._best
        )
        wait = self._every if self._saved is not None else min(self._every, _FIRST)
        late = time.monotonic() - self._saved_at >= wait
        return progress.finished or best or late

    def save(self, progress: Progress) -> None:
        """Copy the state now, and write it in a thread, once for an update."""
        if self._saved == progress.update:
            return
        if not self._started:
            self._start(progress)
        mean_return = _mean_return(progress)
        facts = {
            "update": progress.update,
            "env_steps": progress.env_steps,
            "seconds": progress.seconds,
            "rollbacks": progress.rollbacks,
            "mean_return": mean_return,
            "config": self._description,
        }
        summary = self._summary(progress)

        def before() -> None:
            for name in _FILES:
                if (self.path / name).exists():
                    files.flush(self.path / name)
            files.write_json(self.path / "summary.json", summary)

        self.checkpoints.save(progress._state, facts, before)
        self._saved, self._saved_at = progress.update, time.monotonic()
        if mean_return is not None:
            self._best = max(x for x in (mean_return, self._best) if x is not None)

    def finish(self, progress: Progress) -> None:
        """Wait for the last checkpoint; write the result."""
        self.checkpoints.wait()
        files.write_json(self.path / "summary.json", self._summary(progress))
        if self._recent:  # without an episode there is no curve
            # Here, for matplotlib takes a second to import.
            from jaxrl_par.train.plots import plot_runs

            plot_runs([self.path], self.path / "curves.png")

    def rewind(self, update: int, goes_on: bool) -> None:
        """Go back to the checkpoint of an update: what came later is removed.

        If the run goes on, so are evaluations that were made because it was stopped.
        Raises ValueError, before anything is touched, if a row is damaged or missing.
        """
        for name in _FILES:
            files.read_rows(self.path / name, ("update",))
        path = self.path / "metrics.jsonl"
        rows = files.read_rows(path, ("update", "episode_count"))
        kept = [row for row in rows if row["update"] <= update]
        if [row["update"] for row in kept] != list(range(1, update + 1)):
            raise ValueError(
                f"{path} is damaged: it must have one row for each of the {update:,} "
                f"updates of the checkpoint, and has {len(kept):,}"
            )
        self.checkpoints.rewind(update)
        for name in _FILES:
            files.keep_rows(
                self.path / name,
                lambda row: (
                    row["update"] <= update and not (goes_on and row.get("at_stop"))
                ),
            )
        self._saved = None if self.checkpoints.empty else update
        self._evaluated = update
        self._evaluation = None
        for row in files.read_rows(self.path / "evaluations.jsonl"):
            long = ("returns", "lengths")
            self._evaluation = {k: v for k, v in row.items() if k not in long}
        self._best = self.checkpoints.best_return()
        self._recent, self._skipped = [], 0
        self._note(kept)

    def close(self) -> None:
        """Wait for what is being written, and let others have the directory."""
        try:
            self.checkpoints.wait()
        finally:
            if self._lock is not None:
                self._lock.release()

    def _start(self, progress: Progress) -> None:
        """Create the directory, or add this process to its description."""
        if self._lock is None:
            check_fresh(self.path)
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = Lock(self.path)
        description = self._description | {"commit": commit()}
        names = ("total_steps", "devices", "versions", "commit")
        process = {"update": progress.update - len(progress.rows)}
        process |= {"started": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
        process |= {name: description.get(name) for name in names}
        description["processes"] = [*description.get("processes", ()), process]
        files.write_json(self.path / "config.json", description)
        self._started = True

    def _note(self, rows: list[Any]) -> None:
        """What the summary says of the rows."""
        # Finite rewards may have an infinite sum, which in a file is null.
        ended = [row for row in rows if row.get("episode_return") is not None]
        self._recent += [
            (int(row["episode_count"]), row["episode_return"]) for row in ended
        ]
        self._recent = self._recent[-_RECENT_EPISODES:]
        self._skipped += sum(bool(row.get("skipped")) for row in rows)

    def _summary(self, progress: Progress) -> dict[str, Any]:
        ended = "finished" if progress.reason is None else "stopped"
        return {
            "status": ended if progress.finished else "running",
            "reason": progress.reason,
            "env_steps": progress.env_steps,
            "frames": progress.frames,
            "updates": progress.update,
            "stopped_early": progress.finished
            and progress.env_steps < progress.total_steps,
            "skipped_updates": self._skipped,
            "rollbacks": progress.rollbacks,
            "seconds": progress.seconds,
            "compile_seconds": progress.compile_seconds,
            "steps_per_second": progress.env_steps / max(progress.seconds, 1e-9),
            "training_return": recent_return(self._recent),
            "evaluation": self._evaluation,
        }


def summarize(evaluation: Evaluation) -> dict[str, float | int | None]:
    """Mean, spread and bounds of an evaluation's episodes."""
    returns, lengths = evaluation.returns, evaluation.lengths
    result: dict[str, float | int | None] = {
        "episodes": int(returns.size),
        "unfinished": evaluation.unfinished,
    }
    if returns.size:
        result |= {
            "mean_return": float(returns.mean()),
            "std_return": float(returns.std()),
            "min_return": float(returns.min()),
            "max_return": float(returns.max()),
            "mean_length": float(lengths.mean()),
        }
    return result


def recent_return(rows: list[tuple[int, float]]) -> float | None:
    """Mean return of about the last 100 episodes; None if there was none."""
    total, weighted = 0, 0.0
    for count, mean in reversed(rows):
        total += count
        weighted += count * mean
        if total >= _RECENT_EPISODES:
            break
    return weighted / total if total else None


def _mean_return(progress: Progress) -> float | None:
    """Of the evaluation made at this point, if there is a finite one."""
    if progress.evaluation is None:
        return None
    value = progress.evaluation.mean_return
    return value if math.isfinite(value) else None
