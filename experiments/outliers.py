"""CartPole behind a faulty sensor, learned with and without a filter for outliers.

    python experiments/outliers.py

Now and then the reward is huge, or one number of the observation is; the cart itself
is never touched. Agents of the same settings learn without faults and with them, with
the filter off, clipping and dropping, and are judged by greedy episodes without
faults. Leaves config.json and results.jsonl, a row for each seed and agent.
"""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
import tyro
from bench import common

import jaxrl_par as jp
from jaxrl_par.cli.startup import prepare_backend
from jaxrl_par.presets import preset
from jaxrl_par.types import (
    Array,
    Environment,
    EnvSpec,
    Key,
    PyTree,
    StepResult,
    pytree,
)

Outliers = Literal["drop", "clip"] | None

AGENTS: tuple[tuple[str, Outliers], ...] = (
    *(("no", None), ("no", "drop")),
    *(("yes", None), ("yes", "clip"), ("yes", "drop")),
)
FOUND = ("outlier_rewards", "outlier_obs", "outlier_td_errors")


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of the experiment; all others are of CartPole's preset."""

    reward_rate: float = 0.002  # probability of a faulty reward, each step
    obs_rate: float = 0.002  # of a faulty observation
    reward_fault: float = 1e3  # added to the reward, or taken from it
    obs_fault: float = 1e3
    outlier_bound: float = 10.0
    outlier_spread: float = 1.0
    total_steps: float = 5e5
    seeds: tuple[int, ...] = tuple(range(8))
    eval_episodes: int = 128
    out: Path | None = None  # None: a new folder in runs/
    small: bool = False  # try that it runs


@pytree
class Faulty:
    """`env` behind a sensor that fails at random; what it is stays as it is."""

    env: Environment
    reward_rate: float
    obs_rate: float
    reward_fault: float
    obs_fault: float

    @property
    def spec(self) -> EnvSpec:
        return self.env.spec

    def reset(self, key: Key) -> tuple[PyTree, PyTree]:
        return self.env.reset(key)

    def step(self, key: Key, state: PyTree, action: Array) -> tuple[PyTree, StepResult]:
        env_key, reward_key, obs_key, place_key = jax.random.split(key, 4)
        state, result = self.env.step(env_key, state, action)
        reward = result.reward + fault(reward_key, self.reward_rate, self.reward_fault)
        place = jax.random.randint(place_key, (), 0, result.obs.shape[0])
        spike = fault(obs_key, self.obs_rate, self.obs_fault)
        obs = result.obs.at[place].add(spike)
        return state, dataclasses.replace(result, obs=obs, reward=reward)


def fault(key: Key, rate: float, size: float) -> Array:
    """`size` or -`size` with probability `rate`, else 0."""
    number = jax.random.uniform(key)
    return size * ((number < rate / 2) * 1.0 - (number > 1 - rate / 2) * 1.0)


def main(config: Config) -> None:
    """Train every agent with each seed, test them, report."""
    if config.small:
        config = dataclasses.replace(
            config, total_steps=20_000, seeds=(0,), eval_episodes=8
        )
    out = config.out or Path("runs") / f"outliers-{time.strftime('%Y%m%d-%H%M%S')}"
    prepare_backend(8192, data=None, device="auto")
    rows = []
    for seed in config.seeds:
        for faults, outliers in AGENTS[2:] if config.small else AGENTS:
            row = {"faults": faults, "outliers": outliers, "seed": seed}
            rows.append(row | result(config, faults == "yes", outliers, seed))
            common.append_row(out / "results.jsonl", rows[-1])
        print(f"seed {seed} done", flush=True)
    about = {**common.about(), **common.device_about()}
    described = dataclasses.asdict(config) | {"out": str(out)}
    text = json.dumps({"experiment": described, "about": about}, indent=2)
    (out / "config.json").write_text(text + "\n")
    print(f"\n{report(config, rows)}\n\nresults: {out}")


def result(
    config: Config, faults: bool, outliers: Outliers, seed: int
) -> dict[str, Any]:
    """The mean greedy return without faults, and what was found in an update."""
    clean = jp.make("CartPole-v1")
    start = preset("ppo", "CartPole-v1")
    algorithm = dataclasses.replace(
        start.algorithm,
        normalize_obs=True,
        normalize_reward=True,
        outliers=outliers,
        outlier_bound=config.outlier_bound,
        outlier_spread=config.outlier_spread,
    )
    names = ("reward_rate", "obs_rate", "reward_fault", "obs_fault")
    faulty = Faulty(clean, *(getattr(config, name) for name in names))
    settings = {**start.settings, "total_steps": int(config.total_steps)}
    env = faulty if faults else clean
    run = jp.train(algorithm, env, **settings, seed=seed, eval_episodes=0)
    tested = dataclasses.replace(run, env=clean).evaluate(config.eval_episodes)
    found = {name: run.metrics[name].mean() for name in FOUND if outliers}
    return {
        "mean_return": tested.mean_return,
        "steps_per_update": start.settings["num_envs"] * algorithm.rollout_length,
        **{name: float(count) for name, count in found.items()},
    }


def report(config: Config, rows: list[dict[str, Any]]) -> str:
    """Mean return over seeds with 95 % bootstrap intervals; faults found of planted."""
    lines = []
    for faults, outliers in dict.fromkeys((r["faults"], r["outliers"]) for r in rows):
        agent = {"faults": faults, "outliers": outliers}
        chosen = [row for row in rows if agent.items() <= row.items()]
        returns = [row["mean_return"] for row in chosen]
        low, high = common.bootstrap(returns)
        line = [faults, outliers or "off"]
        line.append(f"{np.mean(returns):.0f} [{low:.0f}, {high:.0f}]")
        planted = (config.reward_rate, config.obs_rate) if faults == "yes" else (0, 0)
        for name, rate in zip(FOUND, (*planted, None), strict=True):
            if not outliers:
                line.append("")
                continue
            cell = f"{np.mean([row[name] for row in chosen]):.2f}"
            steps = chosen[0]["steps_per_update"]
            line.append(cell if rate is None else f"{cell} of {rate * steps:.2f}")
        lines.append(line)
    header = ["faults", "filter", "greedy return without faults"]
    header += ["rewards found", "observations found", "TD errors found"]
    return common.table(header, lines)


if __name__ == "__main__":
    main(tyro.cli(Config, description=__doc__))
