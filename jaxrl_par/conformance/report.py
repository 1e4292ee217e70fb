"""The error that names all problems at once."""

from __future__ import annotations

from collections.abc import Sequence


class ConformanceError(ValueError):
    """What an object gets wrong; `problems` has one string for each."""

    def __init__(self, name: str, problems: Sequence[str]) -> None:
        self.problems = tuple(dict.fromkeys(problems))  # each once, in order
        lines = [f"{i}. {text}" for i, text in enumerate(self.problems, start=1)]
        number = f"{len(lines)} problem" + "s" * (len(lines) > 1)
        super().__init__("\n  ".join([f"{name} has {number}:", *lines]))
