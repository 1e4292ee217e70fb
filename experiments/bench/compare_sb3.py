"""DQN and SAC side by side with stable-baselines3, sbx and Brax, in turns.

    python experiments/bench/compare_sb3.py --algorithm dqn --env CartPole-v1 \\
        --num-envs 10 --sb3-python .venv-sb3/bin/python

As compare_rejax.py: each engine trains in a process of its own, one at a time. The
first run of each, in which it compiles, is not counted. Brax compiles in every run, and
does not count the time that it needs for it.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import common


def main() -> None:
    args = parse()
    settings = {name: getattr(args, name) for name in ("algorithm", "env", "num_envs")}
    settings |= {"total_steps": int(args.total_steps), "network": "mlp"}
    workers = {
        "jaxrl_par": common.Worker(
            sys.executable, "worker_ours.py", settings, args.cores
        )
    }
    for engine in ("sb3", "sbx") if args.sb3_python else ():
        asked = settings | {"engine": engine}
        workers[engine] = common.Worker(
            args.sb3_python, "worker_sb3.py", asked, args.cores
        )
    if args.brax_python:
        workers["brax"] = common.Worker(
            args.brax_python, "worker_brax.py", settings, args.cores
        )
    for worker in workers.values():
        worker.ask({"seed": 0})
    rows = []
    for seed in range(args.seeds):
        for name, worker in workers.items():
            answer = worker.ask({"seed": seed, "episodes": args.episodes})
            speed = answer["steps"] / answer["seconds"]
            row = {"name": name, "cores": args.cores, **settings, "seed": seed}
            about = {"worker": worker.about, **common.about()}
            rows.append({**row, **answer, "steps_per_second": speed, **about})
    for worker in workers.values():
        worker.close()
    print(f"\n{render(rows)}\n")
    common.write_rows(args.out / "compare_sb3.jsonl", rows)


def parse() -> argparse.Namespace:
    parser = common.parser(__doc__)
    add = parser.add_argument
    add("--sb3-python", help="interpreter that has both (without it: ours alone)")
    add("--brax-python", help="interpreter that has Brax, which has SAC of the two")
    add("--algorithm", choices=["dqn", "sac"], default="dqn")
    add("--env", default="CartPole-v1")
    add("--num-envs", type=int, default=10)
    add("--cores", type=int, default=0, help="0: as each runs itself")
    add("--seeds", type=int, default=3)
    add("--total-steps", type=float, default=40_000)
    add("--episodes", type=int, default=20)
    args = parser.parse_args()
    if args.small:
        args.seeds, args.total_steps, args.episodes = 1, 2000, 2
    return args


def render(rows: list[dict[str, Any]]) -> str:
    """One row for each engine."""
    lines, ours = [], []
    for name in dict.fromkeys(row["name"] for row in rows):
        runs = [row for row in rows if row["name"] == name]
        speeds = [run["steps_per_second"] for run in runs]
        ours = ours or speeds
        ratio = common.median([x / y for x, y in zip(ours, speeds, strict=True)])
        mean = sum(run["return"] for run in runs) / len(runs)
        engine = runs[0]["worker"]["engine"]
        speed = f"{common.median(speeds):,.0f}"
        lines.append([engine, speed, f"{ratio:.1f}", f"{mean:.0f}"])
    return common.table(["engine", "steps/s", "ours are faster by", "return"], lines)


if __name__ == "__main__":
    main()
