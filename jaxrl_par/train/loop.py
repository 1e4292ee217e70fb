"""The host's side of a run: compile once, call in chunks, read small results."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import platform
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_par import checks
from jaxrl_par.envs.base import check_shapes
from jaxrl_par.envs.batched import BatchedEnv, ResetMode
from jaxrl_par.envs.wrappers import Instances
from jaxrl_par.train.callbacks import STOP, Callback, Progress, Row
from jaxrl_par.train.evaluate import MAX_EPISODES, Evaluation, Evaluator
from jaxrl_par.train.plan import (
    Layout,
    Plan,
    Program,
    enable_compilation_cache,
    local,
)
from jaxrl_par.train.run import Run, full_description
from jaxrl_par.train.run_directory import RunDirectory
from jaxrl_par.types import Algorithm, Environment, TrainState

# Most updates in one call, and the time that a call should take.
CHUNK_ROWS = 256
CHUNK_SECONDS = 0.5


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """Settings of a run, beside the algorithm's and the environment's.

    `total_steps` (environment steps over all environments) is rounded up to whole
    updates. `eval_every` steps, at the next end of an update, `eval_episodes` greedy
    episodes are played (None: only at the end; `eval_episodes` 0: never). `reset`
    and `pool_size` are `BatchedEnv`'s. `data` and `device` are `Plan`'s.
    """

    num_envs: int = 64
    total_steps: int = 500_000
    seed: int = 0
    eval_every: int | None = None
    eval_episodes: int = 100
    reset: ResetMode = "pool"
    pool_size: int = 8
    data: int | None = None
    device: str = "auto"

    def __post_init__(self) -> None:
        for name in ("num_envs", "pool_size"):
            checks.positive_int(name, getattr(self, name))
        checks.positive_int("total_steps", self.total_steps, below=2**63)
        checks.optional_positive_int("eval_every", self.eval_every, below=2**63)
        if self.eval_episodes is False or self.eval_episodes != 0:
            checks.positive_int("eval_episodes", self.eval_episodes, MAX_EPISODES)
        checks.optional_positive_int("data", self.data)
        checks.seed("seed", self.seed)
        for field in dataclasses.fields(
            self
        ):  # NumPy's would overflow, and are no JSON
            value = getattr(self, field.name)
            if isinstance(value, np.integer):
                object.__setattr__(self, field.name, int(value))


def train(
    algorithm: Algorithm,
    env: Environment | Instances,
    *,
    callbacks: Sequence[Callback] = (),
    out: str | Path | None = None,
    **settings: Any,
) -> Run:
    """Train `algorithm` on `env`; `settings` are the fields of `TrainConfig`.

    With `out`, a fresh or empty directory, all of the run is kept there (`load`).

    Every callback is called with a `Progress` after each call of the compiled loop
    (about twice a second) and may return STOP. Raises ValueError, before anything is
    compiled, for a setting that cannot work.
    """
    for name in settings:
        checks.known("setting", name, [f.name for f in dataclasses.fields(TrainConfig)])
    trainer = Trainer(algorithm, env, TrainConfig(**settings))
    for callback in checks.sequence("callbacks", callbacks):
        if not callable(callback):
            raise ValueError(
                f"callbacks: {callback!r} must be a function of a Progress"
            )
    if out is not None:
        callbacks = [RunDirectory(out, trainer.full_description()), *callbacks]
    return trainer.run(callbacks)


class Trainer:
    """A run under way: the compiled program, the state and the counts."""

    def __init__(
        self, algorithm: Algorithm, env: Environment | Instances, config: TrainConfig
    ) -> None:
        checks.algorithm("algorithm", algorithm)
        if isinstance(env, Instances):
            _check_instances(env, config.num_envs)
        else:
            checks.environment("env", env)
        check_shapes(env)
        self.config = config
        self.env = BatchedEnv(env, config.reset, config.pool_size)
        self.algorithm = algorithm
        algorithm.validate(env.spec, config.num_envs)
        plan = Plan(config.data, config.device)
        self.layout: Layout = plan.settle(algorithm, config.num_envs)
        self.steps_per_update = config.num_envs * algorithm.rollout_length
        checks.positive_int("num_envs * rollout_length", self.steps_per_update)
        self.total_updates = -(-config.total_steps // self.steps_per_update)
        if self.total_updates >= 2**31:
            raise ValueError(
                f"total_steps {config.total_steps} must make fewer than 2^31 updates; "
                f"of {self.steps_per_update} steps each it makes {self.total_updates}"
            )
        self.update = 0
        self.seconds = 0.0
        self.compile_seconds = 0.0
        self.tables: list[dict[str, np.ndarray]] = []
        self.evaluations: list[tuple[int, Evaluation]] = []
        enable_compilation_cache()

    @property
    def env_steps(self) -> int:
        """Environment steps done: a Python integer, which cannot overflow."""
        return self.update * self.steps_per_update

    @property
    def total_steps(self) -> int:
        """Environment steps of the whole run."""
        return self.total_updates * self.steps_per_update

    def run(self, callbacks: Sequence[Callback] = ()) -> Run:
        """Train to the end, or until a callback stops it. Only once."""
        if self.update:
            raise RuntimeError("this Trainer has run; make a new one for another run")
        start = time.perf_counter()
        self._compile()
        self.compile_seconds = time.perf_counter() - start
        chunk = 1
        finished = False
        while not finished:
            begin = time.perf_counter()
            rows = self._chunk(min(chunk, self._until_boundary()))
            elapsed = time.perf_counter() - begin
            self.seconds += elapsed
            chunk = max(1, min(CHUNK_ROWS, int(CHUNK_SECONDS * len(rows) / elapsed)))
            finished = self.update == self.total_updates
            evaluation = self._evaluate() if self._evaluation_due(len(rows)) else None
            progress = self._progress(rows, evaluation, finished)
            answers = [callback(progress) for callback in callbacks]
            if not finished and any(
                isinstance(answer, str) and answer == STOP for answer in answers
            ):
                finished = True
                if evaluation is None and self.config.eval_episodes:
                    evaluation = self._evaluate()
                for callback in callbacks:
                    callback(self._progress([], evaluation, finished))
        return self._result()

    def _compile(self) -> None:
        """Lower, compile and place; the state is made on the devices.

        XLA compiles in a thread, while the next program is traced in this one.
        """
        config = self.config
        program: Program = self.layout.program(
            self.algorithm, self.env, config.num_envs, CHUNK_ROWS
        )
        key, self._eval_key = jax.random.split(jax.random.key(config.seed))
        self._args = program.place((self.algorithm, self.env))
        self._total = program.place(jnp.float32(self.total_updates))
        self._place = program.place
        one = program.place(jnp.int32(1))
        with ThreadPoolExecutor() as compiler:
            lowered = program.init.lower(program.place(key), *self._args)
            init = compiler.submit(lowered.compile)
            chunk = compiler.submit(
                program.chunk.lower(
                    program.shapes, *self._args, self._total, one
                ).compile
            )
            self.state: TrainState = init.result()(program.place(key), *self._args)
            if config.eval_episodes:
                algorithm, env, state = local((*self._args, self.state.algorithm))
                self._evaluator = Evaluator(config.eval_episodes).compile(
                    algorithm, env, state, self._eval_key
                )
            self._call = chunk.result()

    def _chunk(self, updates: int) -> list[Row]:
        count = self._place(jnp.int32(updates))
        self.state, table = self._call(self.state, *self._args, self._total, count)
        table = {k: np.asarray(v)[:updates] for k, v in jax.device_get(table).items()}
        self.tables.append(table)
        first = self.update + 1
        self.update += updates
        return [self._row(table, i, first + i) for i in range(updates)]

    def _row(self, table: dict[str, np.ndarray], index: int, update: int) -> Row:
        """One update's metrics; no episode's value where no episode ended."""
        steps = update * self.steps_per_update
        row: Row = {
            "update": update,
            "env_steps": steps,
            "frames": steps * self.env.spec.frames_per_step,
        }
        values = {name: float(column[index]) for name, column in table.items()}
        returns = values.pop("episode_return_sum")
        lengths = values.pop("episode_length_sum")
        count = int(values.pop("episode_count"))
        row["episode_count"] = count
        if count:
            row["episode_return"] = returns / count
            row["episode_length"] = lengths / count
        return row | values

    def _until_boundary(self) -> int:
        """Updates until the next evaluation or the end."""
        left = self.total_updates - self.update
        every = self.config.eval_every
        if not every:
            return left
        next_steps = (self.env_steps // every + 1) * every
        return min(left, -(-(next_steps - self.env_steps) // self.steps_per_update))

    def _evaluation_due(self, updates: int) -> bool:
        """Whether the last updates ended the run or crossed a multiple of it."""
        if self.config.eval_episodes == 0:
            return False
        if self.update == self.total_updates:
            return True
        every = self.config.eval_every
        before = self.env_steps - updates * self.steps_per_update
        return bool(every) and self.env_steps // every > before // every

    def _evaluate(self) -> Evaluation:
        algorithm, env, state = local((*self._args, self.state.algorithm))
        key = jax.random.fold_in(self._eval_key, self.update)
        evaluation = self._evaluator(algorithm, env, state, key)
        self.evaluations.append((self.env_steps, evaluation))
        return evaluation

    def _progress(
        self, rows: list[Row], evaluation: Evaluation | None, finished: bool
    ) -> Progress:
        return Progress(
            update=self.update,
            env_steps=self.env_steps,
            frames=self.env_steps * self.env.spec.frames_per_step,
            total_steps=self.total_steps,
            seconds=self.seconds,
            compile_seconds=self.compile_seconds,
            rows=rows,
            evaluation=evaluation,
            finished=finished,
            _state=self.state,
        )

    def _result(self) -> Run:
        names = self.tables[0] if self.tables else ()
        columns = {k: np.concatenate([t[k] for t in self.tables]) for k in names}
        count = columns.pop("episode_count")
        summed = ("episode_return", "episode_length")
        sums = {name: columns.pop(f"{name}_sum") for name in summed}
        with np.errstate(invalid="ignore"):
            means = {k: total / count for k, total in sums.items()}
        updates = np.arange(1, self.update + 1)
        frames_per_step = self.env.spec.frames_per_step
        return Run(
            algorithm=self.algorithm,
            env=self.env.env,
            config=self.description(),
            state=self.state,
            metrics={
                "update": updates,
                "env_steps": updates * self.steps_per_update,
                "frames": updates * self.steps_per_update * frames_per_step,
                "episode_count": count,
                **means,
                **columns,
            },
            evaluations=tuple(self.evaluations),
            env_steps=self.env_steps,
            seconds=self.seconds,
            compile_seconds=self.compile_seconds,
        )

    def full_description(self) -> dict[str, Any]:
        """The content of `config.json`."""
        return full_description(self.algorithm, self.env.env, self.description())

    def description(self) -> dict[str, Any]:
        """The run's settings and what it ran on, for `config.json`."""
        config: Any = jax.config  # whose options no type checker sees
        return {
            **dataclasses.asdict(self.config),
            "devices": [str(device) for device in self.layout.devices],
            "versions": versions(),
            "matrix_precision": config.jax_default_matmul_precision or "default",
        }


def _check_instances(env: Instances, num_envs: int) -> None:
    """As many physics as environments."""
    checks.environment("env", env.env)
    for path, leaf in jax.tree_util.tree_leaves_with_path(env.env):
        if np.shape(leaf)[:1] != (num_envs,):
            raise ValueError(
                f"num_envs {num_envs} must be the number of Instances; "
                f"{jax.tree_util.keystr(path)} has shape {np.shape(leaf)}"
            )


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that results depend on."""
    packages = ("jaxrl_par", "jax", "jaxlib", "flax", "optax", "numpy")
    found = {name: _version(name) for name in packages}
    return {"python": platform.python_version(), **found}


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
