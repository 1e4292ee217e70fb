"""End a run in good order when the user or the system asks for it."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

from jaxrl_par.train.callbacks import STOP, Progress


class StopOnSignal:
    """A callback that stops the run after an interrupt or a termination signal.

    So the results so far are evaluated and saved. Before the first update, and at
    the second signal, the run is left at once by KeyboardInterrupt.
    """

    def __init__(self) -> None:
        self.signalled = False
        self._running = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopOnSignal:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def __call__(self, progress: Progress) -> str | None:
        """STOP once a signal has come."""
        self._running = True
        return STOP if self.signalled else None

    def _handle(self, number: int, frame: FrameType | None) -> None:
        again, self.signalled = self.signalled, True
        if again or not self._running:
            raise KeyboardInterrupt
