"""Put the tables of the measured results into README.md.

    python experiments/bench/report.py

For each setting the latest run of the benchmark counts. A benchmark without results
leaves its place empty. With `--small` the tables are only printed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import accelerator
import breakdown
import capacity
import common
import compare_rejax
import compare_sb3
import memory
import ready
import replay
import saving

README = common.HERE / "README.md"
Rows = list[dict[str, Any]]


def main() -> None:
    args = common.parser(__doc__).parse_args()
    if args.small:
        print("\n\n".join(table for table in render(args.out).values() if table))
        return
    text = README.read_text()
    tables = render(args.out)
    for name, table in tables.items():
        mark = re.compile(rf"(<!-- results: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        if not mark.search(text):
            raise ValueError(f"README.md has no place for the results of {name}")
        body = f"\n{table}\n\n" if table else ""
        text = mark.sub(lambda m, body=body: m[1] + body + m[2], text)
    README.write_text(text)
    print(", ".join(f"{name}: {'yes' if t else 'none'}" for name, t in tables.items()))


def render(folder: Path) -> dict[str, str]:
    """A table, or nothing, for each benchmark."""

    def rows(name: str) -> Rows:
        return common.read_rows(folder / f"{name}.jsonl")

    return {
        **compared(rows("compare_rejax")),
        "compare_sb3": "\n\n".join(
            f"{task}:\n\n{described(group, compare_sb3.render)}"
            for task, group in beside_sb3(rows("compare_sb3")).items()
        ),
        "capacity": described(latest(rows("capacity")), capacity.render),
        "breakdown": by_task(latest(rows("breakdown"), "env", "network", "num_envs")),
        "ready": described(latest(rows("ready")), ready.render),
        "memory": described(latest(rows("memory")), memory.render),
        "saving": described(latest(rows("saving")), saving.render),
        "replay": described(newest_cells(rows("replay")), replay.render),
        "accelerator": accelerated(folder / "accelerator.json"),
    }


def latest(rows: Rows, *names: str) -> Rows:
    """The rows of the latest run with each setting."""
    dates: dict[tuple, str] = {}
    for row in rows:
        setting = tuple(row[name] for name in names)
        dates[setting] = max(row["date"], dates.get(setting, ""))
    return [row for row in rows if row["date"] == dates[tuple(map(row.get, names))]]


def newest_cells(rows: Rows) -> Rows:
    return latest(rows, "operation", "kind", "items", "batch")


def described(rows: Rows, table: Callable[[Rows], str]) -> str:
    return f"{table(rows)}\n\n{origin(rows[0])}" if rows else ""


def compared(rows: Rows) -> dict[str, str]:
    """A place and its table for each algorithm, environment by environment."""
    task, setting = ("algorithm", "title"), ("cores", "num_envs")
    tasks: dict[tuple, dict[tuple, Rows]] = {}
    rows = [{"algorithm": "ppo", **row, "title": title(row)} for row in rows]
    for row in latest(rows, *task, *setting):
        groups = tasks.setdefault(tuple(map(row.get, task)), {})
        groups.setdefault(tuple(map(row.get, setting)), []).append(row)
    tables: dict[str, str] = {}
    for algorithm in common.SHARED:
        parts = []
        for (_, name), groups in (t for t in tasks.items() if t[0][0] == algorithm):
            summaries = [compare_rejax.summarise(group) for group in groups.values()]
            table = f"{name}:\n\n{compare_rejax.render(summaries)}"
            parts.append(f"{table}\n\n{origin(next(reversed(groups.values()))[-1])}")
        tables[f"compare_rejax {algorithm}"] = "\n\n".join(parts)
    return tables


def title(row: dict[str, Any]) -> str:
    """The environment, and what is not as in common.py."""
    name = row["env"]
    if row.get("hidden"):
        name += f", layers of {' and '.join(map(str, row['hidden']))}"
    if row.get("capacity"):
        name += f", a replay of {row['capacity']:,}"
    return name


def beside_sb3(rows: Rows) -> dict[str, Rows]:
    """The latest run of each task, by its name."""
    names = ("algorithm", "env", "num_envs")
    tasks: dict[str, Rows] = {}
    for row in latest(rows, *names):
        name = f"{row['algorithm'].upper()}, {row['env']}, {row['num_envs']} at once"
        tasks.setdefault(name, []).append(row)
    return tasks


def by_task(rows: Rows) -> str:
    groups: dict[tuple, Rows] = {}
    for row in rows:
        groups.setdefault((row["env"], row["network"]), []).append(row)
    return "\n\n".join(
        f"{env}, {network}, environments in the header:\n\n"
        + described(group, breakdown.render)
        for (env, network), group in groups.items()
    )


def accelerated(path: Path) -> str:
    if not path.exists():
        return ""
    result = json.loads(path.read_text())
    speed = [row for row in result["speed"] if "failed" not in row]
    parts = [row for row in result["parts"] if "failed" not in row]
    last = {**result["about"], **(speed[-1] if speed else {})}
    tables = [accelerator.render(result["speed"]), origin(last)]
    return "\n\n".join([*tables, *([by_task(parts)] if parts else [])])


def origin(row: dict[str, Any]) -> str:
    """Where a table comes from."""
    about = row.get("worker", row)
    where = f"{row['cpu']}, {row['cpu_cores']} cores"
    if about["platform"] != "cpu":
        where = f"{about['device']}, {where}"
    versions = f"jax {about['jax']}, Python {row['python']}"
    return (
        f"`{row['command']}`: {row['date'][:10]}, commit {row['commit']}, {where}, "
        f"{versions}, {about['dtype']}."
    )


if __name__ == "__main__":
    main()
