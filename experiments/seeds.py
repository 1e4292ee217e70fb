"""Train one preset with several seeds: how good, and how sure?

    python experiments/seeds.py --env CartPole-v1 --seeds 0 1 2 3 4 5 6 7

Leaves a folder with config.json (all settings, versions, the commit), a run directory
for each seed, results.jsonl (a row for each seed, with every episode's return) and
curves.png.
"""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from bench import common

import jaxrl_par as jp
from jaxrl_par.cli.startup import prepare_backend
from jaxrl_par.presets import preset
from jaxrl_par.train.files import write_json
from jaxrl_par.train.plots import interquartile_mean, plot_runs


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of the experiment; what is not here is the preset's."""

    algorithm: str = "ppo"
    env: str = "CartPole-v1"
    seeds: tuple[int, ...] = tuple(range(8))
    total_steps: float | None = None  # None: the preset's
    eval_episodes: int = 100
    out: Path | None = None  # None: a new folder in runs/
    small: bool = False  # try that it runs


def main(config: Config) -> None:
    """Train, keep what came out, report."""
    if config.small:
        config = dataclasses.replace(config, seeds=(0, 1), total_steps=5000)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    out = config.out or Path("runs") / f"seeds-{config.env}-{stamp}"
    chosen = preset(config.algorithm, config.env)
    settings = dict(chosen.settings)
    if config.total_steps:
        settings["total_steps"] = int(config.total_steps)
    samples = settings["num_envs"] * chosen.algorithm.rollout_length
    prepare_backend(samples, data=None, device="auto")
    runs = []
    for seed in config.seeds:
        run = jp.train(
            chosen.algorithm,
            jp.make(config.env),
            out=out / f"seed-{seed}",
            seed=seed,
            eval_episodes=config.eval_episodes,
            **settings,
        )
        runs.append(run)
        row = result(seed, run)
        common.append_row(out / "results.jsonl", row)
        print(f"seed {seed}: {row['mean_return']:.1f}", flush=True)
    about = {**common.about(), **common.device_about()}
    described = dataclasses.asdict(config) | {"out": str(out), "run": settings}
    write_json(out / "config.json", {"experiment": described, "about": about})
    plot_runs([out / f"seed-{seed}" for seed in config.seeds], out / "curves.png")
    print(report([run.evaluation.mean_return for run in runs if run.evaluation]))
    print(f"results: {out}")


def result(seed: int, run: jp.Run) -> dict[str, Any]:
    """What one seed gave."""
    assert run.evaluation is not None
    return {
        "seed": seed,
        "mean_return": run.evaluation.mean_return,
        "returns": run.evaluation.returns.tolist(),
        "lengths": run.evaluation.lengths.tolist(),
        "env_steps": run.env_steps,
        "seconds": run.seconds,
        "compile_seconds": run.compile_seconds,
    }


def report(returns: list[float]) -> str:
    """Mean and interquartile mean over seeds, with 95 % bootstrap intervals."""
    rows = []
    for name, statistic in (
        ("mean", np.mean),
        ("interquartile mean", interquartile_mean),
    ):
        low, high = common.bootstrap(returns, statistic)
        value = f"{statistic(np.array(returns)):.1f}"
        rows.append([name, value, f"{low:.1f} to {high:.1f}", str(len(returns))])
    header = ["of the final greedy return", "value", "95 % interval", "seeds"]
    return f"\n{common.table(header, rows)}\n"


if __name__ == "__main__":
    main(tyro.cli(Config, description=__doc__))
