"""The checkpoints of a run: the newest few and the best, written in a thread."""

from __future__ import annotations

import contextlib
import json
import shutil
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

from jaxrl_par.train import checkpoint
from jaxrl_par.train.checkpoint import MANIFEST, DamagedError, Snapshot
from jaxrl_par.types import PyTree

Which = Literal["newest", "best"]


class Checkpoints:
    """Those in `directory`, each named by its update.

    The newest `keep` are kept, and the first with the highest `mean_return` among
    their facts.
    """

    def __init__(self, directory: Path, keep: int = 2) -> None:
        self.directory = directory
        self.keep = keep
        self._writer: ThreadPoolExecutor | None = None
        self._writing: Future[None] | None = None

    def save(
        self,
        tree: PyTree,
        facts: Mapping[str, Any],
        before: Callable[[], None] = lambda: None,
    ) -> None:
        """Copy a state now and write it in a thread, after calling `before` there.

        The facts hold its `update`. Waits for the write before; raises OSError if
        that one failed.
        """
        snapshot = Snapshot.of(tree)
        self.wait()

        def write() -> None:
            before()
            self._write(snapshot, facts)

        self._writer = self._writer or ThreadPoolExecutor(max_workers=1)
        self._writing = self._writer.submit(write)

    def wait(self) -> None:
        """Until all is on the disk; raises OSError if it could not be written."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    @property
    def empty(self) -> bool:
        """Whether there is none, be it whole or damaged."""
        self.wait()
        return not self._paths()

    def best_return(self) -> float | None:
        """The highest mean return among the checkpoints, or None."""
        self.wait()
        known = [_mean_return(path) for path in self._paths()]
        return max((x for x in known if x is not None), default=None)

    def load(
        self, like: PyTree, which: Which = "newest"
    ) -> tuple[PyTree, dict[str, Any]]:
        """The newest (or best) state that is whole, and its facts.

        A damaged one is named in a warning, and the one before used. Raises
        ValueError if there is none, or if it does not fit `like` (see
        `checkpoint.load`).
        """
        self.wait()
        paths = self._paths()
        if which == "best":
            paths = sorted(paths, key=_rank, reverse=True)
        damaged: list[str] = []
        for path in paths:
            try:
                state, facts = checkpoint.load(path, like)
                if facts.get("update") != int(path.name):
                    rule = f"is of update {facts.get('update')}"
                    raise DamagedError(f"checkpoint {path} cannot be used: it {rule}")
            except DamagedError as error:
                damaged.append(str(error))
                continue
            for message in damaged:
                warnings.warn(f"{message}; {path} is used", stacklevel=2)
            if which == "best" and _mean_return(path) is None:
                rule = "none was evaluated: the newest is taken for the best"
                warnings.warn(f"checkpoints in {self.directory}: {rule}", stacklevel=2)
            return state, facts
        reasons = "; ".join(damaged) or "it holds none"
        raise ValueError(f"no checkpoint in {self.directory} can be used: {reasons}")

    def rewind(self, update: int) -> None:
        """Leave whole checkpoints of at most this update; others are put aside.

        What a killed process left half written, or half replaced, is removed or put
        back.
        """
        self.wait()
        for old in self.directory.glob(".*.old"):
            path = old.with_name(old.name[1:].removesuffix(".old"))
            if not path.exists():
                old.rename(path)
        for path in self.directory.glob(".*"):
            shutil.rmtree(path, ignore_errors=True)
        for path in self._paths():
            if _update(path) > update or not _is_whole(path):
                aside = path.with_name(f"{path.name}.damaged")
                shutil.rmtree(aside, ignore_errors=True)
                path.rename(aside)

    def _write(self, snapshot: Snapshot, facts: Mapping[str, Any]) -> None:
        path = self.directory / checkpoint.name_of(facts["update"])
        checkpoint.save(path, snapshot, facts)
        paths = self._paths()
        best = max(paths, key=_rank)
        for path in paths[self.keep :]:
            if path != best or _mean_return(path) is None:
                _remove(path)

    def _paths(self) -> list[Path]:
        """From the newest to the oldest."""
        names = self.directory.iterdir() if self.directory.is_dir() else ()
        return sorted((p for p in names if p.name.isdecimal()), key=_update)[::-1]


def _remove(path: Path) -> None:
    """Half removed, it must not look like one: `rewind` takes hidden ones away."""
    hidden = path.with_name(f".{path.name}.gone")
    shutil.rmtree(hidden, ignore_errors=True)
    with contextlib.suppress(OSError):  # what cannot be removed takes room, no more
        path.rename(hidden)
    shutil.rmtree(hidden, ignore_errors=True)


def _is_whole(path: Path) -> bool:
    try:
        content = checkpoint.read_manifest(path)
    except DamagedError:
        return False
    return content["facts"].get("update") == _update(path)


def _update(path: Path) -> int:
    return int(path.name)


def _rank(path: Path) -> tuple[float, int]:
    """By mean return; the first of equals; without one, the newest of the last."""
    value = _mean_return(path)
    if value is None:
        return float("-inf"), _update(path)
    return value, -_update(path)


def _mean_return(path: Path) -> float | None:
    """As its manifest says; None if it was not evaluated or cannot be read."""
    try:
        value = json.loads((path / MANIFEST).read_bytes())["facts"]["mean_return"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return float(value) if isinstance(value, int | float) else None
