"""Rainbow with each of its parts left out, once, on CartPole.

    python experiments/rainbow.py

The preset is trained whole, with each part off, and with all of them off, for fewer
steps than it needs to be done, so that what a part brings can be seen. Leaves
config.json and results.jsonl, a row for each agent and seed.
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

# Without noise in the weights, actions are explored as DQN's preset does.
EXPLORE = {"noisy": False, "epsilon": 1.0, "final_epsilon": 0.05}
PARTS: dict[str, dict[str, Any]] = {
    "double": {"double": False},
    "dueling": {"dueling": False},
    "n-step": {"n_step": 1},
    "prioritised": {"prioritized": False},
    "C51": {"head": "value"},
    "noisy": EXPLORE,
}
AGENTS: dict[str, dict[str, Any]] = {
    "none": {},
    **PARTS,
    "all": {name: value for part in PARTS.values() for name, value in part.items()},
}


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of the experiment; what is not here is the preset's."""

    env: str = "CartPole-v1"
    total_steps: float = 30_000
    exploration_fraction: float = 0.5
    seeds: tuple[int, ...] = tuple(range(5))
    eval_episodes: int = 100
    out: Path | None = None  # None: a new folder in runs/
    small: bool = False  # try that it runs


def main(config: Config) -> None:
    """Train every agent with each seed, report."""
    if config.small:
        config = dataclasses.replace(config, total_steps=2000, seeds=(0,))
    out = config.out or Path("runs") / f"rainbow-{time.strftime('%Y%m%d-%H%M%S')}"
    prepare_backend(samples=0, data=None, device="auto")
    rows = []
    agents = {"all": AGENTS["all"]} if config.small else AGENTS
    for off, fields in agents.items():
        for seed in config.seeds:
            rows.append({"off": off, "seed": seed, **result(config, fields, seed)})
            common.append_row(out / "results.jsonl", rows[-1])
        print(f"without {off}: done", flush=True)
    about = {**common.about(), **common.device_about()}
    described = dataclasses.asdict(config) | {"out": str(out), "agents": agents}
    write_json(out / "config.json", {"experiment": described, "about": about})
    print(f"\n{report(rows)}\n\nresults: {out}")


def result(config: Config, fields: dict[str, Any], seed: int) -> dict[str, float]:
    """The greedy return at the end, and the mean of all episodes on the way."""
    start = preset("rainbow", config.env)
    run = jp.train(
        dataclasses.replace(
            start.algorithm,
            **{"exploration_fraction": config.exploration_fraction, **fields},
        ),
        jp.make(config.env),
        **{**start.settings, "total_steps": int(config.total_steps)},
        seed=seed,
        eval_episodes=config.eval_episodes,
    )
    assert run.evaluation is not None
    counts = run.metrics["episode_count"]
    ended = counts > 0
    means = run.metrics["episode_return"][ended]
    return {
        "return": run.evaluation.mean_return,
        "mean_while_learning": float(np.average(means, weights=counts[ended])),
    }


def report(rows: list[dict[str, Any]]) -> str:
    """Means over seeds with 95 % bootstrap intervals."""
    lines = []
    for off in dict.fromkeys(row["off"] for row in rows):
        chosen = [row for row in rows if row["off"] == off]
        line = [off]
        for name in ("return", "mean_while_learning"):
            values = [row[name] for row in chosen]
            low, high = common.bootstrap(values)
            line.append(f"{np.mean(values):.0f} [{low:.0f}, {high:.0f}]")
        lines.append(line)
    header = ["left out", "greedy return at the end", "mean of all episodes"]
    return common.table(header, lines)


if __name__ == "__main__":
    main(tyro.cli(Config, description=__doc__))
