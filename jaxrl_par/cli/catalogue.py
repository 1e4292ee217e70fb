"""`jaxrl-par list`: algorithms, environments and presets."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

from jaxrl_par import checks
from jaxrl_par.envs.registry import env_names
from jaxrl_par.presets import ALGORITHMS, PRESETS

_KINDS = ("algorithms", "environments", "presets")


def run(argv: Sequence[str]) -> int:
    """Print the names; with one of `_KINDS`, only those, one a line."""
    if argv and argv[0] in ("-h", "--help"):
        print(f"usage: jaxrl-par list [{' | '.join(_KINDS)}]")
        return 0
    if not argv:
        print("\n\n".join(f"{kind}\n{_indented(kind)}" for kind in _KINDS))
        return 0
    if len(argv) > 1:
        raise ValueError(f"list takes one of {', '.join(_KINDS)}, or nothing")
    checks.known("list", argv[0], _KINDS)
    for name, _ in _entries(argv[0]):
        print(name)
    return 0


def _indented(kind: str) -> str:
    return "\n".join(f"  {name:30}{text}".rstrip() for name, text in _entries(kind))


def _entries(kind: str) -> list[tuple[str, str]]:
    """Names and what is said of them."""
    if kind == "algorithms":
        return [
            (name, (inspect.getdoc(cls) or "").splitlines()[0])
            for name, cls in ALGORITHMS.items()
        ]
    if kind == "environments":
        return [(name, "") for name in env_names()]
    return [
        (f"{algorithm} {env}", f"{found.settings.get('total_steps', 0):,} steps")
        for (algorithm, env), found in PRESETS.items()
    ]
