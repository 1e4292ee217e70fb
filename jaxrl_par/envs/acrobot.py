"""Acrobot-v1: swing the end of a two-link arm above the bar."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_par.envs.trigonometry import sin_cos
from jaxrl_par.spaces import Box, Discrete
from jaxrl_par.types import Array, EnvSpec, Key, StepResult, pytree, static

_TURN = 2 * math.pi


@pytree
class Acrobot:
    """Two links hanging in a chain; a motor drives the joint between them.

    | obs | meaning                                       | unit  | bounds |
    |-----|-----------------------------------------------|-------|--------|
    | 0   | cosine of the first link's angle (0: down)    |       | ±1     |
    | 1   | sine of the same                              |       | ±1     |
    | 2   | cosine of the second link's relative angle    |       | ±1     |
    | 3   | sine of the same                              |       | ±1     |
    | 4   | angular velocity of the first joint           | rad/s | ±4 pi  |
    | 5   | angular velocity of the second joint          | rad/s | ±9 pi  |

    Action: Discrete(3), torque -`torque`, 0 or +`torque` on the second joint.
    Reward: -1 a step, 0 at the step that ends the task.
    Termination: the end of the second link is a link's length above the bar:
    -cos(angle1) - cos(angle1 + angle2) > 1. Truncation: after `max_steps` steps.
    Start: both angles and velocities uniform in ±`start_range`.
    State: [4] float32, both angles in [-pi, pi], both velocities.
    Source: Sutton 1996; Sutton & Barto 2018, section 11.3 (the book's equations);
    Gymnasium 1.3 `Acrobot-v1` (one Runge-Kutta step of order 4).
    """

    gravity: float = 9.8  # m/s^2
    length_1: float = 1.0  # m
    mass_1: float = 1.0  # kg
    mass_2: float = 1.0  # kg
    centre_1: float = 0.5  # m, from the joint to the link's centre of mass
    centre_2: float = 0.5  # m
    inertia: float = 1.0  # kg m^2, of each link
    torque: float = 1.0  # N m
    timestep: float = 0.2  # s
    start_range: float = 0.1
    max_speed_1: float = static(
        default=4 * math.pi
    )  # rad/s, static: bounds of observations
    max_speed_2: float = static(default=9 * math.pi)
    max_steps: int | None = static(default=500)

    @property
    def spec(self) -> EnvSpec:
        high = np.array([1.0, 1.0, 1.0, 1.0, self.max_speed_1, self.max_speed_2])
        return EnvSpec("Acrobot-v1", Box(-high, high), Discrete(3), self.max_steps)

    def reset(self, key: Key) -> tuple[Array, Array]:
        """Start an episode: (state [4], obs [6])."""
        unit = jax.random.uniform(key, (4,), jnp.float32, -1, 1)
        state = unit * self.start_range
        return state, _obs(*state)

    def step(self, key: Key, state: Array, action: Array) -> tuple[Array, StepResult]:
        """Apply one torque for one step; action () int32."""
        torque = (action - 1) * self.torque
        angle_1, angle_2, speed_1, speed_2 = self._integrate(tuple(state), torque)
        # Rounding is several times cheaper than a floating-point remainder.
        angle_1 = angle_1 - _TURN * jnp.round(angle_1 * (1 / _TURN))
        angle_2 = angle_2 - _TURN * jnp.round(angle_2 * (1 / _TURN))
        speed_1 = jnp.clip(speed_1, -self.max_speed_1, self.max_speed_1)
        speed_2 = jnp.clip(speed_2, -self.max_speed_2, self.max_speed_2)

        obs = _obs(angle_1, angle_2, speed_1, speed_2)
        cos_1, sin_1, cos_2, sin_2 = obs[:4]
        # cos(angle_1 + angle_2) by the sum formula: the sines are there already.
        terminated = -cos_1 - (cos_1 * cos_2 - sin_1 * sin_2) > 1
        reward = jnp.where(terminated, jnp.float32(0), jnp.float32(-1))
        state = jnp.stack([angle_1, angle_2, speed_1, speed_2])
        return state, StepResult(obs, reward, terminated)

    def _integrate(self, start: tuple, torque: Array) -> tuple:
        """One Runge-Kutta step of order 4 over `timestep`."""

        def ahead(slope: tuple, time: float) -> tuple:
            return tuple(s + time * k for s, k in zip(start, slope, strict=True))

        half = self.timestep / 2
        first = self._derivative(start, torque)
        second = self._derivative(ahead(first, half), torque)
        third = self._derivative(ahead(second, half), torque)
        fourth = self._derivative(ahead(third, self.timestep), torque)
        slopes = zip(first, second, third, fourth, strict=True)
        mean = tuple((a + 2 * b + 2 * c + d) / 6 for a, b, c, d in slopes)
        return ahead(mean, self.timestep)

    def _derivative(self, state: tuple, torque: Array) -> tuple:
        """Velocities and accelerations of both joints."""
        angle_1, angle_2, speed_1, speed_2 = state
        (sin_1, cos_1), (sin_2, cos_2) = sin_cos(angle_1), sin_cos(angle_2)
        sin_12 = sin_1 * cos_2 + cos_1 * sin_2  # of angle_1 + angle_2
        arm = self.mass_2 * self.length_1 * self.centre_2
        own_2 = self.mass_2 * self.centre_2**2 + self.inertia
        own_1 = self.mass_1 * self.centre_1**2 + self.inertia
        inertia_1 = own_1 + own_2 + self.mass_2 * self.length_1**2 + 2 * arm * cos_2
        coupling = own_2 + arm * cos_2

        lever_1 = self.mass_1 * self.centre_1 + self.mass_2 * self.length_1
        pull_2 = self.mass_2 * self.centre_2 * self.gravity * sin_12
        pull_1 = lever_1 * self.gravity * sin_1 + pull_2
        bias_1 = pull_1 - arm * speed_2 * (speed_2 + 2 * speed_1) * sin_2
        bias_2 = pull_2 + arm * speed_1 * speed_1 * sin_2

        ratio = coupling / inertia_1
        acc_2 = (torque + ratio * bias_1 - bias_2) / (own_2 - ratio * coupling)
        acc_1 = -(coupling * acc_2 + bias_1) / inertia_1
        return speed_1, speed_2, acc_1, acc_2


def _obs(angle_1: Array, angle_2: Array, speed_1: Array, speed_2: Array) -> Array:
    (sin_1, cos_1), (sin_2, cos_2) = sin_cos(angle_1), sin_cos(angle_2)
    return jnp.stack([cos_1, sin_1, cos_2, sin_2, speed_1, speed_2])
