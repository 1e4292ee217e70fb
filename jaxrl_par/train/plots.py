"""Learning curves of run directories, as pictures.

Runs that differ in nothing but their seed (and the machine) form one curve: the
interquartile mean over runs, which with fewer than four is the mean, and its 95 %
bootstrap interval (Agarwal et al. 2021).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl_par.train.files import read_rows
from jaxrl_par.train.history import read_metrics
from jaxrl_par.train.run import read_config

# Points of a curve; each is the mean over its share of the steps.
POINTS = 100
_BOOTSTRAPS = 1000
_FORMATS = (".png", ".svg", ".pdf")
# What of a run's config shapes its curve, but for the seed.
_SETTINGS = (
    *("algorithm", "env", "env_name", "num_envs", "total_steps", "reset", "pool_size"),
    *("on_nonfinite", "max_rollbacks", "matrix_precision"),
)


@dataclasses.dataclass(frozen=True)
class Curve:
    """Runs that differ in their seed only, on a common grid of steps."""

    env: str
    label: str
    steps: np.ndarray  # [P]
    returns: np.ndarray  # [runs, P] of training episodes
    evaluations: np.ndarray  # [E, 2] steps and mean return

    def middle(self) -> np.ndarray:
        """The interquartile mean over runs, [P]."""
        return interquartile_mean(self.returns)

    def interval(self) -> tuple[np.ndarray, np.ndarray]:
        """Ends of the 95 % bootstrap interval of `middle`, [P] each."""
        runs = len(self.returns)
        rng = np.random.default_rng(0)
        picks = rng.integers(runs, size=(_BOOTSTRAPS, runs))
        middles = np.stack([interquartile_mean(self.returns[pick]) for pick in picks])
        low, high = np.percentile(middles, [2.5, 97.5], axis=0)
        return low, high


def plot_runs(directories: Sequence[str | Path], path: str | Path) -> list[Curve]:
    """Draw the returns of runs over environment steps; one panel an environment.

    Raises ValueError for a directory that is no run, or holds no finished episode.
    """
    path = check_picture(path)
    curves = read_curves([Path(directory) for directory in directories])
    # Here, for it takes seconds to import; the figure alone, without global state.
    from matplotlib.figure import Figure

    envs = list(dict.fromkeys(curve.env for curve in curves))
    figure = Figure(figsize=(6.4 * len(envs), 4.2), layout="constrained")
    panels = figure.subplots(1, len(envs), squeeze=False)[0]
    for panel, env in zip(panels, envs, strict=True):
        for curve in curves:
            if curve.env == env:
                _draw(panel, curve)
        panel.set(title=env, xlabel="environment steps", ylabel="episode return")
        panel.grid(alpha=0.3)
        panel.legend(fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    return curves


def check_picture(path: str | Path) -> Path:
    """The path; ValueError if its name does not end as a picture's does."""
    if Path(path).suffix.lower() not in _FORMATS:
        raise ValueError(f"out {str(path)!r} must end in one of {', '.join(_FORMATS)}")
    return Path(path)


def read_curves(directories: Sequence[Path]) -> list[Curve]:
    """The curves that runs form, in order of appearance."""
    groups: dict[str, list[tuple[dict[str, Any], Path]]] = {}
    for directory in directories:
        settings = _settings(read_config(directory))
        groups.setdefault(json.dumps(settings), []).append((settings, directory))
    kinds = [members[0][0] for members in groups.values()]
    return [
        _curve(members[0][0], kinds, [directory for _, directory in members])
        for members in groups.values()
    ]


def interquartile_mean(values: np.ndarray) -> np.ndarray:
    """Mean over the first axis without its lowest and highest quarter (rounded down).

    With fewer than four values, their mean.
    """
    cut = len(values) // 4
    return np.sort(values, axis=0)[cut : len(values) - cut].mean(axis=0)


def binned(
    steps: np.ndarray, returns: np.ndarray, counts: np.ndarray, edges: np.ndarray
) -> np.ndarray:
    """Mean return of the episodes that ended between edges [P + 1], [P].

    `returns` [updates] are means over `counts` episodes. Where none ended, the line
    between its neighbours.
    """
    points = len(edges) - 1
    known = (counts > 0) & (steps <= edges[-1])
    place = np.clip(np.searchsorted(edges, steps[known]) - 1, 0, points - 1)
    weight = np.bincount(place, counts[known], points)
    total = np.bincount(place, counts[known] * returns[known], points)
    filled = np.flatnonzero(weight)
    return np.interp(np.arange(points), filled, total[filled] / weight[filled])


def _curve(
    settings: dict[str, Any], kinds: list[dict[str, Any]], directories: list[Path]
) -> Curve:
    tables = [read_metrics(directory / "metrics.jsonl") for directory in directories]
    for directory, table in zip(directories, tables, strict=True):
        if not table or not (table["episode_count"] > 0).any():
            raise ValueError(f"{directory}: no episode ended, so there is no curve")
    end = min(table["env_steps"].max() for table in tables)
    edges = np.linspace(0, end, 1 + min(POINTS, *(len(t["update"]) for t in tables)))
    returns = [
        binned(t["env_steps"], t["episode_return"], t["episode_count"], edges)
        for t in tables
    ]
    evaluations = [
        (row["env_steps"], row.get("mean_return"))
        for directory in directories
        for row in read_rows(directory / "evaluations.jsonl", ("env_steps",))
    ]
    return Curve(
        env=settings["env_name"],
        label=_label(settings, kinds, len(directories)),
        steps=edges[1:],
        returns=np.stack(returns),
        evaluations=np.array(evaluations, np.float64).reshape(-1, 2),
    )


def _draw(panel: Any, curve: Curve) -> None:
    (line,) = panel.plot(curve.steps, curve.middle(), label=curve.label)
    if len(curve.returns) > 1:
        low, high = curve.interval()
        panel.fill_between(
            curve.steps, low, high, alpha=0.25, color=line.get_color(), linewidth=0
        )
    dots = "greedy evaluation"  # named once
    if len(curve.evaluations):
        panel.plot(
            *curve.evaluations.T,
            linestyle="",
            marker="o",
            markersize=4,
            color=line.get_color(),
            label=None if dots in panel.get_legend_handles_labels()[1] else dots,
        )


def _settings(config: dict[str, Any]) -> dict[str, Any]:
    """What tells one curve from another, flat: dotted names to JSON values."""
    return _flatten({name: config[name] for name in _SETTINGS if name in config})


def _flatten(value: Any, name: str = "") -> dict[str, Any]:
    """Classes and functions by their bare names, as in "network MLP"."""
    match value:
        case {"path": str(path)}:
            return {name: path.rpartition(":")[2]}
        case {"type": str(path), **rest}:
            return {name: path.rpartition(":")[2]} | _flatten(rest, name)
        case dict():
            parts: dict[str, Any] = {}
            for key, part in value.items():
                parts |= _flatten(part, f"{name}.{key}" if name else key)
            return parts
        case list():
            return {
                name: ", ".join(str(_flatten(item).get("", item)) for item in value)
            }
    return {name: value}


def _label(settings: dict[str, Any], kinds: list[dict[str, Any]], runs: int) -> str:
    """The algorithm, and the settings in which the curves of its panel differ."""
    same_env = [kind for kind in kinds if kind["env_name"] == settings["env_name"]]
    name = settings["algorithm"]
    differing = [
        f"{key.rpartition('.')[2]} {value}"
        for key, value in settings.items()
        if key != "algorithm" and any(k.get(key) != value for k in same_env)
    ]
    count = f" ({runs} runs)" if runs > 1 else ""
    return " ".join([name, ", ".join(differing[:4])]).strip() + count
