"""CliffWalking-v0: walk along a cliff, or further away from it."""

from __future__ import annotations

import jax.numpy as jnp

from jaxrl_par.spaces import Discrete
from jaxrl_par.types import Array, EnvSpec, Key, StepResult, pytree, static

ROWS, COLUMNS = 4, 12
START, GOAL = 36, 47


@pytree
class CliffWalking:
    """A grid of 4 x 12 cells; between start and goal, along the bottom, a cliff.

    Observation: Discrete(48), the cell: row * 12 + column, counted from the top left.
    Action: Discrete(4), one cell up (0), right (1), down (2), left (3); a step off the
    grid stays.
    Reward: -1 at every step, the last one included; `cliff_reward` for one onto the
    cliff (bottom row, columns 1 to 10), which leads back to the start.
    Termination: at the goal, bottom right. A fall does not end the episode.
    Truncation: after `max_steps` steps. The sources have no limit (None); with one a
    greedy policy that walks in circles has a return, and an evaluation an end.
    Start: bottom left. State: the observation, () int32.
    The best return is -13; that of the path furthest from the cliff is -17.
    Source: Sutton & Barto 2018, example 6.6; Gymnasium 1.3 `CliffWalking-v1`.
    """

    cliff_reward: float = -100.0
    max_steps: int | None = static(default=1000)

    @property
    def spec(self) -> EnvSpec:
        cells = Discrete(ROWS * COLUMNS)
        return EnvSpec("CliffWalking-v0", cells, Discrete(4), self.max_steps)

    def reset(self, key: Key) -> tuple[Array, Array]:
        """Start an episode: (state (), obs ())."""
        return jnp.int32(START), jnp.int32(START)

    def step(self, key: Key, state: Array, action: Array) -> tuple[Array, StepResult]:
        """Walk to the next cell; action () int32."""
        row, column = jnp.divmod(state, COLUMNS)
        row = jnp.clip(row + (action == 2) - (action == 0), 0, ROWS - 1)
        column = jnp.clip(column + (action == 1) - (action == 3), 0, COLUMNS - 1)
        cell = row * COLUMNS + column
        fell = (cell > START) & (cell < GOAL)
        state = jnp.where(fell, START, cell)
        reward = jnp.where(fell, jnp.float32(self.cliff_reward), -1.0)
        return state, StepResult(state, reward, cell == GOAL)
