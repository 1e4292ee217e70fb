"""Signals to a program that trains: save first, and then do as it was told."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any

from jaxrl_par.train.callbacks import Progress, Stop

_DEFAULTS = (signal.default_int_handler, signal.SIG_DFL)


class SaveOnSignal:
    """A callback that ends and saves a run after SIGINT or SIGTERM.

    Then, and at once before the first update and at a second signal, it raises what
    the signal means: KeyboardInterrupt, or SystemExit(143). Signals for which the
    program has handlers of its own, and threads but the main one, are left alone.
    """

    def __init__(self) -> None:
        self._first: int | None = None
        self._running = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> SaveOnSignal:
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) in _DEFAULTS:
                try:
                    self._before[number] = signal.signal(number, self._handle)
                except ValueError:  # not the main thread
                    return self
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._first is not None and kind is None:
            _raise(self._first)

    def __call__(self, progress: Progress) -> Stop | None:
        """Stop once a signal has come."""
        self._running = True
        return None if self._first is None else Stop(signal.Signals(self._first).name)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        again, self._first = self._first is not None, number
        if again or not self._running:
            _raise(number)


def _raise(number: int) -> None:
    raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)
