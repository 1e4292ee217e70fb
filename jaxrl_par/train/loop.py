"""The host's side of a run: compile once, call in chunks, read small results."""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import jax
import numpy as np

from jaxrl_par import checks
from jaxrl_par.envs.base import check_shapes
from jaxrl_par.envs.batched import BatchedEnv
from jaxrl_par.envs.wrappers import Instances
from jaxrl_par.train import guards
from jaxrl_par.train.callbacks import (
    Callback,
    Progress,
    ReturnReached,
    Row,
    Stop,
    TimeBudget,
)
from jaxrl_par.train.checkpoints import Checkpoints
from jaxrl_par.train.config import TrainConfig
from jaxrl_par.train.evaluate import Evaluation
from jaxrl_par.train.executable import CHUNK_ROWS, Executable
from jaxrl_par.train.guards import DivergedError
from jaxrl_par.train.history import History, read_metrics
from jaxrl_par.train.layout import Layout
from jaxrl_par.train.plan import Plan, enable_compilation_cache
from jaxrl_par.train.provenance import versions
from jaxrl_par.train.run import Run, full_description, read_evaluations
from jaxrl_par.train.run_directory import RunDirectory
from jaxrl_par.train.schedule import Schedule
from jaxrl_par.train.signals import SaveOnSignal
from jaxrl_par.types import Algorithm, Environment


def train(
    algorithm: Algorithm,
    env: Environment | Instances,
    *,
    callbacks: Sequence[Callback] = (),
    out: str | Path | None = None,
    **settings: Any,
) -> Run:
    """Train `algorithm` on `env`; `settings` are the fields of `TrainConfig`.

    With `out`, a fresh or empty directory, all of the run is kept there (`load`), and
    it can go on after whatever ends it (`resume`). SIGINT and SIGTERM then save it
    before they end the program.

    Every callback is called with a `Progress` after each call of the compiled loop
    (about twice a second) and may return STOP. Raises ValueError, before anything is
    compiled, for a setting that cannot work; DivergedError for numbers that are not
    finite, as `on_nonfinite` says.
    """
    for name in settings:
        checks.known("setting", name, [f.name for f in dataclasses.fields(TrainConfig)])
    config = TrainConfig(**settings)
    trainer = Trainer(algorithm, env, config)
    check_callbacks(callbacks)
    if out is not None:
        directory = RunDirectory(out, trainer.full_description(), config)
        with SaveOnSignal() as on_signal:
            return trainer.run([*callbacks, on_signal], directory)
    if config.on_nonfinite == "rollback":
        raise ValueError("on_nonfinite 'rollback' needs `out`, where checkpoints are")
    return trainer.run(callbacks)


def check_callbacks(callbacks: Any) -> None:
    """Raise ValueError unless it is a sequence of functions."""
    for callback in checks.sequence("callbacks", callbacks):
        if not callable(callback):
            raise ValueError(
                f"callbacks: {callback!r} must be a function of a Progress"
            )


class Trainer:
    """A run under way: the compiled program, the state and the counts.

    `devices` is how many to use where `config.data` leaves it open.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        env: Environment | Instances,
        config: TrainConfig,
        devices: int | None = None,
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
        plan = Plan.of(config, devices)
        self.layout: Layout = plan.settle(algorithm, config.num_envs)
        self.steps_per_update = config.num_envs * algorithm.rollout_length
        checks.positive_int("num_envs * rollout_length", self.steps_per_update)
        self.schedule = Schedule(config, self.steps_per_update)
        self.total_updates = self.schedule.total_updates
        if self.total_updates >= 2**31:
            raise ValueError(
                f"total_steps {config.total_steps} must make fewer than 2^31 updates; "
                f"of {self.steps_per_update} steps each it makes {self.total_updates}"
            )
        self.update = 0
        self.seconds = 0.0
        self.compile_seconds = 0.0
        self.rollbacks = 0
        self.history = History(self.steps_per_update, env.spec.frames_per_step)
        self.evaluations: list[tuple[int, Evaluation]] = []
        self.processes: list[Any] = []  # descriptions of those before this one
        self._skips = guards.SkipWatch(config.num_envs, self.total_updates)
        self.state: Any = None  # a TrainState, once it is made or restored
        self._resumed = self._ran = False
        enable_compilation_cache()

    @property
    def env_steps(self) -> int:
        """Environment steps made: a Python integer, which cannot overflow."""
        return self.update * self.steps_per_update

    @property
    def total_steps(self) -> int:
        """Environment steps of the whole run."""
        return self.total_updates * self.steps_per_update

    def restore(self, checkpoints: Checkpoints) -> None:
        """Go on from the newest checkpoint that is whole, instead of from the start.

        Without any, as a run leaves it that was killed before its first, a warning
        says that the run starts anew. Raises ValueError if all are damaged, if one
        does not fit, or if it is beyond `total_steps`.
        """
        self._resumed = True
        if checkpoints.empty:
            rule = "holds no checkpoint: the run starts anew"
            warnings.warn(f"{checkpoints.directory} {rule}", stacklevel=2)
            return
        self.state, facts = checkpoints.load(self.executable.shapes)
        self.update = facts["update"]
        self.seconds = max(self.seconds, facts["seconds"])
        self.rollbacks = max(self.rollbacks, facts["rollbacks"])
        if self.update > self.total_updates:
            raise ValueError(
                f"total_steps {self.config.total_steps} must be at least the "
                f"{self.env_steps} that are done"
            )

    def run(
        self, callbacks: Sequence[Callback] = (), directory: RunDirectory | None = None
    ) -> Run:
        """Train to the end, or until a callback stops it. Only once."""
        if self._ran:
            raise RuntimeError("this Trainer has run; make a new one for another run")
        self._ran = True
        try:
            return self._run([*self._rules(), *callbacks], directory)
        finally:
            if directory is not None:
                directory.close()

    def _run(self, callbacks: list[Callback], directory: RunDirectory | None) -> Run:
        stop = self._reached(directory)
        goes_on = stop is None and self.update < self.total_updates
        if goes_on:
            self.compile()
        if directory is not None and self._resumed:
            self._rewind(directory, goes_on)
        rolls_back = goes_on and self.config.on_nonfinite == "rollback"
        if directory is not None and rolls_back and directory.checkpoints.empty:
            directory.save(self._progress([]))  # to have where to go back to
        chunk = 1
        while stop is None and self.update < self.total_updates:
            begin = time.perf_counter()
            boundary = self.schedule.until_boundary(self.update)
            rows, fault = self.advance(min(chunk, boundary))
            elapsed = time.perf_counter() - begin
            self.seconds += elapsed
            pace = self.config.chunk_seconds / elapsed
            chunk = max(1, min(CHUNK_ROWS, int(pace * len(rows))))
            if fault is None:
                due = self.schedule.evaluation_due(self.update, len(rows))
                progress = self._progress(rows, self._evaluate() if due else None)
                stop = self._report(progress, callbacks, directory)
            elif directory is not None and self._may_roll_back:
                self._roll_back(fault, directory)
            else:
                self._diverge(fault, rows, callbacks, directory)
        if self.update == self.total_updates:
            stop = None
        return self._end(stop, callbacks, directory)

    def _reached(self, directory: RunDirectory | None) -> Stop | None:
        """Whether a run that is resumed had ended because its return was reached."""
        target = self.config.stop_at_return
        if directory is None or not self._resumed or target is None:
            return None
        made = read_evaluations(directory.path / "evaluations.jsonl")
        here = [x.mean_return for steps, x in made if steps == self.env_steps]
        return Stop("stop_at_return") if here and here[-1] >= target else None

    @property
    def _may_roll_back(self) -> bool:
        config = self.config
        left = self.rollbacks < config.max_rollbacks
        return config.on_nonfinite == "rollback" and left

    def _rules(self) -> list[Callback]:
        """Callbacks that the settings ask for."""
        config = self.config
        budget, target = config.max_seconds, config.stop_at_return
        rules: list[Callback] = [] if budget is None else [TimeBudget(budget)]
        return rules if target is None else [*rules, ReturnReached(target)]

    @cached_property
    def executable(self) -> Executable:
        """The compiled part; what it needs to compile is traced at the first use."""
        args = (self.layout, self.algorithm, self.env, self.config)
        return Executable(*args, self.total_updates)

    def compile(self) -> None:
        """Compile; the state is made on the devices, unless it was restored."""
        start = time.perf_counter()
        self.state = self.executable.compile(self.state)
        self.compile_seconds = time.perf_counter() - start

    def advance(self, updates: int) -> tuple[list[Row], str | None]:
        """Make updates: their rows, and what was not finite in the next, if so."""
        self.state, table, made, faults = self.executable.advance(self.state, updates)
        first, self.update = self.update + 1, self.update + made
        rows = self.history.add(first, {k: v[:made] for k, v in table.items()})
        if made < updates:
            failed = {name: float(column[made]) for name, column in table.items()}
            words = guards.describe(faults, failed, self.config.num_envs)
            return rows, f"update {self.update + 1:,}: not finite: {words}"
        return rows, self._skips.look(rows)

    def _evaluate(self) -> Evaluation:
        evaluation = self.executable.evaluate(self.state, self.update)
        self.evaluations.append((self.env_steps, evaluation))
        return evaluation

    def _report(
        self,
        progress: Progress,
        callbacks: Sequence[Callback],
        directory: RunDirectory | None,
    ) -> Stop | None:
        """Write what is new and call the callbacks; the first that asks for an end."""
        if directory is not None:
            directory.append(progress)
            if directory.save_due(progress):
                directory.save(progress)
        try:
            answers = [callback(progress) for callback in callbacks]
        except BaseException:  # a callback's fault costs no training
            if directory is not None:
                directory.save(progress)
            raise
        return next((answer for answer in answers if isinstance(answer, Stop)), None)

    def _end(
        self,
        stop: Stop | None,
        callbacks: Sequence[Callback],
        directory: RunDirectory | None,
    ) -> Run:
        """The result, after what was asked for while it was made has been done."""
        evaluation = self.evaluations[-1][1] if self._evaluated() else None
        progress = self._progress([], evaluation, stop)
        if stop is not None:
            if directory is not None:  # first what must not be lost
                directory.save(progress)
            if stop.evaluate and self.config.eval_episodes and evaluation is None:
                progress = self._progress([], self._evaluate(), stop)
            self._report(progress, callbacks, directory)
        if directory is not None:
            directory.finish(progress)
        return self._result(stop)

    def _evaluated(self) -> bool:
        return bool(self.evaluations) and self.evaluations[-1][0] == self.env_steps

    def _diverge(
        self,
        fault: str,
        rows: list[Row],
        callbacks: Sequence[Callback],
        directory: RunDirectory | None,
    ) -> NoReturn:
        """End with the state before the faulty update, and say so."""
        if rows:
            self._report(self._progress(rows), callbacks, directory)
        run = self._end(Stop(fault), callbacks, directory)
        if self.rollbacks:
            fault += f"; {self.rollbacks} rollbacks are spent"
        if directory is not None:
            fault += (
                f"; {directory.path} holds the state before it, from which resume goes "
                "on with on_nonfinite 'skip'; if it comes again, lower the rates anew"
            )
        raise DivergedError(fault, run)

    def _roll_back(self, fault: str, directory: RunDirectory) -> None:
        """Go on from the last checkpoint, with another key."""
        self.rollbacks += 1
        self.restore(directory.checkpoints)
        self._rewind(directory, goes_on=True)
        # Beyond the numbers of updates, which are folded into the key too.
        key = jax.random.fold_in(self.state.key, ~np.uint32(self.rollbacks))
        key = jax.device_put(key, self.state.key.sharding)
        self.state = dataclasses.replace(self.state, key=key)
        count = f"{self.rollbacks} of at most {self.config.max_rollbacks}"
        rule = f"rolled back to update {self.update:,} ({count})"
        warnings.warn(f"{fault}; {rule}", stacklevel=2)

    def _rewind(self, directory: RunDirectory, goes_on: bool) -> None:
        """Have the directory, and what is kept of it here, end where the state does."""
        directory.rewind(self.update, goes_on)
        self.history.restart(read_metrics(directory.path / "metrics.jsonl"))
        self.evaluations = list(read_evaluations(directory.path / "evaluations.jsonl"))

    def _progress(
        self,
        rows: list[Row],
        evaluation: Evaluation | None = None,
        stop: Stop | None = None,
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
            finished=stop is not None or self.update == self.total_updates,
            _state=self.state,
            reason=None if stop is None else stop.reason,
            rollbacks=self.rollbacks,
        )

    def _result(self, stop: Stop | None) -> Run:
        return Run(
            algorithm=self.algorithm,
            env=self.env.env,
            config=self.description(),
            state=self.state,
            metrics=self.history.columns(),
            evaluations=tuple(self.evaluations),
            env_steps=self.env_steps,
            seconds=self.seconds,
            compile_seconds=self.compile_seconds,
            reason=None if stop is None else stop.reason,
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
            "processes": self.processes,
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
