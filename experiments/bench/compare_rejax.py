"""Ours side by side with rejax, in turns: speed, compile time and return.

    python experiments/bench/compare_rejax.py --rejax-python .venv-rejax/bin/python

Each engine trains in a process of its own, and they take turns: seed 0 of one, seed
0 of the other, seed 1, ... Only one of them works at a time. A run is timed from its
start to its result, compiling and evaluation apart; then its greedy policy plays
`--episodes` episodes in the engine's own environment.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import common

_SETTINGS = ("algorithm", "env", "network", "capacity", "hidden")


def main() -> None:
    args = parse()
    rows, summaries = [], []
    for cores in args.cores:
        for num_envs in args.num_envs:
            new = compare(args, num_envs, cores)
            rows += new
            summaries.append(summarise(new))
            print(line(summaries[-1]), flush=True)
    print(f"\n{render(summaries)}\n")
    common.write_rows(args.out / "compare_rejax.jsonl", rows)


def parse() -> argparse.Namespace:
    parser = common.parser(__doc__)
    add = parser.add_argument
    add("--rejax-python", help="interpreter that has rejax (without it: ours alone)")
    add("--algorithm", choices=list(common.SHARED), default="ppo")
    add("--env", default="CartPole-v1")
    add("--network", choices=["mlp", "cnn"], default="mlp", help="ours; rejax: mlp")
    add("--num-envs", type=int, nargs="+", default=[4, 64, 512, 2048])
    add("--cores", type=int, nargs="+", default=[0, 1], help="0: as each runs itself")
    add("--seeds", type=int, default=10, help="runs of each engine")
    add("--total-steps", type=float, default=500_000)
    add("--min-updates", type=int, default=16, help="more steps where these need it")
    add("--episodes", type=int, default=128)
    add("--capacity", type=int, help="of a replay (without it: as in common.py)")
    add("--hidden", type=int, nargs="+", help="SAC's layers (without it: as there)")
    args = parser.parse_args()
    if args.hidden and args.algorithm != "sac":
        parser.error("--hidden is for --algorithm sac: of others rejax has one size")
    if args.small:
        args.num_envs, args.cores, args.seeds = [4], [1], 2
        args.total_steps, args.min_updates, args.episodes = 2000, 1, 8
    return args


def compare(
    args: argparse.Namespace, num_envs: int, cores: int
) -> list[dict[str, Any]]:
    """One row for each run of each engine, at one setting."""
    total = common.round_up(
        int(args.total_steps), num_envs, args.min_updates, args.algorithm
    )
    settings = {name: getattr(args, name) for name in _SETTINGS}
    settings |= {"num_envs": num_envs, "total_steps": total}
    workers = {
        "jaxrl_par": common.Worker(sys.executable, "worker_ours.py", settings, cores)
    }
    if args.rejax_python:
        python = args.rejax_python
        workers["rejax"] = common.Worker(python, "worker_rejax.py", settings, cores)
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
                    "shared": common.SHARED[args.algorithm],
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
    summary = {key: rows[0][key] for key in ("num_envs", "cores", "total_steps")}
    speeds = {}
    for name in ("jaxrl_par", "rejax"):
        runs = [row for row in rows if row["name"] == name]
        if not runs:
            continue
        returns = [run["return"] for run in runs]
        speeds[name] = [run["steps_per_second"] for run in runs]
        summary[name] = {
            "runs": len(runs),
            "steps_per_second": common.median(speeds[name]),
            "compile_seconds": runs[0]["worker"]["compile_seconds"],
            "devices": runs[0]["worker"]["devices"],
            "return": sum(returns) / len(returns),
            "interval": common.bootstrap(returns),
        }
    if "rejax" in speeds:
        pairs = zip(speeds["jaxrl_par"], speeds["rejax"], strict=True)
        ratios = [ours / theirs for ours, theirs in pairs]
        summary["ratio"] = common.median(ratios)
        summary["ratio_range"] = (min(ratios), max(ratios))
    return summary


def line(summary: dict[str, Any]) -> str:
    """What is said as soon as a setting is done."""
    start = f"{cores_name(summary['cores'])}, {summary['num_envs']} environments: "
    ours = f"{summary['jaxrl_par']['steps_per_second']:,.0f} steps/s"
    if "rejax" not in summary:
        return start + ours
    theirs = f"{summary['rejax']['steps_per_second']:,.0f}"
    return f"{start}{ours} against {theirs}, ratio {summary['ratio']:.2f}"


def cores_name(cores: int) -> str:
    return f"{cores} pinned" if cores else "all"


def render(summaries: list[dict[str, Any]]) -> str:
    """One row for each setting."""
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
        ours, rejax = summary["jaxrl_par"], summary.get("rejax")
        low, high = summary.get("ratio_range", (0, 0))
        ratio = f"{summary['ratio']:.2f} ({low:.2f} to {high:.2f})" if rejax else "-"
        rows.append(
            [
                cores_name(summary["cores"]),
                f"{summary['num_envs']:,}",
                f"{summary['total_steps']:,}",
                _speed(ours),
                _speed(rejax),
                ratio,
                _return(ours),
                _return(rejax),
                f"{_compile(ours)} / {_compile(rejax)}",
            ]
        )
    return common.table(header, rows)


def _speed(run: dict[str, Any] | None) -> str:
    return f"{run['steps_per_second']:,.0f}" if run else "-"


def _compile(run: dict[str, Any] | None) -> str:
    return f"{run['compile_seconds']:.1f}" if run else "-"


def _return(run: dict[str, Any] | None) -> str:
    if not run:
        return "-"
    low, high = run["interval"]
    return f"{run['return']:.0f} [{low:.0f}, {high:.0f}]"


if __name__ == "__main__":
    main()
