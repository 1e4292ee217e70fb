"""DQN with replays of several capacities, in turns: the speed must not depend on it.

    python experiments/bench/capacity.py

Each capacity has a process of its own; they train one at a time, seed by seed. Full
after so many steps is only the smallest: `--total-steps` says how much is stored.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import common


def main() -> None:
    args = parse()
    settings = {"algorithm": "dqn", "env": "CartPole-v1", "num_envs": 10}
    settings |= {"network": "mlp", "total_steps": int(args.total_steps)}
    workers = {
        capacity: common.Worker(
            sys.executable, "worker_ours.py", settings | {"capacity": capacity}
        )
        for capacity in args.capacity
    }
    for worker in workers.values():
        worker.ask({"seed": 0})
    rows = []
    for seed in range(args.seeds):
        for capacity, worker in workers.items():
            answer = worker.ask({"seed": seed, "episodes": args.episodes})
            speed = answer["steps"] / answer["seconds"]
            row = {**settings, "capacity": capacity, "seed": seed}
            about = {"worker": worker.about, **common.about()}
            rows.append({**row, **answer, "steps_per_second": speed, **about})
    for worker in workers.values():
        worker.close()
    print(f"\n{render(rows)}\n")
    common.write_rows(args.out / "capacity.jsonl", rows)


def parse() -> argparse.Namespace:
    parser = common.parser(__doc__)
    add = parser.add_argument
    add("--capacity", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    add("--seeds", type=int, default=9)
    add("--total-steps", type=float, default=100_000)
    add("--episodes", type=int, default=20)
    args = parser.parse_args()
    if args.small:
        args.seeds, args.total_steps, args.episodes = 1, 2000, 2
    return args


def render(rows: list[dict[str, Any]]) -> str:
    """One row for each capacity; the ratio is to the first, seed by seed."""
    lines, first = [], []
    for capacity in dict.fromkeys(row["capacity"] for row in rows):
        runs = [row for row in rows if row["capacity"] == capacity]
        speeds = [run["steps_per_second"] for run in runs]
        first = first or speeds
        ratios = [y / x for x, y in zip(first, speeds, strict=True)]
        spread = f"{common.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        mean = sum(run["return"] for run in runs) / len(runs)
        memory = f"{max(run['host_peak'] for run in runs) / 1e6:,.0f}"
        speed = f"{common.median(speeds):,.0f}"
        lines.append([f"{capacity:,}", speed, spread, f"{mean:.0f}", memory])
    header = ["capacity", "steps/s", "ratio (range)", "return", "peak memory, MB"]
    return common.table(header, lines)


if __name__ == "__main__":
    main()
