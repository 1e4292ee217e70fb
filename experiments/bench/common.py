"""What the benchmarks share: settings, machine, statistics, result files.

Imports neither engine, so that a worker in another environment can use it.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import platform
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"

# What both engines run. What cannot be made equal is in README.md.
PPO = {
    "rollout_length": 128,
    "num_epochs": 4,
    "num_minibatches": 4,
    "hidden": (64, 64),
    "activation": "tanh",
    "learning_rate": 2.5e-4,
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "clip_eps": 0.2,
    "entropy_coef": 0.01,
    "value_coef": 0.5,
    "max_grad_norm": 0.5,
}
PQN = {
    "rollout_length": 64,
    "num_epochs": 4,
    "num_minibatches": 16,
    "hidden": (64, 64),  # rejax has no other
    "learning_rate": 5e-4,
    "gamma": 0.99,
    "lambda_": 0.9,
    "final_epsilon": 0.1,
    "exploration_fraction": 0.2,
    "max_grad_norm": 10.0,
}
# One gradient step for each step of all environments, as rejax takes it. Ours are
# taken together, after so many steps of each environment as a rollout has.
DQN = {
    "rollout_length": 8,
    "capacity": 10_000,
    "batch_size": 128,
    "learning_starts": 1000,
    "target_every": 500,
    "hidden": (64, 64),  # rejax has no other
    "activation": "relu",
    "learning_rate": 5e-4,
    "gamma": 0.99,
    "final_epsilon": 0.05,
    "exploration_fraction": 0.1,
}
SAC = {
    "rollout_length": 1,
    "capacity": 100_000,
    "batch_size": 256,
    "learning_starts": 1000,
    "hidden": (64, 64),
    "activation": "relu",
    "learning_rate": 1e-3,
    "gamma": 0.99,
    "tau": 0.01,
}
SHARED: dict[str, dict[str, Any]] = {"ppo": PPO, "pqn": PQN, "dqn": DQN, "sac": SAC}


def use_cores(count: int) -> None:
    """Pin this process to the last `count` cores it may use (0: leave it alone).

    Must run before jax starts, which sizes its threads by it.
    """
    if count:
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, cores[-count:])


def round_up(
    total_steps: int, num_envs: int, min_updates: int, algorithm: str = "ppo"
) -> int:
    """Steps of a run in whole updates, at least `min_updates` of them."""
    per_update = num_envs * SHARED[algorithm]["rollout_length"]
    return max(min_updates, -(-total_steps // per_update)) * per_update


def cpu_name() -> str:
    """The processor's model, where the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.split(":")[1].strip() for line in lines if "model name" in line]
    return names[0] if names else platform.processor()


@functools.cache
def about() -> dict[str, Any]:
    """When, where and from which commit a result comes."""
    return {
        "date": time.strftime("%Y-%m-%d %H:%M:%S"),
        "cpu": cpu_name(),
        "cpu_cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "commit": commit(),
        "command": " ".join(map(_no_folder, [Path(sys.argv[0]).name, *sys.argv[1:]])),
    }


def _no_folder(word: str) -> str:
    """A word of the command, without the folders of an absolute path."""
    return Path(word).name if word.startswith("/") else word


def commit() -> str:
    """The checked-out commit, with "+" where files differ from it."""

    def git(*args: str) -> str:
        command = ["git", "-C", str(HERE), *args]
        return subprocess.run(
            command, capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no")
        return git("rev-parse", "--short", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def device_about() -> dict[str, Any]:
    """Devices and versions as this process's jax has them."""
    import jax
    import jaxlib

    return {
        "platform": jax.devices()[0].platform,
        "device": jax.devices()[0].device_kind,
        "jax": jax.__version__,
        "jaxlib": jaxlib.__version__,
        "dtype": "float32",
        "matmul_precision": jax.config.jax_default_matmul_precision or "default",
    }


def memory() -> dict[str, int | None]:
    """Most bytes used so far: of the accelerator, and of the host process."""
    import jax

    stats = jax.devices()[0].memory_stats() or {}
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"device_peak": stats.get("peak_bytes_in_use"), "host_peak": resident}


def program_memory(compiled: Any) -> dict[str, int]:
    """Bytes that a compiled program needs, by the compiler's own account."""
    analysis = compiled.memory_analysis()
    names = ("argument", "output", "alias", "temp")
    return {name: getattr(analysis, f"{name}_size_in_bytes") for name in names}


def median(values: list[float]) -> float:
    return float(np.median(values))


def bootstrap(values: Any, statistic: Any = np.mean) -> tuple[float, float]:
    """The 95 % percentile interval of a statistic over runs."""
    values = np.asarray(values, float)
    rng = np.random.default_rng(0)
    draws = rng.integers(len(values), size=(2000, len(values)))
    low, high = np.percentile([statistic(values[draw]) for draw in draws], [2.5, 97.5])
    return float(low), float(high)


def parser(description: str | None) -> argparse.ArgumentParser:
    """A parser with the flags that all benchmarks have."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of results")
    parser.add_argument("--small", action="store_true", help="try that it runs")
    return parser


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    """Append rows to a JSON-lines file, and say so."""
    for row in rows:
        append_row(path, row)
    print(f"raw results: {path}")


def append_row(path: Path, row: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")


def read_rows(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def table(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table, its columns aligned."""
    cells = [header, ["-" * len(name) for name in header], *rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    cells[1] = ["-" * width for width in widths]
    return "\n".join(
        "| " + " | ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) + " |"
        for row in cells
    )


def serve(set_up: Any) -> None:
    """Be a worker: `set_up(settings) -> (about, run)`, then a run for each request.

    Settings and requests are JSON, one a line, on standard input; `run(request)`
    gives a dict. Whatever else a library prints goes to standard error.
    """
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    settings = json.loads(sys.stdin.readline())
    info, run = set_up(settings)
    answers.write(json.dumps(info) + "\n")
    for line in sys.stdin:
        answers.write(json.dumps(run(json.loads(line))) + "\n")


class Worker:
    """A worker process, which `serve`s one engine at one setting."""

    def __init__(
        self, python: str, script: str, settings: dict[str, Any], cores: int = 0
    ) -> None:
        environment = dict(os.environ)
        if python != sys.executable:  # whose packages may be another's versions
            environment.pop("PYTHONPATH", None)
        self.name = script
        self._process = subprocess.Popen(
            [python, str(HERE / script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            env=environment,
        )
        self.about = self.ask({**settings, "cores": cores})

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send one request and wait for its answer."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps(request) + "\n")
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} ended: status {self._process.wait()}")
        return json.loads(line)

    def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()
