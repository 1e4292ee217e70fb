"""CartPole-v1: balance a pole on a cart."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_par.spaces import Box, Discrete
from jaxrl_par.types import Array, EnvSpec, Key, StepResult, pytree, static


@pytree
class CartPole:
    """A pole hinged on a cart that is pushed left or right.

    | obs | meaning                 | unit  | bounds                |
    |-----|-------------------------|-------|-----------------------|
    | 0   | cart position           | m     | ±2 x_threshold        |
    | 1   | cart velocity           | m/s   | unbounded             |
    | 2   | pole angle from upright | rad   | ±2 angle_threshold    |
    | 3   | pole angular velocity   | rad/s | unbounded             |

    Action: Discrete(2), push with `force` to the left (0) or right (1).
    Reward: 1 at every step, the last one included.
    Termination: |position| > x_threshold or |angle| > angle_threshold.
    Truncation: after `max_steps` steps.
    Start: all four uniform in ±`start_range`. State: the observation, [4] float32.
    Source: Barto, Sutton & Anderson 1983; Gymnasium 1.3 `CartPole-v1` (Euler).
    """

    gravity: float = 9.8  # m/s^2
    cart_mass: float = 1.0  # kg
    pole_mass: float = 0.1  # kg
    half_length: float = 0.5  # m, from the hinge to the pole's centre of mass
    force: float = 10.0  # N
    timestep: float = 0.02  # s
    start_range: float = 0.05
    x_threshold: float = static(
        default=2.4
    )  # m, static: it sets the observation's bounds
    angle_threshold: float = static(default=math.radians(12))  # rad
    max_steps: int | None = static(default=500)

    @property
    def spec(self) -> EnvSpec:
        high = np.array(
            [self.x_threshold * 2, np.inf, self.angle_threshold * 2, np.inf]
        )
        return EnvSpec("CartPole-v1", Box(-high, high), Discrete(2), self.max_steps)

    def reset(self, key: Key) -> tuple[Array, Array]:
        """Start an episode: (state [4], obs [4])."""
        unit = jax.random.uniform(key, (4,), jnp.float32, -1, 1)
        state = unit * self.start_range
        return state, state

    def step(self, key: Key, state: Array, action: Array) -> tuple[Array, StepResult]:
        """Push once and advance by one Euler step; action () int32."""
        x, x_dot, angle, angle_dot = state
        total_mass = self.cart_mass + self.pole_mass
        push = jnp.where(action == 1, self.force, -self.force)
        sin, cos = jnp.sin(angle), jnp.cos(angle)
        moment = self.pole_mass * self.half_length
        thrust = (push + moment * angle_dot * angle_dot * sin) / total_mass
        inertia = 4.0 / 3.0 - self.pole_mass / total_mass * cos * cos
        angle_acc = (self.gravity * sin - cos * thrust) / (self.half_length * inertia)
        x_acc = thrust - moment / total_mass * angle_acc * cos

        x = x + self.timestep * x_dot
        x_dot = x_dot + self.timestep * x_acc
        angle = angle + self.timestep * angle_dot
        angle_dot = angle_dot + self.timestep * angle_acc
        state = jnp.stack([x, x_dot, angle, angle_dot])
        terminated = (abs(x) > self.x_threshold) | (abs(angle) > self.angle_threshold)
        return state, StepResult(state, jnp.float32(1), terminated)
