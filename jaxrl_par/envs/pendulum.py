"""Pendulum-v1: swing a pendulum up and hold it there."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_par.spaces import Box
from jaxrl_par.types import Array, EnvSpec, Key, StepResult, pytree, static


@pytree
class Pendulum:
    """A rod, hinged at one end, that a weak motor must swing up.

    | obs | meaning                       | unit  | bounds     |
    |-----|-------------------------------|-------|------------|
    | 0   | cosine of the angle from up   |       | ±1         |
    | 1   | sine of the angle from up     |       | ±1         |
    | 2   | angular velocity              | rad/s | ±max_speed |

    Action: Box [1], torque in N m, cut to ±`max_torque`.
    Reward: -(angle^2 + 0.1 velocity^2 + 0.001 torque^2), before the step, with the
    angle in [-pi, pi]; between -16.3 and 0.
    Termination: never. Truncation: after `max_steps` steps.
    Start: angle uniform in ±pi, velocity uniform in ±1.
    State: [2] float32, angle in [-pi, pi] and velocity.
    Source: Gymnasium 1.3 `Pendulum-v1`.
    """

    gravity: float = 10.0  # m/s^2
    mass: float = 1.0  # kg
    length: float = 1.0  # m
    timestep: float = 0.05  # s
    max_speed: float = static(default=8.0)  # rad/s, static: it bounds the observation
    max_torque: float = static(default=2.0)  # N m, static: it bounds the action
    max_steps: int | None = static(default=200)

    @property
    def spec(self) -> EnvSpec:
        high = np.array([1.0, 1.0, self.max_speed])
        action_space = Box(-self.max_torque, self.max_torque, (1,))
        return EnvSpec("Pendulum-v1", Box(-high, high), action_space, self.max_steps)

    def reset(self, key: Key) -> tuple[Array, Array]:
        """Start an episode: (state [2], obs [3])."""
        unit = jax.random.uniform(key, (2,), jnp.float32, -1, 1)
        state = unit * np.array([math.pi, 1.0], np.float32)
        return state, self._obs(state[0], state[1])

    def step(self, key: Key, state: Array, action: Array) -> tuple[Array, StepResult]:
        """Apply a torque for one step; action [1] float32."""
        angle, velocity = state
        torque = jnp.clip(action[0], -self.max_torque, self.max_torque)
        cost = angle * angle + 0.1 * velocity * velocity + 0.001 * torque * torque

        pull = 1.5 * self.gravity / self.length * jnp.sin(angle)
        motor = 3.0 / (self.mass * self.length**2) * torque
        velocity = velocity + (pull + motor) * self.timestep
        velocity = jnp.clip(velocity, -self.max_speed, self.max_speed)
        angle = angle + velocity * self.timestep
        # Rounding is several times cheaper than a floating-point remainder.
        angle = angle - 2 * math.pi * jnp.round(angle * (0.5 / math.pi))
        result = StepResult(self._obs(angle, velocity), -cost, jnp.bool_(False))
        return jnp.stack([angle, velocity]), result

    def _obs(self, angle: Array, velocity: Array) -> Array:
        return jnp.stack([jnp.cos(angle), jnp.sin(angle), velocity])
