"""The metrics of a run: a row for each update, and a column for each name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from jaxrl_par.train import files
from jaxrl_par.train.callbacks import Row

Columns = dict[str, np.ndarray]

# These are whole numbers; all other columns are float32, as they were computed.
_COUNTS = ("update", "env_steps", "frames", "episode_count")
_SUM = "_sum"


class History:
    """What the updates gave so far; an update has so many steps, a step so many frames.

    Columns are the same to the bit whether they were kept here or read from a file.
    """

    def __init__(self, steps_per_update: int, frames_per_step: int) -> None:
        self._steps, self._frames = steps_per_update, frames_per_step
        self._parts: list[Columns] = []
        self._names = {"episode_return", "episode_length"}  # and all with a value

    def restart(self, columns: Columns) -> None:
        """Begin with columns that were read from a file."""
        self._parts = [columns] if columns else []
        self._names |= columns.keys()

    def add(self, first: int, table: Mapping[str, np.ndarray]) -> list[Row]:
        """Take in the results of the updates from the number `first` on; their rows."""
        self._parts.append(self._columns(first, table))
        count = len(table["episode_count"])
        rows = [self._row(first + i, table, i) for i in range(count)]
        self._names.update(*rows)
        return rows

    def columns(self) -> Columns:
        """All of it, [updates]; NaN where an update lacks a value.

        What never had one, as a loss before learning starts, is no column.
        """
        found = dict.fromkeys(name for part in self._parts for name in part)
        names = [name for name in found if name in self._names]
        return {
            name: np.concatenate([_column(part, name) for part in self._parts])
            for name in names
        }

    def _columns(self, first: int, table: Mapping[str, np.ndarray]) -> Columns:
        rest = dict(table)
        count = rest.pop("episode_count")
        update = first + np.arange(len(count), dtype=np.int64)
        columns = {
            "update": update,
            "env_steps": update * self._steps,
            "frames": update * self._steps * self._frames,
            "episode_count": count.astype(np.int64),
        }
        for name, column in rest.items():
            if name.endswith(_SUM):
                with np.errstate(invalid="ignore"):
                    columns[name.removesuffix(_SUM)] = column / table[_counter(name)]
            else:
                columns[name] = column
        return columns

    def _row(self, update: int, table: Mapping[str, np.ndarray], index: int) -> Row:
        """One update's metrics; no mean where there was nothing to take it of."""
        steps = update * self._steps
        row: Row = {
            "update": update,
            "env_steps": steps,
            "frames": steps * self._frames,
            "episode_count": int(table["episode_count"][index]),
        }
        values = {name: float(column[index]) for name, column in table.items()}
        for name, value in values.items():
            if not name.endswith(_SUM):
                row.setdefault(name, value)
            elif count := values[_counter(name)]:
                row[name.removesuffix(_SUM)] = value / count
        return row


def _counter(name: str) -> str:
    """What a sum is divided by: the episodes that ended, or the gradient steps."""
    return "episode_count" if name.startswith("episode_") else "gradient_steps"


def read_metrics(path: Path) -> Columns:
    """The columns [updates] of a metrics file; NaN where a row lacks a value."""
    rows = files.read_rows(path, ("update", "env_steps", "episode_count"))
    names = dict.fromkeys(name for row in rows for name in row)
    if rows:  # columns there are though no episode ended
        names |= dict.fromkeys(("episode_return", "episode_length"))
    columns = {name: [row.get(name) for row in rows] for name in names}
    return {name: _parse(path, name, column) for name, column in columns.items()}


def _parse(path: Path, name: str, column: list) -> np.ndarray:
    whole = name in _COUNTS
    for number, value in enumerate(column, 1):
        allowed = isinstance(value, int) if whole else value is None
        if not allowed and (whole or not isinstance(value, int | float)):
            raise ValueError(f"{path} is damaged: line {number}: {name} {value!r}")
    if whole:
        return np.array(column, np.int64)
    return np.array([np.nan if x is None else x for x in column], np.float32)


def _column(part: Columns, name: str) -> np.ndarray:
    if name in part:
        return part[name]
    return np.full(len(part["update"]), np.nan, np.float32)
