"""Signals: the first ends the run in good order, the second at once."""

from __future__ import annotations

import queue
import signal
from typing import Any

import pytest

from jaxrl_par.cli.interrupt import StopOnSignal
from jaxrl_par.train.callbacks import Stop

PROGRESS: Any = None


def left(found: queue.Queue[int]) -> int:
    """The status with which the process would have been left."""
    return found.get(timeout=30)


def test_a_signal_stops_in_good_order_and_a_second_one_at_once(
    capfd: pytest.CaptureFixture[str],
) -> None:
    before, found = signal.getsignal(signal.SIGINT), queue.Queue[int]()
    with StopOnSignal(found.put) as stop:
        assert stop(PROGRESS) is None
        signal.raise_signal(signal.SIGINT)
        answer = None
        while answer is None:  # a thread takes it in
            answer = stop(PROGRESS)
        assert answer == Stop("SIGINT")
        assert found.empty()
        signal.raise_signal(signal.SIGTERM)
        assert left(found) == 143
    assert signal.getsignal(signal.SIGINT) is before
    said = capfd.readouterr().err
    assert "SIGINT: finishing what runs, then saving; again to leave at once" in said
    assert "SIGTERM: left at once; what was saved is whole" in said


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)]
)
def test_a_signal_before_the_first_update_leaves_at_once(
    number: signal.Signals, status: int
) -> None:
    found = queue.Queue[int]()
    with StopOnSignal(found.put):
        signal.raise_signal(number)
        assert left(found) == status
