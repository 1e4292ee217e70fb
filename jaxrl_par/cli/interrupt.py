"""End a run in good order when the user or the system asks for it."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any

from jaxrl_par.train.callbacks import Progress, Stop


class StopOnSignal:
    """A callback that stops the run after an interrupt or a termination signal.

    So the chunk under way is finished and saved. Before the first update, and at the
    second signal, the process is left at once with status 128 + the signal's number;
    what is on the disk is whole at every instant. A thread does this, for the main
    one may be within XLA for long.
    """

    def __init__(self, leave: Callable[[int], Any] = os._exit) -> None:
        self._leave = leave
        self._first: int | None = None
        self._running = False
        self._before: dict[int, Any] = {}
        self._wakeup = -1

    def __enter__(self) -> StopOnSignal:
        if threading.current_thread() is threading.main_thread():
            reader, self._writer = socket.socketpair()
            self._writer.setblocking(False)
            self._wakeup = signal.set_wakeup_fd(self._writer.fileno())
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, lambda *_: None)
            threading.Thread(target=self._watch, args=(reader,), daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._before:
            signal.set_wakeup_fd(self._wakeup)
            self._writer.close()  # which ends the thread
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def __call__(self, progress: Progress) -> Stop | None:
        """Stop once a signal has come."""
        self._running = True
        return None if self._first is None else Stop(signal.Signals(self._first).name)

    def _watch(self, reader: socket.socket) -> None:
        """Handle each signal's number as it comes."""
        with reader:
            while numbers := reader.recv(1):
                self._handle(numbers[0])

    def _handle(self, number: int) -> None:
        name = signal.Signals(number).name
        if self._running and self._first is None:
            self._first = number
            _say(f"{name}: finishing what runs, then saving; again to leave at once")
            return
        # Whatever shows a live line has hidden the cursor.
        cursor = "\x1b[?25h" if sys.stdout.isatty() else ""
        kept = "what was saved is whole" if self._running else "nothing was trained"
        _say(f"{cursor}{name}: left at once; {kept}")
        self._leave(128 + number)


def _say(text: str) -> None:
    print(f"jaxrl-par: {text}", file=sys.stderr, flush=True)
