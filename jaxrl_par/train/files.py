"""Files that are whole at every instant, and rows of JSON that are only appended."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Row = dict[str, Any]


def write_json(path: Path, data: Any) -> None:
    """Write JSON aside, flush it to the disk and rename it over `path`."""
    aside = path.with_suffix(".partial")
    try:
        with open(aside, "w") as file:
            file.write(json.dumps(finite(data), indent=2) + "\n")
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except OSError:
        aside.unlink(missing_ok=True)
        raise


def finite(value: Any) -> Any:
    """The same JSON value with null for numbers that JSON has not: NaN, infinity."""
    if isinstance(value, dict):
        return {k: finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [finite(v) for v in value]
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value


def append(path: Path, rows: Sequence[Row]) -> None:
    """Add rows to a file of JSON lines, each with one write.

    So a process killed at any moment leaves at most one line that is not whole, the
    last, and only where it spans two pages. A full disk leaves none: the file is
    cut back to what it was, and OSError raised.
    """
    lines = [(json.dumps(finite(row)) + "\n").encode() for row in rows]
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    size = os.fstat(file).st_size
    try:
        for line in lines:
            if os.write(file, line) != len(line):
                raise OSError(28, "No space left on device", str(path))
    except OSError:
        os.ftruncate(file, size)
        raise
    finally:
        os.close(file)


def read_rows(path: Path, needed: Sequence[str] = ()) -> list[Row]:
    """The rows of a file of JSON lines; none if there is no file.

    A last line that is not whole (a run killed while it wrote) is left out. Raises
    ValueError for any other line that is no JSON object with the names `needed`.
    """
    if not path.exists():
        return []
    return [_row(path, n, x, needed) for n, x in enumerate(_lines(path), 1)]


def keep_rows(path: Path, wanted: Callable[[Row], bool]) -> None:
    """Leave only the wanted rows in a file of JSON lines, whole at every instant."""
    if not path.exists():
        return
    lines = _lines(path)
    kept = [x for n, x in enumerate(lines, 1) if wanted(_row(path, n, x, ("update",)))]
    whole = b"".join(line + b"\n" for line in kept)
    if path.read_bytes().startswith(whole):  # only its end goes
        os.truncate(path, len(whole))
        return
    aside = path.with_suffix(".partial")
    aside.write_bytes(whole)
    flush(aside)
    aside.replace(path)


def flush(path: Path) -> None:
    """Have a file or a directory reach the disk."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _lines(path: Path) -> list[bytes]:
    lines = path.read_bytes().split(b"\n")[:-1]  # what follows the last is not whole
    return [line for line in lines if line.strip()]


def _row(path: Path, number: int, line: bytes, needed: Sequence[str]) -> Row:
    try:
        row = json.loads(line)
        if not isinstance(row, dict):
            raise ValueError(f"{row!r} is no object")
        if missing := [name for name in needed if name not in row]:
            raise ValueError(f"it has no {', '.join(missing)}")
    except ValueError as error:
        raise ValueError(f"{path} is damaged: line {number}: {error}") from None
    return row
