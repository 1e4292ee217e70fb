"""Seconds from the start of a process to a solved CartPole-v1, and where they go.

    python experiments/bench/ready.py

Solved: a greedy evaluation of 100 episodes has a mean return of at least 475. A cold
start compiles everything; a warm one finds it in the compilation cache that the cold
one left.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any

import common

SOLVED = 475.0


def main() -> None:
    args = parse()
    if args.child:
        print(json.dumps(child(args)))
        return
    rows = []
    for repeat in range(args.repeats):
        with tempfile.TemporaryDirectory() as cache:
            for start in ("cold", "warm"):
                rows.append({"start": start, **launch(args, cache, args.seed + repeat)})
                print(describe(rows[-1]), flush=True)
    print(f"\n{render(rows)}\n")
    common.write_rows(args.out / "ready.jsonl", rows)
    if not args.small and not all(row["solved"] for row in rows):
        sys.exit("not solved")


def parse() -> argparse.Namespace:
    parser = common.parser(__doc__)
    add = parser.add_argument
    add("--seed", type=int, default=0)
    add("--repeats", type=int, default=3, help="cold and warm starts, a seed each")
    add("--eval-every", type=float, default=10_000, help="steps between evaluations")
    add("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.small:
        args.repeats = 1
    return args


def launch(args: argparse.Namespace, cache: str, seed: int) -> dict[str, Any]:
    """Start a process with this compilation cache; its seconds from here on."""
    command = [sys.executable, __file__, "--child", "--seed", str(seed)]
    command += ["--eval-every", str(args.eval_every)]
    command += ["--small"] if args.small else []
    start = time.time()
    result = subprocess.run(
        command,
        env={**os.environ, "JAX_COMPILATION_CACHE_DIR": cache} | CACHE_ALL,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    answer = json.loads(result.stdout)
    answer["import"] = answer.pop("imported_at") - start
    answer["total"] = answer.pop("solved_at") - start
    known = answer["import"] + answer["compile"] + answer["train"]
    answer["evaluate"] = answer["total"] - known
    return {**answer, "seed": seed, **common.about()}


# As the engine sets it where it chooses the cache's place itself.
CACHE_ALL = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}


def child(args: argparse.Namespace) -> dict[str, Any]:
    """Train with the preset until solved, as `jaxrl-par train` does."""
    import jaxrl_par as jp
    from jaxrl_par.cli.startup import prepare_backend
    from jaxrl_par.presets import preset

    imported_at = time.time()
    chosen = preset("ppo", "CartPole-v1")
    settings = {**chosen.settings, "eval_every": int(args.eval_every)}
    if args.small:
        settings["total_steps"] = 1000
    samples = settings["num_envs"] * chosen.algorithm.rollout_length
    prepare_backend(samples, data=None, device="auto")
    solved_at = []

    def stop_when_solved(progress: jp.Progress) -> str | None:
        evaluation = progress.evaluation
        if evaluation is None or solved_at or evaluation.mean_return < SOLVED:
            return None
        solved_at.append((time.time(), progress.env_steps, progress.seconds))
        return jp.STOP

    run = jp.train(
        chosen.algorithm,
        jp.make("CartPole-v1"),
        callbacks=[stop_when_solved],
        seed=args.seed,
        **settings,
    )
    end = (time.time(), run.env_steps, run.seconds)
    finished_at, steps, seconds = solved_at[0] if solved_at else end
    return {
        "imported_at": imported_at,
        "solved_at": finished_at,
        "solved": bool(solved_at),
        "steps": steps,
        "compile": run.compile_seconds,
        "train": seconds,
        **common.device_about(),
    }


PARTS = ("total", "import", "compile", "train", "evaluate")


def describe(row: dict[str, Any]) -> str:
    parts = ", ".join(f"{name} {row[name]:.1f} s" for name in PARTS)
    end = "solved" if row["solved"] else "NOT SOLVED"
    return f"{row['start']}, seed {row['seed']}: {parts}; {end} at {row['steps']:,}"


def render(rows: list[dict[str, Any]]) -> str:
    """Medians: cold and warm."""
    header = ["start", *(f"{name}, s" for name in PARTS), "steps", "runs"]
    lines = []
    for start in ("cold", "warm"):
        found = [row for row in rows if row["start"] == start]
        middle = [common.median([row[name] for row in found]) for name in PARTS]
        steps = common.median([row["steps"] for row in found])
        cells = [f"{value:.1f}" for value in middle]
        lines.append([start, *cells, f"{steps:,.0f}", str(len(found))])
    return common.table(header, lines)


if __name__ == "__main__":
    main()
