"""`jaxrl-par plot RUN [RUN ...]`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from jaxrl_par.cli import flags
from jaxrl_par.train.plots import check_picture, plot_runs


@dataclasses.dataclass(frozen=True)
class Arguments:
    """What `plot` takes."""

    runs: Annotated[
        tuple[Path, ...],
        tyro.conf.Positional,
        tyro.conf.arg(metavar="RUN ...", help="run directories"),
    ]
    out: Annotated[Path, tyro.conf.arg(help="the picture: .png, .svg or .pdf")] = Path(
        "curves.png"
    )


def run(argv: Sequence[str]) -> int:
    """Draw; returns the exit status."""
    given: Arguments = flags.parse(
        Arguments,
        argv,
        "jaxrl-par plot",
        "Draw returns over environment steps. Runs that differ only in their seed "
        "become one curve: the interquartile mean (with fewer than four, the mean) "
        "and its 95 % bootstrap interval.",
    )
    if not given.runs:
        raise ValueError("plot takes one run directory, or more")
    curves = plot_runs(given.runs, check_picture(given.out))
    for curve in curves:
        print(f"{curve.env}: {curve.label}, return {curve.middle()[-1]:.2f} at the end")
    print(f"drawn: {given.out}")
    return 0
