"""PPO side by side with rejax, in turns: speed, compile time and return.

    python experiments/bench/compare_rejax.py --rejax-python .venv-rejax/bin/python

Each engine trains in a process of its own, and they take turns: seed 0 of one, seed
0 of the other, seed 1, ... Only one of them works at a time. A run is timed from its
start to its result, compiling and evaluation apart; then its greedy policy plays
`--episodes` episodes in the engine's own environment.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import common


def main() -> None:
    args = parse()
    rows, summaries = [], []
    for cores in args.cores:
        for num_envs in args.num_envs:
            new = compare(args, num_envs, cores)
            rows += new
            summaries.append(summarise(new))
            print(line(summaries[-1]), flush=True)
    common.write_rows(args.out, rows)
    print()
    print(render(summaries))
    print(f"\nraw results: {args.out}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--rejax-python", required=True, help="interpreter that has rejax")
    add("--env", default="CartPole-v1")
    add("--num-envs", type=int, nargs="+", default=[4, 64, 512, 2048])
    add("--cores", type=int, nargs="+", default=[0, 1], help="0: as each runs itself")
    add("--seeds", type=int, default=10, help="runs of each engine")
    add("--total-steps", type=float, default=500_000)
    add("--min-updates", type=int, default=16, help="more steps where these need it")
    add("--episodes", type=int, default=128)
    add("--out", type=Path, default=common.RESULTS / "compare_rejax.jsonl")
    return parser.parse_args()


def compare(
    args: argparse.Namespace, num_envs: int, cores: int
) -> list[dict[str, Any]]:
    """One row for each run of each engine, at one setting."""
    total = common.round_up(int(args.total_steps), num_envs, args.min_updates)
    settings = {"env": args.env, "num_envs": num_envs, "total_steps": total}
    workers = {
        "jaxrl_par": common.Worker(sys.executable, "worker_ours.py", settings, cores),
        "rejax": common.Worker(args.rejax_python, "worker_rejax.py", settings, cores),
    }
    rows = []
    warm_up = {name: worker.ask({"seed": 0}) for name, worker in workers.items()}
    for seed in range(args.seeds):
        for name, worker in workers.items():
            answer = worker.ask({"seed": seed, "episodes": args.episodes})
            rows.append(
                {
                    "name": name,
                    "cores": cores,
                    **settings,
                    "ppo": common.PPO,
                    "seed": seed,
                    "episodes": args.episodes,
                    **answer,
                    "steps_per_second": answer["steps"] / answer["seconds"],
                    "warm_up_seconds": warm_up[name]["seconds"],
                    "worker": worker.about,
                    **common.about(),
                }
            )
    for worker in workers.values():
        worker.close()
    return rows


def summarise(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians, the ratio run by run, and mean returns with their intervals."""
    ours = [row for row in rows if row["name"] == "jaxrl_par"]
    theirs = [row for row in rows if row["name"] == "rejax"]
    ratios = [
        a["steps_per_second"] / b["steps_per_second"]
        for a, b in zip(ours, theirs, strict=True)
    ]
    summary = {key: rows[0][key] for key in ("num_envs", "cores", "total_steps")}
    summary |= {"seeds": len(ours), "ratio": common.median(ratios)}
    summary["ratio_range"] = (min(ratios), max(ratios))
    for name, runs in (("ours", ours), ("rejax", theirs)):
        returns = [run["return"] for run in runs]
        summary[name] = {
            "steps_per_second": common.median([r["steps_per_second"] for r in runs]),
            "compile_seconds": runs[0]["worker"]["compile_seconds"],
            "devices": runs[0]["worker"]["devices"],
            "return": sum(returns) / len(returns),
            "interval": common.bootstrap(returns),
        }
    return summary


def line(summary: dict[str, Any]) -> str:
    ours, rejax = summary["ours"], summary["rejax"]
    return (
        f"{cores_name(summary['cores'])}, {summary['num_envs']} environments: "
        f"{ours['steps_per_second']:,.0f} against {rejax['steps_per_second']:,.0f} "
        f"steps/s, ratio {summary['ratio']:.2f}"
    )


def cores_name(cores: int) -> str:
    return f"{cores} pinned" if cores else "all"


def render(summaries: list[dict[str, Any]]) -> str:
    """The table of README.md."""

    def result(run: dict[str, Any]) -> str:
        low, high = run["interval"]
        return f"{run['return']:.0f} [{low:.0f}, {high:.0f}]"

    header = [
        "cores",
        "environments",
        "steps",
        "ours, steps/s",
        "rejax, steps/s",
        "ratio (range)",
        "ours, return",
        "rejax, return",
        "compile, s: ours / rejax",
    ]
    rows = []
    for summary in summaries:
        ours, rejax = summary["ours"], summary["rejax"]
        low, high = summary["ratio_range"]
        rows.append(
            [
                cores_name(summary["cores"]),
                f"{summary['num_envs']:,}",
                f"{summary['total_steps']:,}",
                f"{ours['steps_per_second']:,.0f}",
                f"{rejax['steps_per_second']:,.0f}",
                f"{summary['ratio']:.2f} ({low:.2f} to {high:.2f})",
                result(ours),
                result(rejax),
                f"{ours['compile_seconds']:.1f} / {rejax['compile_seconds']:.1f}",
            ]
        )
    return common.table(header, rows)


if __name__ == "__main__":
    main()
