"""What a run shows: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import numpy as np
from rich.console import Console
from rich.live import Live
from rich.text import Text

from jaxrl_par.train.callbacks import Progress
from jaxrl_par.train.run import Run
from jaxrl_par.train.run_directory import recent_return

# Seconds between plain lines; a tenth of the run prints one too.
PLAIN_SECONDS = 20.0
_CALLS = 8  # over which the speed is measured
_CHART = (60, 6)  # columns, rows
_BLOCKS, _PLAIN = " ▁▂▃▄▅▆▇█", "    ####"  # a character cell filled in steps


class Display:
    """A callback that shows steps, steps/s, return and time left."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.console = Console(file=stream or sys.stdout, highlight=False)
        self._live: Live | None = None
        self._speed: deque[tuple[float, int]] = deque([(0.0, 0)], maxlen=_CALLS)
        self._recent: deque[tuple[int, float]] = deque(maxlen=100)
        self._evaluated: float | None = None
        self._printed = (0.0, -1)  # time, tenth of the run
        self._compiled = False
        self._total = 0

    def start(self, title: str, facts: dict[str, str]) -> None:
        """Say what will run, and on what."""
        self._print(title)
        for name, fact in facts.items():
            self._print(f"  {name:10}{fact}")

    def __enter__(self) -> Display:
        if self.console.is_terminal:
            self._live = Live(
                Text("  compiling ..."), console=self.console, auto_refresh=False
            )
            self._live.start(refresh=True)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def __call__(self, progress: Progress) -> None:
        """Show where the run stands."""
        if not self._compiled:
            self._compiled = True
            self._print(f"  {'compiled':10}in {progress.compile_seconds:.1f} s")
        self._note(progress)
        line = self._line(progress)
        if self._live is not None:
            width = self.console.width - 1
            self._live.update(Text(self._safe(line)[:width]), refresh=True)
            return
        now, tenth = time.monotonic(), 10 * progress.env_steps // progress.total_steps
        last_time, last_tenth = self._printed
        due = tenth > last_tenth or now - last_time > PLAIN_SECONDS
        if progress.rows and (due or progress.finished):
            self._printed = (now, tenth)
            self._print(line)

    def result(self, run: Run, directory: Path | None = None) -> None:
        """Say what came of it."""
        speed = run.env_steps / max(run.seconds, 1e-9)
        early = f" of {self._total:,}" if run.env_steps < self._total else ""
        self._print(
            f"  {'trained':10}{run.env_steps:,} steps{early} in {run.seconds:.1f} s "
            f"({speed:,.0f} steps/s)"
        )
        marks = _BLOCKS if self._safe(_BLOCKS) == _BLOCKS else _PLAIN
        for line in chart(*curve(run), run.env_steps, _CHART, marks):
            self._print(f"  {line}")
        evaluation = run.evaluation
        if evaluation is not None and evaluation.returns.size:
            self._print(
                f"  {'result':10}return {evaluation.mean_return:.2f} ± "
                f"{evaluation.returns.std():.2f} over {evaluation.returns.size} "
                f"greedy episodes (mean length {evaluation.lengths.mean():.0f})"
            )
        if evaluation is not None and evaluation.unfinished:
            self._print(f"  {'':10}{evaluation.unfinished} episodes did not end")
        for name, text in _remarks(run, directory):
            self._print(f"  {name:10}{text}")
        if directory is not None:
            self._print(f"  {'run':10}{directory}")

    def _note(self, progress: Progress) -> None:
        self._total = progress.total_steps
        self._speed.append((progress.seconds, progress.env_steps))
        for row in progress.rows:
            if row["episode_count"]:
                count = int(row["episode_count"])
                self._recent.append((count, row["episode_return"]))
        if progress.evaluation is not None:
            self._evaluated = progress.evaluation.mean_return

    def _line(self, progress: Progress) -> str:
        (start, before), (end, after) = self._speed[0], self._speed[-1]
        speed = (after - before) / max(end - start, 1e-9)
        left = (progress.total_steps - progress.env_steps) / max(speed, 1e-9)
        share = 100 * progress.env_steps // progress.total_steps
        mean = recent_return(list(self._recent))
        parts = [
            f"{share:3d} %",
            f"{progress.env_steps:,} steps",
            f"{speed:,.0f} steps/s",
            "no episode yet" if mean is None else f"return {mean:.2f}",
        ]
        if self._evaluated is not None:
            parts.append(f"evaluation {self._evaluated:.2f}")
        if not progress.finished:
            parts.append(f"{duration(left)} left")
        return "  " + "  ".join(parts)

    def _print(self, line: str) -> None:
        self.console.print(self._safe(line), markup=False, soft_wrap=True)

    def _safe(self, line: str) -> str:
        encoding = self.console.encoding
        return line.encode(encoding, "replace").decode(encoding)


def duration(seconds: float) -> str:
    """For example "42 s", "3:05" or "2:00:00"."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _remarks(run: Run, directory: Path | None) -> Iterator[tuple[str, str]]:
    """What was left out of a run, and why it ended before its total."""
    # Of updates before a setting was changed there is no number.
    sums = {name: np.nansum(column) for name, column in run.metrics.items()}
    if sums.get("skipped"):
        count = f"{sums['skipped']:,.0f} of {len(run.metrics['update']):,}"
        yield "skipped", f"{count} updates that were not finite"
    prefix = "outlier_"
    found = {k.removeprefix(prefix): x for k, x in sums.items() if prefix in k}
    if found:
        yield "outliers", ", ".join(f"{x:,.0f} {name}" for name, x in found.items())
    if run.reason is not None:
        flag = " --stop-at-return None" if run.reason == "stop_at_return" else ""
        more = f"; jaxrl-par resume {directory}{flag} goes on" if directory else ""
        yield "stopped", f"{run.reason}{more}"


def curve(run: Run) -> tuple[np.ndarray, np.ndarray]:
    """Steps and mean returns of the updates in which episodes ended."""
    returns = run.metrics.get("episode_return", np.zeros(0))
    steps = run.metrics.get("env_steps", np.zeros(0))
    known = np.isfinite(returns)
    return steps[known], returns[known]


def chart(
    steps: np.ndarray,
    returns: np.ndarray,
    end: int,
    size: tuple[int, int] = _CHART,
    marks: str = _BLOCKS,
) -> list[str]:
    """Returns over steps, from 0 to `end`, as lines of text; none for one point.

    `size` is in columns and rows. Each column is the mean of its share of the steps;
    where it has none, the line between its neighbours.
    """
    width, height = size
    if len(returns) < 2:
        return []
    column = np.clip((steps * width / end).astype(int), 0, width - 1)
    sums = np.bincount(column, returns, width)
    counts = np.bincount(column, minlength=width)
    filled = np.flatnonzero(counts)
    means = np.interp(np.arange(width), filled, sums[filled] / counts[filled])
    low, high = float(means.min()), float(means.max())
    levels = (means - low) / ((high - low) or 1.0) * (height - 0.125) + 0.125
    lines = []
    for row in reversed(range(height)):
        eighths = np.clip((levels - row) * 8, 0, 8).astype(int)
        text = "".join(marks[min(e, len(marks) - 1)] for e in eighths)
        label = f"{high:10.4g}" if row == height - 1 else " " * 10
        lines.append(f"{f'{low:10.4g}' if row == 0 else label} {text}")
    lines.append(f"{'':10} 0{f'{end:,} steps':>{width - 1}}")
    return lines
