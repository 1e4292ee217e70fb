"""What a run shows on a terminal and elsewhere."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxrl_par as jp
from jaxrl_par.train import display
from jaxrl_par.train.display import Display, chart, duration


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def progress(update: int, returns: float | None, **changes: Any) -> jp.Progress:
    """A point of a run of 10 updates of 1000 steps, one a second."""
    steps = 1000 * update
    row: dict[str, Any] = {"update": update, "env_steps": steps, "episode_count": 0}
    if returns is not None:
        row |= {"episode_count": 100, "episode_return": returns}
    values = {
        "update": update, "env_steps": steps, "frames": steps, "total_steps": 10_000,
        "seconds": float(update), "compile_seconds": 2.5, "rows": [row],
        "evaluation": None, "finished": update == 10, "_state": None,
    }  # fmt: skip
    return jp.Progress(**(values | changes))


def result(**changes: Any) -> Any:
    """As much of a run as is shown."""
    evaluation = jp.Evaluation(
        np.array([1.0, 3.0], np.float32), np.array([10, 20], np.int32), 1
    )
    metrics = {
        "episode_return": np.array([np.nan, 1.0, 9.0]),
        "env_steps": np.array([1000, 2000, 3000]),
    }
    values = {
        "algorithm": None, "env": None, "config": {}, "state": None, "metrics": metrics,
        "evaluations": ((3000, evaluation),), "env_steps": 3000, "seconds": 2.0,
    }  # fmt: skip
    return jp.Run(**(values | changes))


def test_lines_say_steps_speed_return_and_time_left() -> None:
    stream = io.StringIO()
    with Display(stream) as shown:
        shown.start("ppo on X", {"device": "cpu"})
        shown(progress(1, None))
        shown(progress(4, 7.5))
    lines = stream.getvalue().splitlines()
    assert lines[0] == "ppo on X"
    assert lines[1].split() == ["device", "cpu"]
    assert lines[2].split() == ["compiled", "in", "2.5", "s"]
    assert "no episode yet" in lines[3]
    # 4,000 steps in 4 s; 6,000 are left, at 1,000 a second.
    assert lines[4].split("  ")[1:] == [
        " 40 %", "4,000 steps", "1,000 steps/s", "return 7.50", "6 s left",
    ]  # fmt: skip
    assert "\x1b" not in stream.getvalue()


def test_elsewhere_a_line_comes_each_tenth_or_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [0.0]
    monkeypatch.setattr(display.time, "monotonic", lambda: clock[0])
    stream = io.StringIO()
    shown = Display(stream)
    for steps, passed, lines in (
        (100, 0.0, 1), (200, 1.0, 1), (1100, 2.0, 2), (1200, 3.0, 2), (1300, 99.0, 3),
    ):  # fmt: skip
        clock[0] = passed
        shown(progress(1, None, env_steps=steps))
        assert stream.getvalue().count("steps/s") == lines


def test_a_terminal_has_one_live_line() -> None:
    stream = Terminal()
    with Display(stream) as shown:
        for update in range(1, 11):
            shown(progress(update, float(update)))
    text = stream.getvalue()
    assert "compiling" in text
    assert text.count("steps/s") >= 10
    assert text.count("\n") <= 4


def test_the_evaluation_is_shown_once_made() -> None:
    stream = io.StringIO()
    shown = Display(stream)
    evaluation = jp.Evaluation(np.full(2, 8.0), np.ones(2), 0)
    shown(progress(1, 1.0))
    shown(progress(5, 1.0, evaluation=evaluation))
    shown(progress(10, 1.0))
    first, *later = [x for x in stream.getvalue().splitlines() if "steps/s" in x]
    assert "evaluation" not in first
    assert all("evaluation 8.00" in line for line in later)
    assert "left" not in later[-1]


def test_the_result_is_complete() -> None:
    stream = io.StringIO()
    shown = Display(stream)
    shown(progress(3, 1.0))
    shown.result(result(), Path("runs/x"))
    text = stream.getvalue()
    assert "3,000 steps of 10,000 in 2.0 s (1,500 steps/s)" in text
    assert "return 2.00 ± 1.00 over 2 greedy episodes (mean length 15)" in text
    assert "1 episodes did not end" in text
    assert "runs/x" in text
    assert "█" in text


def test_the_result_says_what_was_left_out_and_why_it_ended() -> None:
    stream = io.StringIO()
    metrics = {
        "update": np.arange(1, 4),
        "skipped": np.array([0.0, 1.0, 1.0], np.float32),
        "outlier_rewards": np.array([2.0, np.nan, 5.0], np.float32),
        "outlier_obs": np.array([0.0, 0.0, 1.0], np.float32),
    }
    run = result(metrics=metrics, evaluations=(), reason="stop_at_return")
    Display(stream).result(run, Path("runs/mine"))
    lines = [" ".join(line.split()) for line in stream.getvalue().splitlines()]
    assert "skipped 2 of 3 updates that were not finite" in lines
    assert "outliers 7 rewards, 1 obs" in lines
    more = "jaxrl-par resume runs/mine --stop-at-return None goes on"
    assert f"stopped stop_at_return; {more}" in lines


def test_a_run_without_episodes_or_evaluation_has_a_result() -> None:
    stream = io.StringIO()
    Display(stream).result(result(metrics={}, evaluations=()))
    assert "trained" in stream.getvalue()
    assert "greedy" not in stream.getvalue()


def test_an_ascii_stream_gets_ascii() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    Display(stream).result(result())
    stream.flush()
    assert "#" in raw.getvalue().decode("ascii")


def test_the_chart_rises_with_the_returns() -> None:
    # Four columns of 10 steps, four rows. The lowest return fills an eighth of a
    # cell, the highest all four cells; 4 lies between, at 0.125 + 3.875 / 2 cells,
    # that is two cells and half an eighth, which is not shown.
    steps, returns = np.array([5, 15, 25, 35]), np.array([0.0, 0.0, 4.0, 8.0])
    assert chart(steps, returns, 40, (4, 4), " .234567#")[:4] == [
        "         8    #",
        "              #",
        "             ##",
        "         0 ..##",
    ]


def test_the_chart_fills_gaps_and_averages_columns() -> None:
    # Column 0 has 1; column 1 has 2 and 4, mean 3; column 2 has none, so 5; column 3
    # has 7. In eighths of one cell, from 1 to 8: 1, 3 1/3, 5 2/3, 8.
    steps, returns = np.array([5, 12, 15, 35]), np.array([1.0, 2.0, 4.0, 7.0])
    assert chart(steps, returns, 40, (4, 1), " 12345678")[0].endswith(" 1358")


def test_a_single_point_has_no_chart() -> None:
    assert chart(np.array([5]), np.array([1.0]), 10) == []


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (42, "42 s"), (185, "3:05"), (7200, "2:00:00"), (59.7, "1:00")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
