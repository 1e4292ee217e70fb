"""PPO at 2,048 to 65,536 environments, for an accelerator: speed, memory, parts.

    python experiments/bench/accelerator.py --rejax-python .venv-rejax/bin/python

Every engine runs alone, in a process of its own, since each takes the accelerator's
memory for itself; they alternate setting by setting. Results are written after each
setting, so that what was measured is kept if the time runs out.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import common

# Environment, network; rejax has only the first kind of network.
TASKS = [
    ("CartPole-v1", "mlp"),
    ("Breakout-MinAtar", "mlp"),
    ("Breakout-MinAtar", "cnn"),
]


def main() -> None:
    args = parse()
    result: dict[str, Any] = {"about": common.about(), "speed": [], "parts": []}
    for env, network in args.tasks:
        for num_envs in args.num_envs:
            result["speed"] += speed(args, env, network, num_envs)
            save(args.out, result)
        for num_envs in args.parts_num_envs:
            result["parts"] += parts_of(args, env, network, num_envs)
            save(args.out, result)
    print(f"\n{render(result['speed'])}")
    print(f"raw results: {args.out / 'accelerator.json'}")
    if any("failed" in row for row in result["speed"] + result["parts"]):
        sys.exit("a part of it failed; the rest is kept")


def parse() -> argparse.Namespace:
    parser = common.parser(__doc__)
    add = parser.add_argument
    add("--rejax-python", help="interpreter that has rejax (without it: ours alone)")
    add("--num-envs", type=int, nargs="+", default=[2048, 16384, 65536])
    add("--parts-num-envs", type=int, nargs="*", default=[16384])
    add("--tasks", type=int, nargs="+", default=[0, 1, 2], help=f"of {TASKS}")
    add("--repeats", type=int, default=3, help="timed runs of each engine")
    add("--total-steps", type=float, default=2e7, help="of each run")
    add("--min-updates", type=int, default=4, help="more steps where these need it")
    args = parser.parse_args()
    if args.small:
        args.num_envs, args.parts_num_envs, args.tasks = [8], [8], [0]
        args.repeats, args.total_steps, args.min_updates = 1, 2000, 1
    args.tasks = [TASKS[i] for i in args.tasks]
    return args


def speed(
    args: argparse.Namespace, env: str, network: str, num_envs: int
) -> list[dict[str, Any]]:
    """One row for each engine."""
    total = common.round_up(int(args.total_steps), num_envs, args.min_updates)
    settings = {"env": env, "num_envs": num_envs, "total_steps": total}
    settings["network"] = network
    engines = [("jaxrl_par", sys.executable, "worker_ours.py")]
    if args.rejax_python and network == "mlp":
        engines.append(("rejax", args.rejax_python, "worker_rejax.py"))
    rows = []
    for name, python, script in engines:
        row = {"name": name, **settings, **measure(args, python, script, settings)}
        rows.append(row)
        print(describe(row), flush=True)
    return rows


def measure(
    args: argparse.Namespace, python: str, script: str, settings: dict[str, Any]
) -> dict[str, Any]:
    """Median speed, compile time and memory; or why the engine failed."""
    try:
        worker = common.Worker(python, script, settings)
        worker.ask({"seed": 0})
        runs = [worker.ask({"seed": i}) for i in range(args.repeats)]
    except RuntimeError as error:  # out of memory, say: the others go on
        return {"failed": str(error)}
    worker.close()
    return {
        "steps_per_second": common.median([r["steps"] / r["seconds"] for r in runs]),
        "runs": runs,
        "device_peak": runs[-1]["device_peak"],
        "host_peak": runs[-1]["host_peak"],
        **worker.about,
    }


def parts_of(
    args: argparse.Namespace, env: str, network: str, num_envs: int
) -> list[dict[str, Any]]:
    """breakdown.py's results, from a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(common.HERE / "breakdown.py"), "--cores", "0"]
        command += ["--env", env, "--network", network, "--out", folder]
        command += ["--num-envs", str(num_envs), "--rounds", str(args.repeats)]
        command += ["--steps", str(args.total_steps / 4)]
        if subprocess.run(command, check=False).returncode:
            return [{"env": env, "network": network, "failed": True}]
        return common.read_rows(Path(folder) / "breakdown.jsonl")


def save(folder: Path, result: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "accelerator.json").write_text(json.dumps(result, indent=1) + "\n")


def describe(row: dict[str, Any]) -> str:
    start = f"{row['env']}, {row['network']}, {row['num_envs']:,}: {row['name']} "
    if "failed" in row:
        return start + f"failed: {row['failed']}"
    return start + f"{row['steps_per_second']:,.0f} steps/s"


def render(rows: list[dict[str, Any]]) -> str:
    """One row for each engine and setting."""
    header = ["environment", "network", "environments", "engine", "steps/s"]
    header += ["compile, s", "device memory, MB", "program, MB"]
    lines = []
    for row in rows:
        line = [row["env"], row["network"], f"{row['num_envs']:,}", row["name"]]
        if "failed" in row:
            lines.append([*line, "failed", "-", "-", "-"])
            continue
        peak = row["device_peak"]
        size = row["program_bytes"]
        program = size["argument"] + size["output"] - size["alias"] + size["temp"]
        line += [f"{row['steps_per_second']:,.0f}", f"{row['compile_seconds']:.1f}"]
        line += [f"{peak / 1e6:,.0f}" if peak else "-", f"{program / 1e6:,.0f}"]
        lines.append(line)
    return common.table(header, lines)


if __name__ == "__main__":
    main()
