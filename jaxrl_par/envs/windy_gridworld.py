"""WindyGridworld-v0: reach a cell in a crosswind."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from jaxrl_par.spaces import Discrete
from jaxrl_par.types import Array, EnvSpec, Key, StepResult, pytree, static

WIND = (0, 0, 0, 1, 1, 1, 2, 2, 1, 0)  # cells upwards, by column
ROWS, COLUMNS = 7, len(WIND)
START, GOAL = 30, 37


@pytree
class WindyGridworld:
    """A grid of 7 x 10 cells; a wind blows upwards in the middle columns.

    Observation: Discrete(70), the cell: row * 10 + column, counted from the top left.
    Action: Discrete(4), one cell up (0), right (1), down (2), left (3), and upwards by
    the `WIND` of the column that is left: one displacement, cut short at the edges.
    Reward: -1 at every step, the last one included.
    Termination: at the goal, row 3, column 7.
    Truncation: after `max_steps` steps. The source has no limit (None); with one a
    greedy policy that walks in circles has a return, and an evaluation an end.
    Start: row 3, column 0. State: the observation, () int32.
    The best return is -15.
    Source: Sutton & Barto 2018, example 6.5; the actions' order is CliffWalking's.
    """

    max_steps: int | None = static(default=1000)

    @property
    def spec(self) -> EnvSpec:
        cells = Discrete(ROWS * COLUMNS)
        return EnvSpec("WindyGridworld-v0", cells, Discrete(4), self.max_steps)

    def reset(self, key: Key) -> tuple[Array, Array]:
        """Start an episode: (state (), obs ())."""
        return jnp.int32(START), jnp.int32(START)

    def step(self, key: Key, state: Array, action: Array) -> tuple[Array, StepResult]:
        """Walk to the next cell, and be carried on; action () int32."""
        row, column = jnp.divmod(state, COLUMNS)
        wind = jnp.asarray(np.array(WIND, np.int32))[column]
        row = jnp.clip(row + (action == 2) - (action == 0) - wind, 0, ROWS - 1)
        column = jnp.clip(column + (action == 1) - (action == 3), 0, COLUMNS - 1)
        state = row * COLUMNS + column
        return state, StepResult(state, jnp.float32(-1), state == GOAL)
