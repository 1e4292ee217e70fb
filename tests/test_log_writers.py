"""What TensorBoard, Weights & Biases and MLflow are given, and what they keep.

The last two are faked, and used for real where they are installed.
"""

from __future__ import annotations

import json
import math
import struct
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toys

import jaxrl_par as jp
from jaxrl_par.train import log_writers, loggers
from jaxrl_par.train.loggers import make_logger

CONFIG = {"algorithm": {"name": "tally", "rate": 0.1}, "num_envs": 4}
EVALUATION = jp.Evaluation(np.array([1.0, 3.0], "f"), np.array([10, 20], "i"), 1)


def progress(first: int, last: int, finished: bool = True, **changes: Any) -> Any:
    """A call after updates `first` to `last`, of 10 steps each."""
    rows = [
        {"update": n, "env_steps": 10 * n, "loss": math.nan if n == 2 else 1 / n}
        for n in range(first, last + 1)
    ]
    values = {
        "update": last, "env_steps": 10 * last, "frames": 10 * last, "total_steps": 99,
        "seconds": float(last), "compile_seconds": 2.5, "rows": rows,
        "evaluation": None, "finished": finished, "_state": None,
    }  # fmt: skip
    return jp.Progress(**(values | changes))


def test_thinned_rows_are_means_and_evaluations_stay():
    """7 rows to about 2, 4 at a time: means of rows 1 to 4, and of 5."""
    rows = [{"update": n, "env_steps": 10 * n, "x": n} for n in range(1, 6)]
    rows[0]["seldom"] = 7
    rows += [{"env_steps": 50, "evaluation/episodes": n} for n in (2, 3)]
    assert log_writers.thin(rows, 2) == [
        {"update": 4, "env_steps": 40, "x": 2.5, "seldom": 7.0},
        {"update": 5, "env_steps": 50, "x": 5.0},
        *rows[-2:],
    ]
    assert log_writers.thin(rows, 7) == rows


def test_an_unknown_kind_is_refused_with_those_there_are(tmp_path):
    with pytest.raises(ValueError, match="no logger 'tensorbord'; nearest: tensorboa"):
        make_logger("tensorbord", tmp_path, {})


@pytest.mark.parametrize("kind", loggers.LOGGERS)
def test_a_missing_package_is_named_with_its_extra(kind, tmp_path, monkeypatch):
    for module in list(sys.modules):
        if module.partition(".")[0] in ("tensorboardX", "wandb", "mlflow"):
            monkeypatch.setitem(sys.modules, module, None)
    for module in ("tensorboardX", "wandb", "mlflow"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf"pip install 'jaxrl_par\[{kind}\]'"):
        make_logger(kind, tmp_path, {})


def events(directory: Path) -> list[Any]:
    """Of all files, oldest first. A record: length (8), its check (4), data, check."""
    proto = pytest.importorskip("tensorboardX.proto.event_pb2")
    found = []
    for path in sorted(directory.iterdir()):
        data = path.read_bytes()
        while data:
            (length,) = struct.unpack("<Q", data[:8])
            found.append(proto.Event.FromString(data[12 : 12 + length]))
            data = data[16 + length :]
    return found


def scalars(directory: Path, tag: str) -> list[tuple[int, float]]:
    return [
        (event.step, value.simple_value)
        for event in events(directory)
        for value in event.summary.value
        if value.tag == tag
    ]


def test_tensorboard_has_every_value_over_steps_and_goes_on(tmp_path):
    """A second process resumes at update 3."""
    for call in (progress(1, 4), progress(3, 5, evaluation=EVALUATION)):
        make_logger("tensorboard", tmp_path, CONFIG)(call)
    directory = tmp_path / "tensorboard"
    assert len(list(directory.iterdir())) == 2
    losses = [(10 * n, np.float32(1 / n)) for n in (1, 2, 3, 4, 3, 4, 5)]
    losses[1] = (20, math.nan)
    np.testing.assert_equal(scalars(directory, "loss"), losses)
    assert scalars(directory, "evaluation/mean_return") == [(50, 2.0)]
    assert scalars(directory, "env_steps") == scalars(directory, "update") == []
    starts = [e.step for e in events(directory) if e.HasField("session_log")]
    assert starts == [10, 30]
    (text, _) = [
        value.tensor.string_val[0].decode()
        for event in events(directory)
        for value in event.summary.value
        if value.tag == "config/text_summary"
    ]
    assert json.loads(text) == CONFIG


def test_tensorboard_itself_reads_them_without_what_was_done_again(tmp_path):
    name = "tensorboard.backend.event_processing.event_accumulator"
    accumulator = pytest.importorskip(name).EventAccumulator(str(tmp_path))
    for first, last in ((1, 4), (3, 5)):
        loggers.tensorboard(tmp_path)(progress(first, last))
    accumulator.Reload()
    steps = [point.step for point in accumulator.Scalars("loss")]
    assert steps == [10, 20, 30, 40, 50]


def test_tensorboard_hides_what_a_run_that_goes_back_does_again(tmp_path):
    """Rows are in the file before it is closed."""
    writer = log_writers.TensorBoard(tmp_path)
    for first, last in ((1, 3), (2, 4)):
        writer.write(progress(first, last).rows)
    starts = [e.step for e in events(tmp_path) if e.HasField("session_log")]
    assert starts == [10, 20]
    assert len(scalars(tmp_path, "loss")) == 6
    writer.close()


def test_a_run_keeps_its_tensorboard_beside_the_rest(tmp_path):
    """The run wants an empty directory: nothing may be made before its first row."""
    logger = make_logger("tensorboard", tmp_path, CONFIG)
    run = jp.train(
        toys.Tally(), toys.Fate(), num_envs=4, total_steps=320, eval_episodes=0,
        out=tmp_path, callbacks=[logger],
    )  # fmt: skip
    steps = [step for step, _ in scalars(tmp_path / "tensorboard", "params")]
    assert steps == run.metrics["env_steps"].tolist()


def test_a_directory_that_cannot_be_is_told(tmp_path):
    (tmp_path / "tensorboard").write_text("")
    with pytest.warns(UserWarning) as caught:
        make_logger("tensorboard", tmp_path, {})(progress(1, 1))
    first, last = (str(warning.message) for warning in caught)
    assert first.startswith("logger tensorboard: NotADirectoryError: ")
    assert last == "logger tensorboard: 1 of 1 rows lost; 1 calls failed"


def fake_wandb(monkeypatch: Any) -> list[Any]:
    """What would be called of it."""
    calls: list[Any] = []
    run = types.SimpleNamespace(
        log=lambda row: calls.append(("log", row)),
        finish=lambda: calls.append("finish"),
        define_metric=lambda *a, **k: calls.append(("define_metric", a, k)),
    )
    module = types.ModuleType("wandb")

    def login(verify: bool) -> None:
        calls.append("login")
        raise LookupError("no key")

    def init(**arguments: Any) -> Any:
        calls.append(("init", arguments))
        return run

    monkeypatch.setattr(module, "Error", LookupError, raising=False)
    monkeypatch.setattr(module, "login", login, raising=False)
    monkeypatch.setattr(module, "init", init, raising=False)
    monkeypatch.setitem(sys.modules, "wandb", module)
    for name in ("WANDB_MODE", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    return calls


def test_wandb_is_called_over_steps_and_goes_on(tmp_path, monkeypatch):
    calls = fake_wandb(monkeypatch)
    monkeypatch.setenv("WANDB_MODE", "offline")
    for update in (1, 3):
        make_logger("wandb", tmp_path, CONFIG)(progress(update, update))
    (_, first), (_, second) = (call for call in calls if call[0] == "init")
    assert first == second
    kept = (tmp_path / "wandb" / "run_id").read_text().strip()
    assert first == {
        "reinit": "create_new", "dir": str(tmp_path), "name": tmp_path.name,
        "project": "jaxrl_par", "config": CONFIG, "id": kept, "resume": "allow",
    }  # fmt: skip
    row = {"update": 1, "env_steps": 10, "loss": 1.0, "seconds": 1.0}
    axis = ("define_metric", ("*",), {"step_metric": "env_steps"})
    assert calls[1:4] == [axis, ("log", row), "finish"]
    other = tmp_path / "elsewhere" / tmp_path.name
    make_logger("wandb", other, CONFIG)(progress(1, 1))
    assert (other / "wandb" / "run_id").read_text().strip() != kept


def test_wandb_without_a_key_is_refused_before_training(monkeypatch):
    assert fake_wandb(monkeypatch) is not None
    with pytest.raises(ValueError, match="logger wandb: no key"):
        loggers.wandb(project="p")
    loggers.wandb(mode="offline").close()


def fake_mlflow(monkeypatch: Any) -> list[Any]:
    """What would be called of it: names of methods and arguments."""
    calls: list[Any] = []

    class Client:
        def __init__(self, tracking_uri: str | None) -> None:
            calls.append(("client", tracking_uri))

        def __getattr__(self, name: str) -> Any:
            def call(*arguments: Any, **named: Any) -> Any:
                calls.append((name, *arguments, named))
                info = types.SimpleNamespace(run_id="run7")
                results = {"create_run": types.SimpleNamespace(info=info)}
                return results.get(name, "9" if name == "create_experiment" else None)

            return call

    module = types.ModuleType("mlflow")
    entities = types.SimpleNamespace(
        Metric=lambda name, value, time, step: (name, value, step),
        Param=lambda name, value: (name, value),
    )
    monkeypatch.setattr(module, "entities", entities, raising=False)
    monkeypatch.setattr(module, "MlflowClient", Client, raising=False)
    monkeypatch.setattr(module, "is_tracking_uri_set", lambda: False, raising=False)
    monkeypatch.setitem(sys.modules, "mlflow", module)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    return calls


def test_mlflow_is_called_over_steps_and_goes_on(tmp_path, monkeypatch):
    calls = fake_mlflow(monkeypatch)
    for update in (1, 3):
        make_logger("mlflow", tmp_path, CONFIG)(progress(update, update))
    params = [("algorithm.name", "tally"), ("algorithm.rate", "0.1"), ("num_envs", "4")]

    def metrics(update: int) -> list[tuple[str, float, int]]:
        values = {"loss": 1 / update, "seconds": float(update)}
        return [(name, value, 10 * update) for name, value in values.items()]

    store = f"sqlite:///{tmp_path / 'mlflow' / 'mlflow.db'}"
    assert calls == [
        ("client", store),
        ("get_experiment_by_name", "jaxrl_par", {}),
        ("create_experiment", "jaxrl_par", {}),
        ("create_run", "9", {"run_name": tmp_path.name}),
        ("log_batch", "run7", {"params": params}),
        ("log_batch", "run7", {"metrics": metrics(1)}),
        ("set_terminated", "run7", {}),
        ("client", store),
        ("update_run", "run7", {"status": "RUNNING"}),
        ("log_batch", "run7", {"metrics": metrics(3)}),
        ("set_terminated", "run7", {}),
    ]


def test_mlflow_takes_a_store_a_run_and_a_thousand_values_a_call(monkeypatch):
    calls = fake_mlflow(monkeypatch)
    rows = [dict.fromkeys(map(str, range(2500)), 1.0) | {"env_steps": 5}]
    writer = log_writers.Mlflow(tracking_uri="there", run_id="run8")
    writer.write(rows)
    assert calls[:2] == [
        ("client", "there"),
        ("update_run", "run8", {"status": "RUNNING"}),
    ]
    assert [len(call[2]["metrics"]) for call in calls[2:]] == [1000, 1000, 500]
    assert {call[1] for call in calls[1:]} == {"run8"}


@pytest.mark.filterwarnings("default")
def test_the_real_wandb_writes_and_closes(tmp_path, monkeypatch, recwarn):
    """Offline: there is no public reader, so only what is in the file as text."""
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    make_logger("wandb", tmp_path, CONFIG)(progress(1, 3, evaluation=EVALUATION))
    (path,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    data = path.read_bytes()
    for word in (b"loss", b"evaluation/mean_return", b"tally", tmp_path.name.encode()):
        assert word in data
    assert not [w for w in recwarn if "logger" in str(w.message)]


@pytest.mark.filterwarnings("default")
def test_the_real_mlflow_keeps_every_value_and_goes_on(tmp_path, monkeypatch, recwarn):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)  # it makes directories
    for first, last in ((1, 2), (3, 4)):
        make_logger("mlflow", tmp_path, CONFIG)(progress(first, last))
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path / 'mlflow' / 'mlflow.db'}")
    run = client.get_run((tmp_path / "mlflow" / "run_id").read_text().strip())
    assert (run.info.run_name, run.info.status) == (tmp_path.name, "FINISHED")
    params = {"algorithm.name": "tally", "algorithm.rate": "0.1", "num_envs": "4"}
    assert run.data.params == params
    history = client.get_metric_history(run.info.run_id, "loss")
    losses = sorted((point.step, point.value) for point in history)
    expected = [(10, 1.0), (20, math.nan), (30, 1 / 3), (40, 0.25)]
    np.testing.assert_equal(losses, expected)
    assert not [w for w in recwarn if "logger" in str(w.message)]
