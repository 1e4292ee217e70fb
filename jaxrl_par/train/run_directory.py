"""A callback that writes a run's directory as the run goes on.

    config.json          settings, versions, devices, commit
    metrics.jsonl        a row for each update
    evaluations.jsonl    a row for each evaluation, with every episode
    checkpoints/last.npz the training state
    summary.json         the result
    curves.png           the learning curve, if an episode ended

Rows are only appended, and flushed at every call; the other files are whole at
every instant. No file has a bare NaN: a value that is not finite is null.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from jaxrl_par.train import checkpoint
from jaxrl_par.train.callbacks import Progress
from jaxrl_par.train.evaluate import Evaluation
from jaxrl_par.train.run import STATE_FILE, finite, write_json

# Seconds between checkpoints of the state.
CHECKPOINT_SECONDS = 60.0
# Episodes of the mean return in the summary.
_RECENT_EPISODES = 100


class RunDirectory:
    """Writes `path`; `description` becomes `config.json`.

    Raises ValueError, by name, for a directory that is not empty or not writable.
    Nothing is created before the first update has been made.
    """

    def __init__(self, path: str | Path, description: dict[str, Any]) -> None:
        if not isinstance(path, str | Path):
            raise ValueError(f"out {path!r} must be a path")
        self.path = Path(path)
        self._description = description | {"commit": commit()}
        self._saved_at: float | None = None  # None: nothing is created yet
        self._recent: list[tuple[int, float]] = []  # episodes, mean return
        self._evaluated_at = -1  # update
        check_fresh(self.path)

    def __call__(self, progress: Progress) -> None:
        """Append what is new; save the state once a minute and at the end."""
        now = time.monotonic()
        if self._saved_at is None:
            self._create()
            self._saved_at = now
        self._append(progress)
        if progress.finished or now - self._saved_at > CHECKPOINT_SECONDS:
            checkpoint.save(self.path / STATE_FILE, progress.state)
            self._saved_at = now
        if progress.finished:
            self._finish(progress)

    def _create(self) -> None:
        check_fresh(self.path)
        (self.path / STATE_FILE).parent.mkdir(parents=True, exist_ok=True)
        write_json(self.path / "config.json", self._description)

    def _append(self, progress: Progress) -> None:
        rows = [dict(row) for row in progress.rows]
        if rows:  # the only row whose time is known
            rows[-1]["seconds"] = progress.seconds
        append(self.path / "metrics.jsonl", rows)
        ended = [row for row in rows if row["episode_count"]]
        self._recent += [
            (int(row["episode_count"]), row["episode_return"]) for row in ended
        ]
        self._recent = self._recent[-_RECENT_EPISODES:]
        # A stopped run's last call repeats an evaluation made just before.
        if progress.evaluation is not None and self._evaluated_at != progress.update:
            self._evaluated_at = progress.update
            row = {"update": progress.update, "env_steps": progress.env_steps}
            row |= summarize(progress.evaluation)
            row |= {
                "returns": progress.evaluation.returns.tolist(),
                "lengths": progress.evaluation.lengths.tolist(),
            }
            append(self.path / "evaluations.jsonl", [row])

    def _finish(self, progress: Progress) -> None:
        evaluation = progress.evaluation
        write_json(
            self.path / "summary.json",
            {
                "env_steps": progress.env_steps,
                "frames": progress.frames,
                "updates": progress.update,
                "stopped_early": progress.env_steps < progress.total_steps,
                "seconds": progress.seconds,
                "compile_seconds": progress.compile_seconds,
                "steps_per_second": progress.env_steps / max(progress.seconds, 1e-9),
                "training_return": recent_return(self._recent),
                "evaluation": None if evaluation is None else summarize(evaluation),
            },
        )
        if self._recent:  # without an episode there is no curve
            # Here, for matplotlib takes a second to import.
            from jaxrl_par.train.plots import plot_runs

            plot_runs([self.path], self.path / "curves.png")


def default_directory(algorithm: str, env: str, seed: int) -> Path:
    """A directory in `runs` that does not exist, with the time in its name."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    base = f"{env}-{algorithm}-seed{seed}-{stamp}".replace(":", "-").replace("/", "-")
    names = [base, *(f"{base}-{count}" for count in range(2, 1000))]
    return next(path for name in names if not (path := Path("runs") / name).exists())


def check_fresh(path: Path) -> None:
    """Raise ValueError unless `path` is empty or can be made."""
    try:
        path.is_dir()
    except OSError as error:  # a name that is too long
        raise ValueError(f"out {str(path)!r}: {error.strerror}") from None
    if path.is_dir():
        if any(path.iterdir()):
            raise ValueError(
                f"out {str(path)!r} is not empty: name a fresh directory, or remove it"
            )
    elif path.exists():
        raise ValueError(f"out {str(path)!r} is a file; it must be a directory")
    above = next(p for p in (path, *path.absolute().parents) if p.exists())
    try:  # permissions alone do not tell: of a full disk, or a file system of tables
        tempfile.TemporaryDirectory(dir=above).cleanup()
    except OSError as error:
        reason = error.strerror or error
        raise ValueError(
            f"out {str(path)!r}: {str(above)!r} cannot be written to ({reason})"
        ) from None


def summarize(evaluation: Evaluation) -> dict[str, float | int | None]:
    """Mean, spread and bounds of an evaluation's episodes."""
    returns, lengths = evaluation.returns, evaluation.lengths
    result: dict[str, float | int | None] = {
        "episodes": int(returns.size),
        "unfinished": evaluation.unfinished,
    }
    if returns.size:
        result |= {
            "mean_return": float(returns.mean()),
            "std_return": float(returns.std()),
            "min_return": float(returns.min()),
            "max_return": float(returns.max()),
            "mean_length": float(lengths.mean()),
        }
    return result


def recent_return(rows: list[tuple[int, float]]) -> float | None:
    """Mean return of about the last 100 episodes; None if there was none."""
    total, weighted = 0, 0.0
    for count, mean in reversed(rows):
        total += count
        weighted += count * mean
        if total >= _RECENT_EPISODES:
            break
    return weighted / total if total else None


def append(path: Path, rows: list[dict[str, Any]]) -> None:
    """Add rows to a file of JSON lines; numbers that JSON has not become null."""
    with open(path, "a") as file:
        file.writelines(json.dumps(finite(row)) + "\n" for row in rows)


def commit() -> str | None:
    """The commit of this package's checkout ("+" if it was changed), or None."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None

    def git(*words: str) -> str:
        command = ["git", "-C", str(root), *words]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=5, check=True
        ).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "jaxrl_par")
        return git("rev-parse", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return None
