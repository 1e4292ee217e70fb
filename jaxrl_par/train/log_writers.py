"""What writes a run's rows with TensorBoard, Weights & Biases and MLflow.

Each imports its package when it is made, so that a missing one is known before
training, and opens its files or connection at the first rows: that may take long, and
a run's directory may not exist before. The x axis is env_steps. Values that are not
finite go through; only MLflow makes infinity the largest float64.
"""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import json
import math
import os
import secrets
import textwrap
import time
from pathlib import Path
from typing import Any

from jaxrl_par.train.callbacks import Row

# Points of one call (there are two a second), for those that keep a server: of every
# row, MLflow would take most of a core, and Weights & Biases has limits.
MOST_POINTS = 8
_AXES = ("update", "env_steps")
_EVALUATED = "evaluation/episodes"  # in the row of every evaluation
_MLFLOW_BATCH = {"metrics": 1000, "params": 100}  # what MLflow takes in one call


class TensorBoard:
    """Event files in `directory`: every row, each value a scalar.

    A later run in the same directory goes on. Where steps go back, as in a run resumed
    from a checkpoint, TensorBoard hides what was written of them before.
    """

    def __init__(
        self, directory: str | Path, config: dict[str, Any] | None = None
    ) -> None:
        # One record for a row, written here: `SummaryWriter` makes one for each
        # value, 18 times slower, in a thread that hides errors such as a full disk.
        self._files = package("tensorboardX.event_file_writer", "tensorboard")
        self._event = package("tensorboardX.proto.event_pb2", "tensorboard")
        self._summary = package("tensorboardX.summary", "tensorboard")
        self._directory = str(directory)
        self._config = config
        self._writer: Any = None
        self._step = math.inf  # of the last row

    def write(self, rows: list[Row]) -> None:
        """Write and flush the rows."""
        writer = self._writer = self._writer or self._open()
        value, log = self._summary.Summary.Value, self._event.SessionLog
        for row in rows:
            step = int(row["env_steps"])
            if step < self._step:
                self._add(writer, step=step, session_log=log(status=log.START))
            self._step = step
            values = [value(tag=k, simple_value=v) for k, v in _values(row)]
            self._add(writer, step=step, summary=self._summary.Summary(value=values))
        writer.flush()

    def close(self) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()

    def _open(self) -> Any:
        self._files.directory_check(self._directory)
        # The package names files by the second, and would overwrite one.
        path = os.path.join(self._directory, "events")
        writer = self._files.EventsWriter(path, f".{time.time_ns()}")
        if self._config is not None:
            text = json.dumps(self._config, indent=2, default=str)
            code = textwrap.indent(text, "    ")  # to Markdown
            self._add(writer, summary=self._summary.text("config", code))
        return writer

    def _add(self, writer: Any, **content: Any) -> None:
        writer.write_event(self._event.Event(wall_time=time.time(), **content))


class Wandb:
    """A run of Weights & Biases; `init` are the arguments of `wandb.init`.

    With `id_file`, the run's id is kept there, and a later run goes on with it.
    """

    def __init__(self, id_file: str | Path | None = None, **init: Any) -> None:
        self._package = package("wandb", "wandb")
        self._id_file = id_file
        # Not the run that the process may have already, which is its owner's to end.
        self._init = {"reinit": "create_new"} | init
        self._run: Any = None
        mode = init.get("mode") or os.environ.get("WANDB_MODE") or "online"
        if mode == "online":
            try:  # ask for a missing key here, not while training
                self._package.login(verify=False)
            except self._package.Error as error:
                raise ValueError(f"logger wandb: {error}") from error

    def write(self, rows: list[Row]) -> None:
        """Log the rows, thinned."""
        run = self._run = self._run or self._open()
        for row in thin(rows, MOST_POINTS):
            run.log(row)

    def close(self) -> None:
        """Finish the run."""
        if self._run is not None:
            self._run.finish()

    def _open(self) -> Any:
        init = self._init
        if self._id_file is not None:
            kept = _read(self._id_file) or _keep(self._id_file, secrets.token_hex(4))
            init = init | {"id": kept, "resume": "allow"}
        run = self._package.init(**init)
        # Not `step`, which must not go back as a run resumed from a checkpoint does.
        run.define_metric("*", step_metric="env_steps")
        return run


@dataclasses.dataclass
class Mlflow:
    """A run of MLflow: `run_id`, the one that `id_file` names, or a new one.

    A new one is named `run_name`, in `experiment`, has the config as parameters
    (nested names joined by dots), and its id is kept in `id_file`.
    """

    config: dict[str, Any] | None = None
    tracking_uri: str | None = None
    experiment: str = "jaxrl_par"
    run_name: str | None = None
    run_id: str | None = None
    id_file: str | Path | None = None

    def __post_init__(self) -> None:
        self._package = package("mlflow", "mlflow")
        self._client: Any = None

    def write(self, rows: list[Row]) -> None:
        """Log the rows, thinned."""
        if self._client is None:
            self._open()
        metric, now = self._package.entities.Metric, int(1000 * time.time())
        points = [
            metric(name, float(value), now, int(row["env_steps"]))
            for row in thin(rows, MOST_POINTS)
            for name, value in _values(row)
        ]
        self._log("metrics", points)

    def close(self) -> None:
        """Mark the run as finished."""
        if self._client is not None:
            self._client.set_terminated(self.run_id)

    def _open(self) -> None:
        if self.id_file is not None:  # for a store beside it
            Path(self.id_file).parent.mkdir(parents=True, exist_ok=True)
            self.run_id = self.run_id or _read(self.id_file)
        client = self._package.MlflowClient(tracking_uri=self.tracking_uri)
        if self.run_id:
            client.update_run(self.run_id, status="RUNNING")
            self._client = client
            return
        found = client.get_experiment_by_name(self.experiment)
        where = found.experiment_id if found else None
        where = where or client.create_experiment(self.experiment)
        run = client.create_run(where, run_name=self.run_name)
        self.run_id, self._client = run.info.run_id, client
        if self.id_file is not None:
            _keep(self.id_file, run.info.run_id)
        param, config = self._package.entities.Param, flat(self.config or {})
        self._log("params", [param(name, str(value)) for name, value in config.items()])

    def _log(self, kind: str, entities: list[Any]) -> None:
        most = _MLFLOW_BATCH[kind]
        for i in range(0, len(entities), most):
            self._client.log_batch(self.run_id, **{kind: entities[i : i + most]})


def package(name: str, extra: str) -> Any:
    """The module; ImportError, naming the extra, if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            f"logger {extra}: {error}: pip install 'jaxrl_par[{extra}]'"
        ) from error


def thin(rows: list[Row], most: int) -> list[Row]:
    """About `most` means of consecutive rows, and every evaluation, in order.

    A value's mean is over the rows that have it; counts of steps are the last row's.
    """
    size = -(-len(rows) // most)
    result: list[Row] = []
    for evaluated, group in itertools.groupby(rows, lambda row: _EVALUATED in row):
        block = list(group)
        length = 1 if evaluated else size
        result += [_mean(block[i : i + length]) for i in range(0, len(block), length)]
    return result


def _mean(rows: list[Row]) -> Row:
    columns: dict[str, list[float]] = {}
    for row in rows:
        for name, value in row.items():
            columns.setdefault(name, []).append(value)
    counts = {k: v for k, v in rows[-1].items() if k in (*_AXES, "frames")}
    return {k: sum(column) / len(column) for k, column in columns.items()} | counts


def _values(row: Row) -> list[tuple[str, float | int]]:
    return [(name, value) for name, value in row.items() if name not in _AXES]


def flat(tree: dict[str, Any], above: str = "") -> dict[str, Any]:
    """A nested dict as one level, names joined by dots."""
    result: dict[str, Any] = {}
    for name, value in tree.items():
        inner = isinstance(value, dict)
        result |= flat(value, f"{above}{name}.") if inner else {above + name: value}
    return result


def _read(path: str | Path) -> str | None:
    return Path(path).read_text().strip() if Path(path).exists() else None


def _keep(path: str | Path, text: str) -> str:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text + "\n")
    return text
