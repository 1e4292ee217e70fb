"""Where a run is written: fresh, by one process; and with which code it was made."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import tempfile
import time
from pathlib import Path


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
        if (path / "config.json").exists():
            raise ValueError(
                f"out {str(path)!r} is not empty: it holds a run, with which "
                f"`jaxrl-par resume {path}` goes on; or name a fresh directory"
            )
        if any(path.iterdir()):
            raise ValueError(f"out {str(path)!r} is not empty: name a fresh directory")
    elif path.exists() or path.is_symlink():
        raise ValueError(f"out {str(path)!r} is a file; it must be a directory")
    above = next(p for p in (path, *path.absolute().parents) if p.exists())
    check_writable("out", path, above)


def check_writable(name: str, path: Path, above: Path) -> None:
    """Raise ValueError unless files can be made in `above`, for the sake of `path`."""
    try:  # permissions alone do not tell: of a full disk, or a file system of tables
        tempfile.TemporaryDirectory(dir=above).cleanup()
    except OSError as error:
        reason = error.strerror or error
        raise ValueError(
            f"{name} {str(path)!r}: {str(above)!r} cannot be written to ({reason})"
        ) from None


class Lock:
    """Held by the one process that writes a directory; gone when it dies.

    Raises ValueError if another process holds it.
    """

    def __init__(self, path: Path) -> None:
        self._file: int | None = None
        try:
            import fcntl
        except ImportError:  # Windows has none
            return
        self._file = os.open(path, os.O_RDONLY)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.release()
            raise ValueError(
                f"{str(path)!r} is in use: a process trains in it"
            ) from None
        except OSError:  # a file system without locks
            pass

    def release(self) -> None:
        """Let others have the directory."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


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


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that results depend on."""
    packages = "jaxrl_par jax jaxlib flax optax numpy orbax-checkpoint"
    found = {name: _version(name) for name in packages.split()}
    return {"python": platform.python_version(), **found}


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
