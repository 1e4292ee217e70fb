"""What `train` and `resume` share: run, show, and leave with the right status."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from typing import Annotated, Literal

import tyro

from jaxrl_par.cli.interrupt import StopOnSignal
from jaxrl_par.train.display import Display
from jaxrl_par.train.loggers import LOGGERS, make_logger
from jaxrl_par.train.loop import Trainer
from jaxrl_par.train.run_directory import RunDirectory

_kinds = Literal[LOGGERS]  # pyright: ignore[reportInvalidTypeForm] (names)
Log = Annotated[
    tuple[_kinds, ...],
    tyro.conf.arg(help="where rows go too; each is an extra of the package"),
]

# Why a run ended before its total: the exit status, as for a shell or a scheduler.
# 75 is EX_TEMPFAIL: try again, with `resume`.
STATUS = {
    None: 0,
    "stop_at_return": 0,
    "max_seconds": 75,
    "SIGINT": 130,
    "SIGTERM": 143,
}


def go(
    title: str,
    facts: dict[str, str],
    trainer: Trainer,
    directory: RunDirectory,
    log: Sequence[str] = (),
) -> int:
    """Train to the end, or to what stops it; the exit status."""
    # What orbax logs when it fails comes as an error too.
    logging.getLogger("absl").setLevel(logging.CRITICAL)
    description = trainer.full_description()
    display = Display()
    with contextlib.ExitStack() as stack:
        loggers = [
            stack.enter_context(make_logger(kind, directory.path, description))
            for kind in log
        ]
        stop = stack.enter_context(StopOnSignal())
        display.start(title, facts)
        with display:
            run = trainer.run([display, *loggers, stop], directory)
    display.result(run, directory.path)
    return STATUS[run.reason]
