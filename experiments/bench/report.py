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
import common
import compare_rejax
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
        "compare_rejax": compared(latest(rows("compare_rejax"), "cores", "num_envs")),
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
    return f"{table(rows)}\n\n{origin(rows[-1])}" if rows else ""


def compared(rows: Rows) -> str:
    groups: dict[tuple, Rows] = {}
    for row in rows:
        groups.setdefault((row["cores"], row["num_envs"]), []).append(row)
    summaries = [compare_rejax.summarise(group) for group in groups.values()]
    return described(rows, lambda _: compare_rejax.render(summaries))


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
