"""What a run leaves: the policy, the state, the metrics; and its directory."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_par import checks, spaces
from jaxrl_par.envs.batched import BatchedEnv
from jaxrl_par.envs.wrappers import Instances
from jaxrl_par.train import checkpoint, files, step
from jaxrl_par.train.checkpoint import FORMAT
from jaxrl_par.train.checkpoints import Checkpoints, Which
from jaxrl_par.train.describe import describe, rebuild
from jaxrl_par.train.evaluate import Evaluation, Evaluator
from jaxrl_par.train.history import Columns, read_metrics
from jaxrl_par.train.layout import local
from jaxrl_par.train.places import check_fresh
from jaxrl_par.types import Algorithm, Environment, PyTree, TrainState

CHECKPOINTS = "checkpoints"


@dataclasses.dataclass(frozen=True, repr=False)
class Run:
    """A finished run, or one loaded from its directory."""

    algorithm: Algorithm
    env: Environment | Instances
    config: dict[str, Any]  # of TrainConfig, and what was used: devices, versions
    state: TrainState
    metrics: Columns  # [updates]
    evaluations: tuple[tuple[int, Evaluation], ...] = ()  # (env_steps, result)
    env_steps: int = 0
    seconds: float = 0.0  # of training
    compile_seconds: float = 0.0
    reason: str | None = None  # why it ended before its total

    def __repr__(self) -> str:
        name, env = type(self.algorithm).__name__, self.env.spec.name
        result = self.evaluation and f", return {self.evaluation.mean_return:.2f}"
        ended = f", ended by {self.reason}" if self.reason else ""
        steps = f"{self.env_steps:,} steps"
        return f"<Run of {name} on {env}: {steps}{result or ''}{ended}>"

    @property
    def params(self) -> PyTree:
        """What was learned."""
        return self.state.algorithm.params

    @property
    def evaluation(self) -> Evaluation | None:
        """The last evaluation of this state or of one before it."""
        made = [x for steps, x in self.evaluations if steps <= self.env_steps]
        return made[-1] if made else None

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
        action = _greedy(self.algorithm, self._learned, obs)
        return jax.tree.map(lambda x: x[0], action) if single else action

    def evaluate(self, episodes: int = 100, seed: int = 0) -> Evaluation:
        """Play greedy episodes; the same seed gives the same result."""
        checks.seed("seed", seed)
        env = BatchedEnv(self.env)
        key = jax.random.key(seed)
        return Evaluator(episodes)(self.algorithm, env, self._learned, key)

    @property
    def _learned(self) -> PyTree:
        """The algorithm's state, on one device."""
        return local(self.state.algorithm, self.algorithm.sharded)

    def save(self, directory: str | Path) -> None:
        """Write the state and what is needed to load it, to a fresh directory."""
        directory = checks.path("directory", directory)
        check_fresh(directory)
        directory.mkdir(parents=True, exist_ok=True)
        description = full_description(self.algorithm, self.env, self.config)
        files.write_json(directory / "config.json", description)
        facts = {
            "update": int(self.state.update),
            "seconds": self.seconds,
            "rollbacks": 0,
            "config": description,
        }
        snapshot = checkpoint.Snapshot.of(self.state)
        path = directory / CHECKPOINTS / checkpoint.name_of(facts["update"])
        checkpoint.save(path, snapshot, facts)


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
    env: Environment | Instances | None = None,
    checkpoint: Which = "newest",
) -> Run:
    """The run that `directory` holds, with the state of its newest or best checkpoint.

    An algorithm or environment of your own must be passed. A damaged checkpoint is
    named in a warning, and the one before it used. Raises ValueError for anything
    else that is missing, damaged or does not fit, naming it.
    """
    directory = checks.path("directory", directory)
    checks.choice("checkpoint", checkpoint, ("newest", "best"))
    config, rules, world = read_run(directory, algorithm, env)
    batched = BatchedEnv(world, config["reset"], config["pool_size"])
    like = jax.eval_shape(
        lambda: step.init_state(rules, batched, config["num_envs"], jax.random.key(0))
    )
    state, facts = Checkpoints(directory / CHECKPOINTS).load(like, checkpoint)
    steps_per_update = config["num_envs"] * rules.rollout_length
    return Run(
        algorithm=rules,
        env=world,
        config=config,
        state=state,
        metrics=read_metrics(directory / "metrics.jsonl"),
        evaluations=read_evaluations(directory / "evaluations.jsonl"),
        env_steps=int(state.update) * steps_per_update,
        seconds=facts["seconds"],
        reason=read_reason(directory),
    )


def read_run(
    directory: Path,
    algorithm: Algorithm | None = None,
    env: Environment | Instances | None = None,
) -> tuple[dict[str, Any], Algorithm, Environment | Instances]:
    """(settings, algorithm, environment) of a run; ValueError if they are damaged."""
    config = read_config(directory)
    try:
        rules: Algorithm = algorithm or rebuild(config["algorithm"], "algorithm")
        world: Any = env or rebuild(config["env"], "env")
        checks.positive_int("num_envs", config["num_envs"])
        rules.validate(world.spec, config["num_envs"])
        BatchedEnv(world, config["reset"], config["pool_size"])
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(
            f"{directory / 'config.json'} is damaged: {type(error).__name__}: {error}"
        ) from error
    kept = {k: v for k, v in config.items() if k not in ("algorithm", "env", "format")}
    return kept, rules, world


def read_reason(directory: Path) -> str | None:
    """Why a run ended before its total, as its summary says."""
    try:
        reason = json.loads((directory / "summary.json").read_bytes()).get("reason")
    except (OSError, ValueError, AttributeError):
        return None
    return reason if isinstance(reason, str) else None


def read_evaluations(path: Path) -> tuple[tuple[int, Evaluation], ...]:
    """(env_steps, result) of each row of an evaluations file."""
    rows = files.read_rows(path, ("env_steps", "returns", "lengths", "unfinished"))
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
