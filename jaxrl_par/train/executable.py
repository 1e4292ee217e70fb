"""A run's compiled functions: make the first state, make updates, evaluate."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from jaxrl_par.envs.batched import BatchedEnv
from jaxrl_par.train.config import TrainConfig
from jaxrl_par.train.evaluate import Evaluation, Evaluator
from jaxrl_par.train.guards import Faults
from jaxrl_par.train.layout import Layout, local
from jaxrl_par.train.memory import check_memory
from jaxrl_par.types import Algorithm, TrainState

# Most updates in one call.
CHUNK_ROWS = 256
Table = dict[str, np.ndarray]


class Executable:
    """What runs on the devices of `layout`; nothing is compiled at first.

    `shapes` are the training state's, with their places. Raises ValueError if it
    cannot fit the devices.
    """

    def __init__(
        self,
        layout: Layout,
        algorithm: Algorithm,
        env: BatchedEnv,
        config: TrainConfig,
        total_updates: int,
    ) -> None:
        self._program = layout.program(
            *(algorithm, env, config.num_envs, CHUNK_ROWS), config.on_nonfinite
        )
        self.shapes: TrainState = self._program.shapes
        check_memory(self.shapes)
        self._episodes = config.eval_episodes
        self._key, self._eval_key = jax.random.split(jax.random.key(config.seed))
        self.args = self._program.place((algorithm, env))
        self.total = self.place(np.float32(total_updates))
        self.call: Any = None  # the compiled chunk

    def place(self, number: Any) -> jax.Array:
        """A number on every device."""
        return self._program.place(number)

    def compile(self, state: TrainState | None) -> TrainState:
        """Compile all that a run calls; the state that was given, or the first one.

        XLA compiles in a thread, while the next program is traced in this one.
        """
        program = self._program
        made: Any = state
        with ThreadPoolExecutor() as compiler:
            init: Any = None
            key = program.place(self._key)
            if state is None:
                lowered = program.init.lower(key, *self.args)
                init = compiler.submit(lowered.compile)
            one = self.place(np.int32(1))
            lowered = program.chunk.lower(self.shapes, *self.args, self.total, one)
            chunk = compiler.submit(lowered.compile)
            if made is None:
                made = init.result()(key, *self.args)
            if self._episodes:
                algorithm, env, learned = self._local(made)
                self._evaluator = Evaluator(self._episodes).compile(
                    algorithm, env, learned, self._eval_key
                )
            self.call = chunk.result()
        return made

    def advance(
        self, state: TrainState, updates: int
    ) -> tuple[TrainState, Table, int, Faults]:
        """Use up a state: (the next, metrics [rows], updates made, faults).

        See `step.chunk`.
        """
        count = self.place(np.int32(updates))
        state, table, ended = self.call(state, *self.args, self.total, count)
        table, (made, faults) = jax.device_get((table, ended))
        return state, table, int(made), faults

    def evaluate(self, state: TrainState, update: int) -> Evaluation:
        """Greedy episodes, on keys that an update has for itself."""
        algorithm, env, learned = self._local(state)
        key = jax.random.fold_in(self._eval_key, update)
        return self._evaluator(algorithm, env, learned, key)

    def _local(self, state: TrainState) -> tuple[Algorithm, BatchedEnv, Any]:
        algorithm, env = local(self.args)
        return algorithm, env, local(state.algorithm, algorithm.sharded)
