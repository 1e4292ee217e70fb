"""MountainCar-v0: drive an underpowered car out of a valley."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_par.spaces import Box, Discrete
from jaxrl_par.types import Array, EnvSpec, Key, StepResult, pytree, static


@pytree
class MountainCar:
    """A car in a valley must rock to and fro to reach the flag on the right.

    | obs | meaning        | unit           | bounds                       |
    |-----|----------------|----------------|------------------------------|
    | 0   | position       |                | [min_position, max_position] |
    | 1   | velocity       | position/step  | ±max_speed                   |

    Action: Discrete(3), accelerate to the left (0), not at all (1), to the right (2).
    Reward: -1 at every step, the last one included.
    Termination: position >= goal_position and velocity >= goal_velocity.
    Truncation: after `max_steps` steps.
    Start: position uniform in [-0.6, -0.4], velocity 0.
    State: the observation, [2] float32.
    Source: Moore 1990; Gymnasium 1.3 `MountainCar-v0`.
    """

    force: float = 0.001
    gravity: float = 0.0025
    goal_position: float = 0.5
    goal_velocity: float = 0.0
    min_position: float = static(default=-1.2)  # static: these bound the observation
    max_position: float = static(default=0.6)
    max_speed: float = static(default=0.07)
    max_steps: int | None = static(default=200)

    @property
    def spec(self) -> EnvSpec:
        low = np.array([self.min_position, -self.max_speed])
        high = np.array([self.max_position, self.max_speed])
        return EnvSpec("MountainCar-v0", Box(low, high), Discrete(3), self.max_steps)

    def reset(self, key: Key) -> tuple[Array, Array]:
        """Start an episode: (state [2], obs [2])."""
        position = jax.random.uniform(key, (), jnp.float32, -0.6, -0.4)
        state = jnp.stack([position, jnp.float32(0)])
        return state, state

    def step(self, key: Key, state: Array, action: Array) -> tuple[Array, StepResult]:
        """Accelerate for one step; action () int32."""
        position, velocity = state
        slope = jnp.cos(3 * position)
        velocity = velocity + (action - 1) * self.force - slope * self.gravity
        velocity = jnp.clip(velocity, -self.max_speed, self.max_speed)
        position = position + velocity
        position = jnp.clip(position, self.min_position, self.max_position)
        # The wall on the left stops the car; the one on the right does not.
        wall = (position <= self.min_position) & (velocity < 0)
        velocity = jnp.where(wall, 0, velocity)

        at_goal = position >= self.goal_position
        terminated = at_goal & (velocity >= self.goal_velocity)
        state = jnp.stack([position, velocity])
        return state, StepResult(state, jnp.float32(-1), terminated)
