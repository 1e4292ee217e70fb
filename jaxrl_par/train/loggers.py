"""Loggers: callbacks that hand a run's rows to a writer, and never wait for it."""

from __future__ import annotations

import os
import threading
import traceback
import warnings
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jaxrl_par import checks
from jaxrl_par.train import log_writers
from jaxrl_par.train.callbacks import Progress, Row
from jaxrl_par.train.evaluate import Evaluation
from jaxrl_par.train.run_directory import summarize

LOGGERS = ("tensorboard", "wandb", "mlflow")
# Rows that may wait: half a minute of the fastest run, about 20 MB.
CAPACITY = 16_384
# After a call that failed, doubled by every one that follows, 64 times at most: what
# fails may be slow at it, and prints.
PAUSE_SECONDS = 1.0


class Logger:
    """A callback that gives rows to `write`, in a thread of its own.

    `write(rows)` takes what came since its last call, oldest first: a metrics row for
    each update and a row for each evaluation (`evaluation/mean_return` and so on),
    dicts of Python numbers with "update" and "env_steps". `close()` is called after
    the last, in the same thread.

    Training never waits: a call only puts rows on a queue. If more than `capacity`
    wait, the oldest are dropped: a writer that recovers gets the latest, the last
    evaluation among them. If `write` raises, anything, its rows are lost, and the next
    wait a little. A UserWarning tells of the first trouble when training next calls,
    another of all lost rows at the end.

    It closes at the end of the run or of a `with` block, for a run that may raise, and
    waits at most `close_seconds`; a writer that has not ended then is left behind.
    """

    def __init__(
        self,
        write: Callable[[list[Row]], Any],
        close: Callable[[], Any] | None = None,
        *,
        name: str | None = None,
        capacity: int = CAPACITY,
        close_seconds: float = 10.0,
    ) -> None:
        if not callable(write):
            raise ValueError(f"write {write!r} must be a function of a list of rows")
        if close is not None and not callable(close):
            raise ValueError(f"close {close!r} must be a function, or None")
        checks.positive_int("capacity", capacity)
        checks.scalar("close_seconds", close_seconds)
        checks.between("close_seconds", close_seconds, 0, 1e6)
        self.name = name or getattr(write, "__qualname__", type(write).__name__)
        self._write, self._close = write, close
        self._seconds = float(close_seconds)
        self._evaluation: Evaluation | None = None  # the last
        self._change = threading.Condition()  # guards what follows
        self._queue: deque[Row] = deque(maxlen=capacity)
        self._writing = 0  # rows that `write` has now
        self._given = self._lost = self._failures = 0
        self._failing = 0  # failures since the last success
        self._trouble: str | None = None  # the first
        self._warned = self._closed = False
        self._thread = threading.Thread(
            target=self._work, name=f"logger {self.name}", daemon=True
        )
        self._thread.start()

    def __call__(self, progress: Progress) -> None:
        """Queue what is new; close at the end of the run."""
        rows = self._rows(progress)
        with self._change:
            self._given += len(rows)
            if self._closed:
                lost, trouble = len(rows), "it is closed"
            else:
                lost = len(self._queue) + len(rows) - (self._queue.maxlen or 0)
                trouble = "its queue is full: it is slower than training, or hangs"
                self._queue.extend(rows)
                self._change.notify()
            if lost > 0:
                self._lost += lost
                self._trouble = self._trouble or trouble
        if progress.finished:
            self.close()
        self._warn()

    def __enter__(self) -> Logger:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Write what is queued and close, within `close_seconds`. Once is enough."""
        with self._change:
            if self._closed:
                return
            self._closed = True
            self._change.notify()
        self._thread.join(self._seconds)
        with self._change:
            left = self._thread.is_alive()
            if left:
                self._lost += self._writing + len(self._queue)
                self._queue.clear()
            told = [f"{self._lost:,} of {self._given:,} rows lost"]
            if self._failures:
                told.append(f"{self._failures:,} calls failed")
        if left:
            told.append(f"not closed after {self._seconds:g} s, and left behind")
        self._warn()
        if self._lost or left:
            self._tell("; ".join(told))

    def _rows(self, progress: Progress) -> list[Row]:
        rows = [dict(row) for row in progress.rows]
        if rows:  # the only row whose time is known
            rows[-1]["seconds"] = progress.seconds
        evaluation = progress.evaluation
        # A stopped run's last call repeats an evaluation made just before.
        if evaluation is not None and evaluation is not self._evaluation:
            self._evaluation = evaluation
            row: Row = {"update": progress.update, "env_steps": progress.env_steps}
            for name, value in summarize(evaluation).items():
                if value is not None:
                    row[f"evaluation/{name}"] = value
            rows.append(row)
        return rows

    def _work(self) -> None:
        """The thread: write until closed and empty."""
        while True:
            with self._change:
                if self._failing:
                    pause = PAUSE_SECONDS * 2 ** min(self._failing - 1, 6)
                    self._change.wait_for(lambda: self._closed, pause)
                self._change.wait_for(lambda: self._queue or self._closed)
                rows = list(self._queue)
                self._queue.clear()
                self._writing = len(rows)
            if not rows:
                break
            self._attempt(self._write, rows)
        if self._close is not None:
            self._attempt(self._close)

    def _attempt(self, function: Callable[..., Any], *arguments: Any) -> None:
        trouble = None
        try:
            function(*arguments)
        except BaseException as error:  # SystemExit would end the thread
            trouble = traceback.format_exception_only(error)[0].strip()
        with self._change:
            self._failing = 0 if trouble is None else self._failing + 1
            if trouble is not None:
                self._failures += 1
                self._lost += self._writing
                self._trouble = self._trouble or trouble
            self._writing = 0

    def _warn(self) -> None:
        """Tell the first trouble, once; not from the thread, where none would see."""
        with self._change:
            due = self._trouble is not None and not self._warned
            self._warned = self._warned or due
        if due:
            self._tell(f"{self._trouble}; training does not stop for it")

    def _tell(self, text: str) -> None:
        warnings.warn(f"logger {self.name}: {text}", stacklevel=4)


def tensorboard(directory: str | Path, config: dict[str, Any] | None = None) -> Logger:
    """A logger to TensorBoard's event files in `directory`; `config` is shown as text.

    In the directory of an earlier run, its curves go on. Raises ImportError, as the
    others do, if its extra is not installed.
    """
    return _logger("tensorboard", log_writers.TensorBoard(directory, config))


def wandb(**init: Any) -> Logger:
    """A logger to Weights & Biases; the arguments are those of `wandb.init`.

    An earlier run goes on with its `id` and `resume="allow"`, or with `id_file`, a path
    where the id is kept. Raises ValueError if no key is known.
    """
    # Closing uploads the rest.
    return _logger("wandb", log_writers.Wandb(**init), close_seconds=30.0)


def mlflow(config: dict[str, Any] | None = None, **arguments: Any) -> Logger:
    """A logger to MLflow; `config` becomes the run's parameters.

    Arguments: `tracking_uri`, `experiment`, `run_name`. An earlier run goes on with its
    `run_id`, or with `id_file`, a path where the id is kept.
    """
    return _logger("mlflow", log_writers.Mlflow(config, **arguments))


def make_logger(kind: str, directory: str | Path, config: dict[str, Any]) -> Logger:
    """The logger `kind` of a run in `directory`; made again there, it goes on.

    TensorBoard's files are in `directory`/tensorboard. Weights & Biases obeys its
    variables (WANDB_PROJECT, WANDB_MODE), MLflow its own (MLFLOW_TRACKING_URI,
    MLFLOW_EXPERIMENT_NAME); else the project or experiment is jaxrl_par, and MLflow's
    store is in `directory`/mlflow. A run has the directory's name, and an id that is
    kept in it: another run may have the same name.
    """
    checks.known("logger", kind, LOGGERS)
    directory = Path(directory).absolute()  # opened later, perhaps from elsewhere
    home = directory / kind
    if kind == "tensorboard":
        return tensorboard(home, config)
    if kind == "wandb":
        return wandb(
            id_file=home / "run_id",
            dir=str(directory),
            name=directory.name,
            project=os.environ.get("WANDB_PROJECT", "jaxrl_par"),
            config=config,
        )
    package = log_writers.package("mlflow", "mlflow")
    local = f"sqlite:///{home / 'mlflow.db'}"
    return mlflow(
        config,
        tracking_uri=None if package.is_tracking_uri_set() else local,
        experiment=os.environ.get("MLFLOW_EXPERIMENT_NAME", "jaxrl_par"),
        run_name=directory.name,
        id_file=home / "run_id",
    )


def _logger(name: str, writer: Any, **settings: Any) -> Logger:
    return Logger(writer.write, writer.close, name=name, **settings)
