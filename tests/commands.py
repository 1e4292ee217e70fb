"""Commands run in the tests' own process."""

from __future__ import annotations

import contextlib
import io

from jaxrl_par.cli import main

TRAIN = ["train", "ppo", "CartPole-v1"]


def run_here(*argv: str) -> tuple[int, str, str]:
    """Status, stdout and stderr of a command in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(argv)
    return status, out.getvalue(), err.getvalue()
