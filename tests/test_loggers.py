"""Loggers: what arrives, and that no trouble of theirs reaches training."""

from __future__ import annotations

import json
import math
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import toys

import jaxrl_par as jp
from jaxrl_par.train import loggers
from jaxrl_par.train.loggers import Logger

WAIT = 60.0  # seconds that no passing test takes
EVALUATION = jp.Evaluation(np.array([1.0, 3.0], "f"), np.array([10, 20], "i"), 1)
EVALUATED = {
    "evaluation/episodes": 2, "evaluation/unfinished": 1,
    "evaluation/mean_return": 2.0, "evaluation/std_return": 1.0,
    "evaluation/min_return": 1.0, "evaluation/max_return": 3.0,
    "evaluation/mean_length": 15.0,
}  # fmt: skip


def progress(first: int, last: int, finished: bool = False, **changes: Any) -> Any:
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


class Writer:
    """Writes to lists; each call waits for `gate`, tells `entered`, and may raise."""

    def __init__(self, errors: dict[int, BaseException] | None = None) -> None:
        self.calls: list[list[dict[str, float]]] = []
        self.errors = errors or {}
        self.gate, self.entered = threading.Event(), threading.Semaphore(0)
        self.gate.set()
        self.closed = 0

    def write(self, rows: list[dict[str, float]]) -> None:
        self.calls.append(rows)
        self.entered.release()
        assert self.gate.wait(WAIT)
        if len(self.calls) in self.errors:
            raise self.errors[len(self.calls)]

    def close(self) -> None:
        self.closed += 1

    def logger(self, **settings: Any) -> Logger:
        return Logger(self.write, self.close, name="mine", **settings)

    def updates(self) -> list[float]:
        return [row["update"] for rows in self.calls for row in rows]


@pytest.fixture(autouse=True)
def without_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loggers, "PAUSE_SECONDS", 0.0)


@pytest.fixture
def stuck() -> Iterator[Writer]:
    """A writer that hangs, until the test is over."""
    writer = Writer()
    writer.gate.clear()
    yield writer
    writer.gate.set()


def messages(caught: Any) -> list[str]:
    """The loggers' warnings, all of them users'."""
    ours = [w for w in caught if str(w.message).startswith("logger")]
    assert all(w.category is UserWarning for w in ours)
    return [str(w.message) for w in ours]


def test_rows_arrive_in_order_with_all_values():
    writer = Writer()
    logger = writer.logger()
    calls = [progress(1, 2), progress(3, 3, evaluation=EVALUATION)]
    calls += [progress(4, 4, finished=True)]
    before = json.dumps([call.rows for call in calls])
    for call in calls:
        assert logger(call) is None
    assert json.dumps([call.rows for call in calls]) == before
    rows = [row for call in writer.calls for row in call]
    expected = [
        {"update": 1, "env_steps": 10, "loss": 1.0},
        {"update": 2, "env_steps": 20, "loss": math.nan, "seconds": 2.0},
        {"update": 3, "env_steps": 30, "loss": 1 / 3, "seconds": 3.0},
        {"update": 3, "env_steps": 30, **EVALUATED},
        {"update": 4, "env_steps": 40, "loss": 0.25, "seconds": 4.0},
    ]
    np.testing.assert_equal(rows, expected)
    assert {type(value) for row in rows for value in row.values()} == {int, float}
    assert writer.closed == 1


def test_the_evaluation_that_a_stopped_run_repeats_is_one_row():
    writer = Writer()
    with writer.logger() as logger:
        logger(progress(1, 1, evaluation=EVALUATION))
        logger(progress(2, 1, finished=True, evaluation=EVALUATION))
    assert writer.updates() == [1, 1]


def test_an_evaluation_without_an_end_has_no_mean():
    writer = Writer()
    nothing = jp.Evaluation(np.zeros(0, "f"), np.zeros(0, "i"), 5)
    writer.logger()(progress(2, 1, finished=True, evaluation=nothing))
    expected = {"evaluation/episodes": 0, "evaluation/unfinished": 5}
    assert writer.calls == [[{"update": 1, "env_steps": 10, **expected}]]


def test_a_full_queue_drops_the_oldest_rows_and_counts_them(stuck):
    """1 row is taken; of 15 more, 10 wait and the oldest 5 are dropped."""
    logger = stuck.logger(capacity=10)
    logger(progress(1, 1))
    assert stuck.entered.acquire(timeout=WAIT)
    for first in (2, 5, 8):
        logger(progress(first, first + 2))
    with pytest.warns(UserWarning) as caught:
        logger(progress(11, 13))
    full = "logger mine: its queue is full: it is slower than training, or hangs"
    assert messages(caught) == [f"{full}; training does not stop for it"]
    logger(progress(14, 16))
    stuck.gate.set()
    with pytest.warns(UserWarning) as caught:
        logger.close()
    assert messages(caught) == ["logger mine: 5 of 16 rows lost"]
    assert stuck.updates() == [1, *range(7, 17)]


def test_one_call_may_bring_more_than_the_queue_holds():
    """The last 3 of 5, though the thread may not have run before."""
    writer = Writer()
    with pytest.warns(UserWarning) as caught:
        writer.logger(capacity=3)(progress(1, 5, finished=True))
    assert messages(caught)[-1] == "logger mine: 2 of 5 rows lost"
    assert writer.updates() == [3, 4, 5]


@pytest.mark.parametrize("failing", [(1,), (2, 4), (1, 2, 3, 4)])
def test_a_write_that_raises_loses_its_rows_and_is_told_twice(failing):
    """Calls of 2 rows, each written by itself."""
    writer = Writer({call: OSError(f"disk {call} full") for call in failing})
    logger = writer.logger()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for call in range(1, 5):
            logger(progress(2 * call - 1, 2 * call, finished=call == 4))
            assert writer.entered.acquire(timeout=WAIT)
        logger.close()
    assert messages(caught) == [
        f"logger mine: OSError: disk {failing[0]} full; training does not stop for it",
        f"logger mine: {2 * len(failing)} of 8 rows lost; {len(failing)} calls failed",
    ]
    assert writer.updates() == list(range(1, 9))
    assert writer.closed == 1


def test_a_failure_is_told_by_the_next_call_in_the_thread_that_trains(monkeypatch):
    told = []
    note = lambda text, **_: told.append((text, threading.current_thread()))  # noqa: E731
    monkeypatch.setattr(warnings, "warn", note)
    writer = Writer({1: OSError("first"), 2: OSError("second")})
    with writer.logger() as logger:
        for update in (1, 2):  # the second is taken once the first has failed
            logger(progress(update, update))
            assert writer.entered.acquire(timeout=WAIT)
        logger(progress(3, 3))
        assert len(told) == 1
        assert "first" in told[0][0]
    assert len(told) == 2
    assert {thread for _, thread in told} == {threading.current_thread()}


def test_after_a_failure_rows_wait_but_not_at_the_end(monkeypatch):
    monkeypatch.setattr(loggers, "PAUSE_SECONDS", 10 * WAIT)
    writer = Writer({1: OSError("busy")})
    logger = writer.logger()
    logger(progress(1, 1))
    assert writer.entered.acquire(timeout=WAIT)
    with pytest.warns(UserWarning) as caught:
        logger(progress(2, 2))
        assert not writer.entered.acquire(timeout=0.05)
        logger(progress(3, 3, finished=True))
    assert messages(caught)[-1] == "logger mine: 1 of 3 rows lost; 1 calls failed"
    assert [[row["update"] for row in rows] for rows in writer.calls] == [[1], [2, 3]]


def test_a_success_ends_the_pauses():
    writer = Writer({1: OSError(), 2: OSError()})
    logger = writer.logger()
    with pytest.warns(UserWarning):
        for update in (1, 2, 3, 4):
            logger(progress(update, update))
            assert writer.entered.acquire(timeout=WAIT)
        assert logger._failing == 0  # the third is over, the fourth is taken
        logger.close()


class Speechless(BaseException):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), Speechless()]
)
def test_whatever_a_write_raises_the_thread_goes_on(error):
    writer = Writer({1: error})
    logger = writer.logger()
    logger(progress(1, 1))
    assert writer.entered.acquire(timeout=WAIT)
    with pytest.warns(UserWarning) as caught:
        logger(progress(2, 3, finished=True))
    name = type(error).__name__
    assert any(name in message for message in messages(caught))
    assert messages(caught)[-1] == "logger mine: 1 of 3 rows lost; 1 calls failed"
    assert (writer.updates(), writer.closed) == ([1, 2, 3], 1)


def test_a_write_that_hangs_is_left_behind_and_ends_by_itself_later(stuck):
    logger = stuck.logger(close_seconds=0.05)
    logger(progress(1, 2))
    assert stuck.entered.acquire(timeout=WAIT)
    with pytest.warns(UserWarning) as caught:
        toys.within(WAIT, lambda: logger(progress(3, 3, finished=True)))
    left = "not closed after 0.05 s, and left behind"
    assert messages(caught) == [f"logger mine: 3 of 3 rows lost; {left}"]
    stuck.gate.set()
    logger._thread.join(WAIT)
    assert (stuck.updates(), stuck.closed) == ([1, 2], 1)
    assert logger._thread.daemon  # it would not hold the process


def test_a_close_that_hangs_or_raises_is_told():
    gate = threading.Event()
    with pytest.warns(UserWarning) as caught:
        Logger(len, lambda: gate.wait(WAIT), name="slow", close_seconds=0).close()
    left = "0 of 0 rows lost; not closed after 0 s, and left behind"
    assert messages(caught) == [f"logger slow: {left}"]
    gate.set()
    with pytest.warns(UserWarning, match="logger len: ZeroDivisionError: ") as caught:
        Logger(len, lambda: 1 / 0).close()
    assert len(caught) == 1


def test_closing_twice_or_without_a_row_is_harmless_and_later_rows_are_refused():
    writer = Writer()
    with writer.logger() as logger:
        logger.close()
    assert (writer.calls, writer.closed) == ([], 1)
    with pytest.warns(UserWarning, match="logger mine: it is closed; training"):
        logger(progress(1, 1))
    assert writer.calls == []


def test_a_run_that_raises_closes_it():
    writer = Writer()
    with pytest.raises(ZeroDivisionError), writer.logger() as logger:
        logger(progress(1, 3))
        raise ZeroDivisionError
    assert (writer.updates(), writer.closed) == ([1, 2, 3], 1)


@pytest.mark.parametrize(
    ("message", "arguments"),
    [
        ("write 3 must be a function", {"write": 3}),
        ("close 3 must be a function", {"close": 3}),
        ("capacity 0 must be", {"capacity": 0}),
        ("close_seconds -1 must be", {"close_seconds": -1}),
        ("close_seconds inf must be", {"close_seconds": math.inf}),
    ],
)
def test_what_cannot_work_is_refused(message, arguments):
    with pytest.raises(ValueError, match=message):
        Logger(**({"write": len} | arguments))


def trained(**settings: Any) -> jp.Run:
    return jp.train(
        toys.Tally(), toys.Fate(max_steps=5), num_envs=4, total_steps=320,
        eval_every=80, eval_episodes=2, **settings,
    )  # fmt: skip


def test_training_is_the_same_to_the_bit_whatever_its_loggers_do(stuck):
    raising = Writer(dict.fromkeys(range(100), RuntimeError("never")))
    logs = [stuck.logger(capacity=2, close_seconds=0.05), raising.logger()]
    alone = trained()
    with pytest.warns(UserWarning) as caught:
        run = toys.within(WAIT, lambda: trained(callbacks=logs))
    toys.assert_equal((run.state, run.metrics), (alone.state, alone.metrics))
    # 20 updates and 4 evaluations.
    lost = [text for text in messages(caught) if "24 of 24 rows lost" in text]
    assert len(lost) == 2
