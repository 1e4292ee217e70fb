"""`check_algorithm`: what an algorithm of your own gets wrong."""

from __future__ import annotations

from typing import Any


def check_algorithm(algorithm: Any, env: Any, num_envs: int = 4) -> None:
    """Placeholder until written."""
