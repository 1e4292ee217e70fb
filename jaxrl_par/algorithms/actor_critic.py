"""What off-policy actor-critics share: actions, exploration, the critics' loss.

Actions are learned of as *units*: [N, D] in [-1, 1], which `to_action` scales to the
bounds of the environment's box.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_par import checks, collectives, distributions, spaces
from jaxrl_par.algorithms import off_policy
from jaxrl_par.networks import critic
from jaxrl_par.types import Array, Axes, EnvSpec, Key


def bounded_box(spec: EnvSpec) -> spaces.Box:
    """The action space. Raises ValueError unless it is a bounded Box of floats."""
    space = spec.action_space
    if not isinstance(space, spaces.Box) or not np.issubdtype(space.dtype, np.floating):
        raise ValueError(f"action space {space} must be a float Box")
    return distributions.TanhNormal(space).box  # which refuses infinite and empty ones


def to_action(box: spaces.Box, unit: Array) -> Array:
    """Units [..., D] as actions [..., *shape] of the environment."""
    return spaces.from_unit(box, unit.reshape(*unit.shape[:-1], *box.shape))


def check(algorithm: Any, spec: EnvSpec, num_envs: int, rates: tuple[str, ...]) -> None:
    """Raise ValueError for what no actor-critic here can train on.

    `rates` are names of fields that must be one number.
    """
    off_policy.check_sizes(algorithm, num_envs)
    for name in rates:
        checks.scalar(name, getattr(algorithm, name))
    for name in ("gamma", "tau"):
        checks.between(name, getattr(algorithm, name), 0.0, 1.0)
    checks.below_one("noise_correlation", algorithm.noise_correlation)
    for name in ("tau", "adam_eps"):
        checks.positive(name, getattr(algorithm, name))
    for name in (name for name in rates if name.endswith("learning_rate")):
        if name == "learning_rate" or getattr(algorithm, name) is not None:
            checks.positive(name, getattr(algorithm, name))
    critic.check(algorithm.network, spec)


def normal(key: Key, shape: tuple[int, ...], axes: Axes) -> Array:
    """This device's share of normal noise [K, M, ...]; M are of all devices.

    One draw for all gradient steps of an update.
    """
    return collectives.part(jax.random.normal(key, shape), 1, axes)


def correlate(carry: Array, noise: Array, correlation: Array | float) -> Array:
    """Normal noise [B, D] that keeps some of the last step's, `carry` [B, D].

    An Ornstein-Uhlenbeck process that starts at 0 in each episode and whose deviation
    tends to 1, whatever the correlation of one step with the next (Lillicrap et al.
    2016, section 3; of the noise of a stochastic policy, Eberhard et al. 2023).
    """
    return correlation * carry + jnp.sqrt(1.0 - correlation**2) * noise


def uniform_of(noise: Array) -> Array:
    """Normal noise as uniform noise in [-1, 1]: its distribution function."""
    return jax.lax.erf(noise * math.sqrt(0.5))


def warming_up(clock: off_policy.Clock, learning_starts: int) -> Array:
    """Whether no gradient step has been taken, and actions are random: () bool."""
    return clock.steps < learning_starts


def critic_loss(values: Array, target: Array, weight: Array) -> Array:
    """Half the squared errors of critics' values [C, N], summed over the critics.

    `target` and `weight` are [N]; the result is a mean over them.
    """
    errors = jnp.square(values - target[None]).sum(0)
    return 0.5 * (weight * errors).mean()
