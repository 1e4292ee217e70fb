"""Learning curves: how runs are grouped, averaged, labelled and drawn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
import toys
from PIL import Image

import jaxrl_par as jp
from jaxrl_par.train import plots


def write_run(directory: Path, returns: list[float | None], **settings: Any) -> Path:
    """A run directory with one update per return, of 10 steps each."""
    config = {
        "format": 2,
        "algorithm": {"type": "jaxrl_par.algorithms.ppo:PPO", "fields": {"gamma": 0.9}},
        "env": {"type": "jaxrl_par.envs.cartpole:CartPole", "fields": {}},
        "env_name": "CartPole-v1",
        "num_envs": 4,
        "seed": 0,
        "devices": ["cpu:0"],
    } | settings
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(config))
    rows = [
        {"update": i, "env_steps": 10 * i, "episode_count": int(value is not None)}
        | ({} if value is None else {"episode_return": value})
        for i, value in enumerate(returns, 1)
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (directory / "metrics.jsonl").write_text(text)
    return directory


@pytest.mark.parametrize("runs", [1, 3, 4, 7, 8])
def test_the_interquartile_mean_is_scipys_trimmed_mean(runs: int) -> None:
    values = np.random.default_rng(runs).normal(size=(runs, 5))
    expected = scipy.stats.trim_mean(values, 0.25, axis=0)
    np.testing.assert_allclose(plots.interquartile_mean(values), expected)


def test_bins_are_means_over_episodes() -> None:
    # Updates end at 10, 20, 30 and 40 steps; two bins of 20 steps. Weighted by
    # episodes: (1 * 1 + 3 * 5) / 4 = 4 and 7 (none ended in the last update).
    steps = np.array([10, 20, 30, 40])
    returns = np.array([1.0, 5.0, 7.0, np.nan])
    counts = np.array([1, 3, 2, 0])
    edges = np.array([0.0, 20.0, 40.0])
    np.testing.assert_allclose(plots.binned(steps, returns, counts, edges), [4, 7])


def test_a_bin_without_episodes_lies_between_its_neighbours() -> None:
    steps, returns = np.array([10, 20, 30]), np.array([2.0, np.nan, 6.0])
    counts, edges = np.array([1, 0, 1]), np.array([0.0, 10.0, 20.0, 30.0])
    np.testing.assert_allclose(plots.binned(steps, returns, counts, edges), [2, 4, 6])


def test_seeds_are_one_curve_and_settings_are_several(tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path / f"{seed}-{n}", [1.0 + seed, 3.0], seed=seed, num_envs=n)
        for n in (4, 8)
        for seed in (0, 1)
    ]
    curves = plots.read_curves(runs)
    assert [curve.label for curve in curves] == [
        "PPO num_envs 4 (2 runs)",
        "PPO num_envs 8 (2 runs)",
    ]
    np.testing.assert_allclose(curves[0].steps, [10, 20])
    np.testing.assert_allclose(curves[0].returns, [[1, 3], [2, 3]])
    np.testing.assert_allclose(curves[0].middle(), [1.5, 3])
    low, high = curves[0].interval()
    np.testing.assert_allclose([low, high], [[1, 3], [2, 3]])


def test_runs_of_several_seeds_as_they_are_written_are_one_curve(
    tmp_path: Path,
) -> None:
    for seed in range(2):
        jp.train(
            *(toys.Tally(), toys.Fate()),
            num_envs=4,
            total_steps=64,
            max_seconds=100.0 + seed,
            eval_every=16,
            eval_episodes=0,
            seed=seed,
            out=tmp_path / f"{seed}",
        )
    (curve,) = plots.read_curves([tmp_path / "0", tmp_path / "1"])
    assert curve.label == "Tally (2 runs)"


def test_functions_and_classes_are_called_by_their_names() -> None:
    network = {"type": "jaxrl_par.networks.actor_critic:MLP", "fields": {"hidden": [8]}}
    pair = [{"path": "__main__:init"}, {"path": "__main__:apply"}]
    one, two = (
        plots._flatten({"algorithm": {"type": "a.b:PPO", "fields": {"network": value}}})
        for value in (network, pair)
    )
    assert one["algorithm"] == "PPO"
    assert one["algorithm.fields.network"] == "MLP"
    assert one["algorithm.fields.network.fields.hidden"] == "8"
    assert two["algorithm.fields.network"] == "init, apply"


def test_one_run_has_no_label_but_its_algorithm(tmp_path: Path) -> None:
    (curve,) = plots.read_curves([write_run(tmp_path / "run", [1.0, 2.0])])
    assert curve.label == "PPO"


def test_a_curve_ends_with_its_shortest_run(tmp_path: Path) -> None:
    long = write_run(tmp_path / "long", [1.0, 2.0, 3.0, 4.0], seed=0)
    short = write_run(tmp_path / "short", [1.0, 2.0], seed=1)
    (curve,) = plots.read_curves([long, short])
    np.testing.assert_allclose(curve.returns, [[1, 2], [1, 2]])


def test_a_picture_has_a_panel_for_each_environment(tmp_path: Path) -> None:
    one = write_run(tmp_path / "one", [1.0, None, 2.0])
    row = {"update": 3, "env_steps": 30, "mean_return": 9.0, "episodes": 1}
    (one / "evaluations.jsonl").write_text(json.dumps(row) + "\n")
    two = write_run(tmp_path / "two", [1.0, 2.0], env_name="Pendulum-v1")
    plots.plot_runs([one], tmp_path / "narrow.png")
    curves = plots.plot_runs([one, two], tmp_path / "new" / "wide.png")
    assert [curve.env for curve in curves] == ["CartPole-v1", "Pendulum-v1"]
    np.testing.assert_allclose(curves[0].evaluations, [[30, 9]])
    with (
        Image.open(tmp_path / "narrow.png") as narrow,
        Image.open(tmp_path / "new" / "wide.png") as wide,
    ):
        assert wide.width == 2 * narrow.width


def test_what_cannot_be_drawn_is_refused(tmp_path: Path) -> None:
    empty = write_run(tmp_path / "empty", [None, None])
    with pytest.raises(ValueError, match="no episode ended"):
        plots.plot_runs([empty], tmp_path / "curves.png")
    with pytest.raises(ValueError, match=r"curves\.bmp.*\.png"):
        plots.plot_runs([empty], tmp_path / "curves.bmp")
    assert not list(tmp_path.glob("curves*"))
