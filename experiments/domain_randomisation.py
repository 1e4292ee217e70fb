"""CartPole on a thousand different physics at once, against the usual one.

    python experiments/domain_randomisation.py

Each environment of the randomised run has its own pole length, pole mass and push.
Two agents with the same settings, one trained on them and one on the usual physics,
play on the usual physics, on physics that neither has seen, and on poles from short
to long. Leaves config.json, results.jsonl (a row for each seed, agent and test) and
poles.png.
"""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tyro
from bench import common

import jaxrl_par as jp
from jaxrl_par.cli.startup import prepare_backend
from jaxrl_par.train.files import write_json

HALF_LENGTHS = (0.1, 0.25, 0.5, 1.0, 1.5, 2.0, 2.5)  # m; 0.5 is the usual


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of the experiment. A pair is a range, drawn from uniformly in log."""

    half_length: tuple[float, float] = (0.2, 2.0)  # m
    pole_mass: tuple[float, float] = (0.05, 0.5)  # kg
    force: tuple[float, float] = (5.0, 20.0)  # N
    num_envs: int = 1024
    total_steps: float = 4e6
    learning_rate: float = 1e-3
    rollout_length: int = 16
    num_minibatches: int = 8
    seeds: tuple[int, ...] = (0, 1, 2, 3)
    eval_episodes: int = 128
    out: Path | None = None  # None: a new folder in runs/
    small: bool = False  # try that it runs


def main(config: Config) -> None:
    """Train both agents with each seed, test them, report."""
    if config.small:
        config = dataclasses.replace(
            config, num_envs=16, total_steps=5000, seeds=(0,), eval_episodes=8
        )
    stamp = time.strftime("%Y%m%d-%H%M%S")
    out = config.out or Path("runs") / f"domain-randomisation-{stamp}"
    prepare_backend(config.num_envs * config.rollout_length, data=None, device="auto")
    rows = []
    for seed in config.seeds:
        for agent, env in (("usual", jp.make("CartPole-v1")), ("randomised", None)):
            env = env or physics(config, config.num_envs, seed)
            run = train(config, env, seed)
            for row in tests(config, run):
                rows.append({"agent": agent, "seed": seed, **row})
                common.append_row(out / "results.jsonl", rows[-1])
        print(f"seed {seed} done", flush=True)
    about = {**common.about(), **common.device_about()}
    described = dataclasses.asdict(config) | {"out": str(out)}
    write_json(out / "config.json", {"experiment": described, "about": about})
    draw(rows, out / "poles.png")
    print(f"\n{report(rows)}\n\nresults: {out}")


def physics(config: Config, count: int, seed: int) -> jp.Instances:
    """`count` carts and poles, drawn from the ranges."""
    keys = jax.random.split(jax.random.key(seed), 3)
    drawn = {}
    for key, name in zip(keys, ("half_length", "pole_mass", "force"), strict=True):
        low, high = np.log(getattr(config, name))
        drawn[name] = jax.numpy.exp(jax.random.uniform(key, (count,), None, low, high))
    return jp.Instances.of(jp.make("CartPole-v1"), count, **drawn)


def train(config: Config, env: Any, seed: int) -> jp.Run:
    """An agent, trained on `env`; the same settings for both."""
    algorithm = jp.PPO(
        rollout_length=config.rollout_length,
        num_minibatches=config.num_minibatches,
        learning_rate=config.learning_rate,
    )
    return jp.train(
        algorithm,
        env,
        num_envs=config.num_envs,
        total_steps=int(config.total_steps),
        seed=seed,
        eval_episodes=0,
    )


def tests(config: Config, run: jp.Run) -> list[dict[str, Any]]:
    """Mean greedy returns of one agent, a row for each test."""
    usual = jp.make("CartPole-v1")
    unseen = physics(config, config.eval_episodes, seed=10_000)
    trials: list[tuple[str, float, Any]] = [("usual", 0.5, usual)]
    trials.append(("unseen", float("nan"), unseen))
    for length in HALF_LENGTHS:
        pole = dataclasses.replace(usual, half_length=length)
        trials.append(("pole", length, pole))
    rows = []
    for name, length, env in trials:
        tested = dataclasses.replace(run, env=env)
        evaluation = tested.evaluate(config.eval_episodes)
        row = {"test": name, "mean_return": evaluation.mean_return}
        rows.append(row | ({} if np.isnan(length) else {"half_length": length}))
    return rows


def means(rows: list[dict[str, Any]], **wanted: Any) -> list[float]:
    """Mean returns of the rows with these values, a number for each seed."""
    return [
        row["mean_return"]
        for row in rows
        if all(row.get(key) == value for key, value in wanted.items())
    ]


def report(rows: list[dict[str, Any]]) -> str:
    """Mean return over seeds, with 95 % bootstrap intervals."""
    lines = []
    for agent in ("usual", "randomised"):
        line = [agent]
        for test in ("usual", "unseen"):
            found = means(rows, agent=agent, test=test)
            low, high = common.bootstrap(found)
            line.append(f"{np.mean(found):.0f} [{low:.0f}, {high:.0f}]")
        lines.append(line)
    return common.table(["trained on", "on usual physics", "on unseen physics"], lines)


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Return against the pole's length, for both agents."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    panel = figure.subplots()
    for agent in ("usual", "randomised"):
        found = [
            means(rows, agent=agent, test="pole", half_length=x) for x in HALF_LENGTHS
        ]
        low, high = zip(*(common.bootstrap(values) for values in found), strict=True)
        panel.plot(HALF_LENGTHS, np.mean(found, axis=1), "o-", label=agent)
        panel.fill_between(HALF_LENGTHS, low, high, alpha=0.2)
    panel.axvline(0.5, color="grey", linestyle=":", label="the usual pole")
    panel.set(xlabel="half length of the pole, m", ylabel="greedy return")
    panel.set(title="CartPole: trained on the usual physics, or on many")
    panel.legend()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main(tyro.cli(Config, description=__doc__))
