"""With which code a run was made."""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
from pathlib import Path


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
