"""A run that is killed with -9 at random moments and resumed each time.

    python killed.py DIRECTORY KILLS SEED

Trains a run undisturbed, and the same run with kills; prints what was seen, as JSON.
Children are forks of this process, which has imported JAX but not started it, so an
attempt takes a second.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

import toys

import jaxrl_par as jp

ENV = toys.Fate(max_steps=7)
SETTINGS = {
    "num_envs": 4,
    "total_steps": 16 * 40_000,
    "eval_every": 16 * 700,
    "eval_episodes": 4,
    "chunk_seconds": 0.05,
}


def work(path: Path, to_the_end: bool) -> None:
    """Train, or go on; at most ten calls a second, so that no machine is too fast."""
    settings: dict[str, Any] = {"save_every": 1e6 if to_the_end else 0}
    if not to_the_end:
        settings["callbacks"] = [lambda _: time.sleep(0.1)]
    if (path / "config.json").exists():
        jp.resume(path, toys.Tally(), ENV, **settings)
    else:
        shutil.rmtree(path, ignore_errors=True)
        jp.train(toys.Tally(), ENV, out=path, **SETTINGS, **settings)


def fork(path: Path, to_the_end: bool = False) -> int:
    """Work in a child; its process number."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work(path, to_the_end)
            status = 0
        finally:
            os._exit(status)
    return child


def main(directory: Path, kills: int, seed: int) -> None:
    """Kill at random moments, from before the first update to within a save."""
    draw = random.Random(seed)
    assert os.waitpid(fork(directory / "whole", to_the_end=True), 0)[1] == 0
    path, points, torn = directory / "killed", [], []
    for _ in range(kills):
        begin = time.time()
        child = fork(path)
        if draw.random() < 0.9:  # else it may be killed while it starts
            wait_for_work(path, begin)
        time.sleep(draw.uniform(0, 1.5))
        os.kill(child, signal.SIGKILL)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL, "it was done too soon"
        names = [p.name for p in (path / "checkpoints").glob("0*")]
        points.append(max((int(name) for name in names), default=0))
        rows = [file.read_bytes() for file in path.glob("*.jsonl")]
        torn += [text[-80:] for text in rows if not text.endswith(b"\n")]
        if (path / "summary.json").exists():
            json.loads((path / "summary.json").read_text())
    assert os.waitpid(fork(path, to_the_end=True), 0)[1] == 0
    print(json.dumps({"points": points, "torn": len(torn)}))


def wait_for_work(path: Path, begin: float) -> None:
    """Until the run in `path` has written something since `begin`."""
    timing = path / "timing.jsonl"
    while not timing.exists() or timing.stat().st_mtime < begin:
        assert time.time() < begin + 60, "it does not train"
        time.sleep(0.01)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
