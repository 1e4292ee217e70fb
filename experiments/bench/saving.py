"""What saving costs: a checkpoint after every call of the loop, against none.

    python experiments/bench/saving.py

The same training with and without a run directory that saves at every call, in turns,
seed by seed. Calls take at least a second. The clock runs from the end of the first
call to the end of the last, and includes what lies between calls: copying the state,
rows, waiting for the write before. Fails if saving costs more than 5 % of the speed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import common
import worker_ours

LIMIT = 0.05
SETTINGS: dict[str, dict[str, Any]] = {
    "never": {},
    "every call": {"save_every": 0.0},
}


def main() -> None:
    args = parse()
    from jaxrl_par.cli.startup import prepare_backend

    algorithm = worker_ours.ppo({})
    prepare_backend(args.num_envs * algorithm.rollout_length, None, "auto")
    for name in SETTINGS:  # what is done once: compiling, importing
        measure(args, name, seed=1000, total_steps=args.total_steps / 4)
    rows = []
    for seed in range(args.seeds):
        names = list(SETTINGS)
        for name in names if seed % 2 else names[::-1]:
            rows.append(measure(args, name, seed, args.total_steps))
            print(
                f"seed {seed}, {name}: {rows[-1]['steps_per_second']:,.0f}", flush=True
            )
    common.write_rows(args.out / "saving.jsonl", rows)
    print(f"\n{render(rows)}")
    cost = 1 - ratio(rows)
    if cost > LIMIT and not args.small:
        sys.exit(f"saving costs {cost:.1%} of the speed, more than {LIMIT:.0%}")


def parse() -> argparse.Namespace:
    parser = common.parser(__doc__)
    add = parser.add_argument
    add("--num-envs", type=int, default=512)
    add("--total-steps", type=float, default=6e6)
    add("--chunk-seconds", type=float, default=1.2)
    add("--seeds", type=int, default=5)
    args = parser.parse_args()
    if args.small:
        args.total_steps, args.chunk_seconds, args.seeds = 1e6, 0.1, 1
    return args


def measure(
    args: argparse.Namespace, name: str, seed: int, total_steps: float
) -> dict[str, Any]:
    """A run's speed between its calls, and its return."""
    import jaxrl_par as jp

    points: list[tuple[float, int, float]] = []

    def note(progress: jp.Progress) -> None:
        points.append((time.perf_counter(), progress.env_steps, progress.seconds))

    with tempfile.TemporaryDirectory() as folder:
        settings = SETTINGS[name]
        out = Path(folder) / "run" if settings else None
        run = jp.train(
            worker_ours.ppo({}),
            jp.make("CartPole-v1"),
            num_envs=args.num_envs,
            total_steps=int(total_steps),
            seed=seed,
            chunk_seconds=args.chunk_seconds,
            callbacks=[note],
            out=out,
            **settings,
        )
    points = points[1:-1]  # the first is one update, the last what was left
    seconds, steps, busy = (b - a for a, b in zip(points[0], points[-1], strict=True))
    assert run.evaluation is not None
    return {
        "saving": name,
        "num_envs": args.num_envs,
        "seed": seed,
        "calls": len(points) - 1,
        "seconds_per_call": busy / (len(points) - 1),
        "steps_per_second": steps / seconds,
        "return": run.evaluation.mean_return,
        **common.about(),
        **common.device_about(),
    }


def speeds(rows: list[dict[str, Any]], name: str) -> list[float]:
    return [row["steps_per_second"] for row in rows if row["saving"] == name]


def ratio(rows: list[dict[str, Any]]) -> float:
    """The median over pairs of neighbouring runs."""
    pairs = zip(speeds(rows, "every call"), speeds(rows, "never"), strict=True)
    return common.median([saving / never for saving, never in pairs])


def render(rows: list[dict[str, Any]]) -> str:
    header = ["saving", "environments", "steps/s", "s/call", "ratio", "return"]
    lines = []
    for name in SETTINGS:
        mine = [row for row in rows if row["saving"] == name]
        returns = [row["return"] for row in mine]
        lines.append(
            [
                name,
                f"{mine[0]['num_envs']:,}",
                f"{common.median(speeds(rows, name)):,.0f}",
                f"{common.median([row['seconds_per_call'] for row in mine]):.2f}",
                "1" if name == "never" else f"{ratio(rows):.3f}",
                f"{sum(returns) / len(returns):.0f}",
            ]
        )
    return common.table(header, lines)


if __name__ == "__main__":
    main()
