"""What a run leaves: the policy, the state, the metrics; and its directory."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_par import checks, spaces
from jaxrl_par.envs.batched import BatchedEnv
from jaxrl_par.envs.wrappers import Instances
from jaxrl_par.train import checkpoint, step
from jaxrl_par.train.describe import describe, rebuild
from jaxrl_par.train.evaluate import Evaluation, Evaluator
from jaxrl_par.train.plan import local
from jaxrl_par.types import Algorithm, Environment, PyTree, TrainState

FORMAT = 1
STATE_FILE = Path("checkpoints") / "last.npz"


@dataclasses.dataclass(frozen=True, repr=False)
class Run:
    """A finished run, or one loaded from its directory."""

    algorithm: Algorithm
    env: Environment | Instances
    config: dict[str, Any]  # of TrainConfig, and what was used: devices, versions
    state: TrainState
    metrics: dict[str, np.ndarray]  # [updates]
    evaluations: tuple[tuple[int, Evaluation], ...] = ()  # (env_steps, result)
    env_steps: int = 0
    seconds: float = 0.0  # of training
    compile_seconds: float = 0.0

    def __repr__(self) -> str:
        name, env = type(self.algorithm).__name__, self.env.spec.name
        result = self.evaluation and f", return {self.evaluation.mean_return:.2f}"
        return f"<Run of {name} on {env}: {self.env_steps:,} steps{result or ''}>"

    @property
    def params(self) -> PyTree:
        """What was learned."""
        return self.state.algorithm.params

    @property
    def evaluation(self) -> Evaluation | None:
        """The last evaluation."""
        return self.evaluations[-1][1] if self.evaluations else None

    def policy(self, obs: PyTree) -> jax.Array:
        """The greedy action(s) for one observation or a batch [N, ...].

        In the environment's units. For a policy without memory. Raises ValueError
        for observations of another structure or shape than the environment's.
        """
        example = spaces.zeros(self.env.spec.obs_space)
        obs = _fit(obs, example)
        single = jax.tree.leaves(obs)[0].ndim == jax.tree.leaves(example)[0].ndim
        if single:
            obs = jax.tree.map(lambda x: x[None], obs)
        action = _greedy(self.algorithm, local(self.state.algorithm), obs)
        return jax.tree.map(lambda x: x[0], action) if single else action

    def evaluate(self, episodes: int = 100, seed: int = 0) -> Evaluation:
        """Play greedy episodes; the same seed gives the same result."""
        checks.seed("seed", seed)
        env = BatchedEnv(self.env)
        state = local(self.state.algorithm)
        return Evaluator(episodes)(self.algorithm, env, state, jax.random.key(seed))

    def save(self, directory: str | Path) -> None:
        """Write the state and what is needed to load it (see `load`)."""
        directory = Path(directory)
        (directory / STATE_FILE).parent.mkdir(parents=True, exist_ok=True)
        description = full_description(self.algorithm, self.env, self.config)
        write_json(directory / "config.json", description)
        checkpoint.save(directory / STATE_FILE, self.state)


def full_description(
    algorithm: Algorithm, env: Environment | Instances, config: dict[str, Any]
) -> dict[str, Any]:
    """All that `load` needs, as JSON values: the content of `config.json`."""
    return {
        "format": FORMAT,
        "algorithm": describe(algorithm),
        "env": describe(env),
        "env_name": env.spec.name,
        **config,
    }


@jax.jit
def _greedy(algorithm: Algorithm, state: PyTree, obs: PyTree) -> jax.Array:
    return algorithm.act(state, (), obs, None, greedy=True)[1]


def load(
    directory: str | Path,
    algorithm: Algorithm | None = None,
    env: Environment | None = None,
) -> Run:
    """The run that `directory` holds.

    An algorithm or environment of your own must be passed. Raises ValueError for
    anything that is missing, damaged or does not fit, naming it.
    """
    directory = Path(directory)
    config = read_config(directory)
    try:
        rules: Algorithm = algorithm or rebuild(config["algorithm"], "algorithm")
        world: Environment = env or rebuild(config["env"], "env")
        num_envs: int = config["num_envs"]
        checks.positive_int("num_envs", num_envs)
        rules.validate(world.spec, num_envs)
        batched = BatchedEnv(world, config["reset"], config["pool_size"])
        like = jax.eval_shape(
            lambda: step.init_state(rules, batched, num_envs, jax.random.key(0))
        )
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(
            f"{directory / 'config.json'} is damaged: {type(error).__name__}: {error}"
        ) from error
    kept = {k: v for k, v in config.items() if k not in ("algorithm", "env", "format")}
    state = checkpoint.load(directory / STATE_FILE, like)
    metrics = read_metrics(directory / "metrics.jsonl")
    seconds = metrics.get("seconds", np.zeros(0))
    return Run(
        algorithm=rules,
        env=world,
        config=kept,
        state=state,
        metrics=metrics,
        evaluations=read_evaluations(directory / "evaluations.jsonl"),
        env_steps=int(state.update) * num_envs * rules.rollout_length,
        seconds=float(np.nanmax(seconds, initial=0.0)),
    )


def read_rows(path: Path, needed: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The rows of a file of JSON lines; none if there is no file.

    A last line that is not whole (a run killed while it wrote) is left out. Raises
    ValueError for any other line that is no JSON object with the names `needed`.
    """
    if not path.exists():
        return []
    text = path.read_text()
    lines = text.split("\n")[:-1]  # what follows the last newline is not whole
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            if not isinstance(row, dict):
                raise ValueError(f"{row!r} is no object")
            if missing := [name for name in needed if name not in row]:
                raise ValueError(f"it has no {', '.join(missing)}")
        except ValueError as error:
            raise ValueError(f"{path} is damaged: line {number}: {error}") from None
        rows.append(row)
    return rows


def read_evaluations(path: Path) -> tuple[tuple[int, Evaluation], ...]:
    """(env_steps, result) of each row of an evaluations file."""
    rows = read_rows(path, ("env_steps", "returns", "lengths", "unfinished"))
    try:
        return tuple(
            (
                row["env_steps"],
                Evaluation(
                    returns=np.array(row["returns"], np.float32),
                    lengths=np.array(row["lengths"], np.int32),
                    unfinished=row["unfinished"],
                ),
            )
            for row in rows
        )
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path} is damaged: {error}") from None


def read_metrics(path: Path) -> dict[str, np.ndarray]:
    """The rows of a metrics file as arrays [updates]; NaN where a row lacks a value."""
    rows = read_rows(path, ("update", "env_steps", "episode_count"))
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: [_number(row.get(name)) for row in rows] for name in names}
    for name, column in columns.items():
        for number, value in enumerate(column, 1):
            if not isinstance(value, int | float):
                raise ValueError(f"{path} is damaged: line {number}: {name} {value!r}")
    return {name: np.array(column) for name, column in columns.items()}


def write_json(path: Path, data: Any) -> None:
    """Write JSON aside and rename it, so that the file is whole at every instant."""
    aside = path.with_suffix(".partial")
    aside.write_text(json.dumps(finite(data), indent=2) + "\n")
    aside.replace(path)


def finite(value: Any) -> Any:
    """The same JSON value with null for numbers that JSON has not: NaN, infinity."""
    if isinstance(value, dict):
        return {k: finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [finite(v) for v in value]
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value


def read_config(directory: Path) -> dict[str, Any]:
    """The settings of a run; ValueError if the directory is not one."""
    path = directory / "config.json"
    if not directory.is_dir():
        raise ValueError(f"there is no directory {str(directory)!r}")
    if not path.exists():
        inside = sorted(str(p.parent) for p in directory.glob("*/config.json"))
        hint = f"; it holds runs: {', '.join(inside[:5])}" if inside else ""
        raise ValueError(
            f"{str(directory)!r} is not a run directory: it has no config.json{hint}"
        )
    try:
        config = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    if not isinstance(config, dict) or "format" not in config:
        raise ValueError(f"{path} is not a run's config: it has no format")
    if config["format"] != FORMAT:
        raise ValueError(
            f"{path}: format {config['format']!r} must be {FORMAT}: it was written "
            f"by another version of jaxrl_par"
        )
    return config


def _number(value: Any) -> float:
    return float("nan") if value is None else value


def _fit(obs: PyTree, example: PyTree) -> PyTree:
    """`obs`, one observation or a batch, as arrays of the example's dtypes."""

    def fit(like: jax.Array, value: Any) -> jax.Array:
        array = jnp.asarray(value, like.dtype)
        if array.ndim - like.ndim not in (0, 1) or (
            array.shape[array.ndim - like.ndim :] != like.shape
        ):
            raise ValueError(
                f"obs of shape {array.shape} must be one observation {like.shape} "
                f"or a batch [N, *{like.shape}]"
            )
        return array

    return jax.tree.map(fit, example, obs)
