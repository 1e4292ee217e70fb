"""Peak memory must not grow with the length of a run.

    python experiments/bench/memory.py

Trains for a tenth of the steps and for all of them, in turns, each in a process of its
own that compiles afresh. Fails if the longer run's peak resident memory is more than
5 % above the shorter's, taking the smallest peak of each: compiling in several
threads makes a peak higher now and then, never lower.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from typing import Any

import common

LIMIT = 1.05


def main() -> None:
    args = parse()
    if args.child:
        print(json.dumps(child(args)))
        return
    total = int(args.total_steps)
    rows = [
        launch(args, steps)
        for _ in range(args.repeats)
        for steps in (total // 10, total)
    ]
    shorter, longer = (min(peaks(rows[i::2])) for i in (0, 1))
    ratio = longer / shorter
    print(f"\n{render(rows)}\n\nratio {ratio:.3f}, at most {LIMIT}")
    common.write_rows(args.out / "memory.jsonl", rows)
    if ratio > LIMIT and not args.small:  # too short to tell
        sys.exit(f"peak memory grew with the run: ratio {ratio:.3f} > {LIMIT}")


def parse() -> argparse.Namespace:
    parser = common.parser(__doc__)
    add = parser.add_argument
    add("--num-envs", type=int, default=64)
    add("--total-steps", type=float, default=1e7)
    add("--repeats", type=int, default=3, help="runs of each length")
    add("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.small and not args.child:
        args.total_steps, args.repeats = 5e5, 2
    return args


def launch(args: argparse.Namespace, total_steps: int) -> dict[str, Any]:
    """Peak bytes of a process that trains for `total_steps`."""
    command = [sys.executable, __file__, "--child", "--total-steps", str(total_steps)]
    command += ["--num-envs", str(args.num_envs)]
    result = subprocess.run(
        command,
        # Compiling takes memory too; a program found in the cache would need less.
        env={**os.environ, "JAX_ENABLE_COMPILATION_CACHE": "0"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return {**json.loads(result.stdout), **common.about()}


def child(args: argparse.Namespace) -> dict[str, Any]:
    """Train, and say how much memory that took at most."""
    import worker_ours

    import jaxrl_par as jp
    from jaxrl_par.cli.startup import prepare_backend

    algorithm = worker_ours.ppo({})
    prepare_backend(args.num_envs * algorithm.rollout_length, None, "auto")
    run = jp.train(
        algorithm,
        jp.make("CartPole-v1"),
        num_envs=args.num_envs,
        total_steps=int(args.total_steps),
    )
    return {
        "num_envs": args.num_envs,
        "steps": run.env_steps,
        "seconds": run.seconds,
        **common.memory(),
        **common.device_about(),
    }


def peaks(rows: list[dict[str, Any]]) -> list[int]:
    return [row["host_peak"] for row in rows]


def render(rows: list[dict[str, Any]]) -> str:
    header = ["environments", "steps", "seconds", "peak memory, MB"]
    lines = [
        [
            f"{row['num_envs']:,}",
            f"{row['steps']:,}",
            f"{row['seconds']:.1f}",
            f"{row['host_peak'] / 1e6:,.0f}",
        ]
        for row in rows
    ]
    return common.table(header, lines)


if __name__ == "__main__":
    main()
