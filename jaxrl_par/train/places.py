"""Where a run is written: a fresh place, by one process."""

from __future__ import annotations

import os
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
