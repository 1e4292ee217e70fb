"""Rules that are counted in environment steps, by crossings of multiples.

An update makes many steps at once, so what happens "every N steps" happens as often
as their count passes a multiple of N: neither lost nor drifting, whatever divides
what. Counters are remainders, so that they never overflow.
"""

from __future__ import annotations

import jax.numpy as jnp

from jaxrl_par import collectives
from jaxrl_par.types import Array, Axes, Rollout


def steps_of(rollout: Rollout, axes: Axes) -> int:
    """Environment steps of a rollout, over all devices."""
    return rollout.reward.size * collectives.size(axes)


def crossings(passed: Array, steps: int, every: int) -> tuple[Array, Array]:
    """How many multiples of `every` are crossed: (count, passed), () int32.

    `passed` are the steps since the last one, before and after.
    """
    count, passed = jnp.divmod(passed + steps, every)
    return count.astype(jnp.int32), passed.astype(jnp.int32)


def most_crossings(steps: int, every: int) -> int:
    """The most that so many steps can make."""
    return -(-steps // every)


def up_to(counted: Array, steps: int, most: int) -> Array:
    """Steps so far, () int32, not counted beyond `most`."""
    return counted + jnp.minimum(steps, most - counted)


def linear(
    progress: Array | float,
    start: Array | float,
    end: Array | float,
    fraction: Array | float,
) -> Array:
    """From `start` to `end` over the first `fraction` of a run, then `end`, float32.

    At once where `fraction` is 0; `progress` is the share of the run that is done.
    """
    share = jnp.clip(progress / jnp.maximum(fraction, 1e-9), 0.0, 1.0)
    share = jnp.where(progress >= fraction, 1.0, share)
    return jnp.float32(start + share * (end - start))
