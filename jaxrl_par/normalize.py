"""Running normalisation of observations and rewards, in float32.

Statistics are of true counts, merged over batches and devices (Chan et al. 1979).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_par import collectives, spaces
from jaxrl_par.types import Array, Axes, PyTree, pytree

# Beyond this many samples older ones are slowly forgotten; int32 holds it.
MAX_COUNT = 2**30


@pytree
class Moments:
    """Mean and population variance of the samples seen."""

    count: Array  # () int32, at most MAX_COUNT
    mean: Array  # [...] float32
    var: Array  # [...] float32

    @classmethod
    def zero(cls, shape: tuple[int, ...] = ()) -> Moments:
        """Of no sample: mean 0, and variance 1 so that dividing is harmless."""
        return cls(
            count=jnp.int32(0),
            mean=jnp.zeros(shape, jnp.float32),
            var=jnp.ones(shape, jnp.float32),
        )

    def merge(self, batch: Array, axes: Axes = ()) -> Moments:
        """Add a batch [..., *shape] (and those of the other devices).

        n = n_a + n_b, mean = mean_a + d * n_b / n,
        n * var = n_a * var_a + n_b * var_b + d^2 * n_a * n_b / n, d the difference
        of the means.
        """
        batch = batch.reshape(-1, *self.mean.shape).astype(jnp.float32)
        added = batch.shape[0] * collectives.size(axes)
        mean, var = collectives.moments(batch, 0, axes)
        count = self.count + added
        new = added / count.astype(jnp.float32)  # share of the new samples
        delta = mean - self.mean
        return Moments(
            count=jnp.minimum(count, MAX_COUNT),
            mean=self.mean + delta * new,
            var=(1 - new) * self.var + new * var + jnp.square(delta) * new * (1 - new),
        )

    def normalize(self, x: Array, clip: float = 10.0) -> Array:
        """(x - mean) / std, clipped, float32; x is [..., *shape]."""
        x = x.astype(jnp.float32) - jax.lax.broadcast_to_rank(self.mean, x.ndim)
        return self.scale(x, clip)

    def scale(self, x: Array, clip: float = 10.0) -> Array:
        """x / std, clipped, float32: the mean stays. x is [..., *shape]."""
        inverse = jax.lax.broadcast_to_rank(jax.lax.rsqrt(self.var + 1e-8), x.ndim)
        return jnp.clip(x.astype(jnp.float32) * inverse, -clip, clip)


@pytree
class Unchanged:
    """In the place of `Moments` for what is no quantity: the number of a choice."""

    def merge(self, batch: Array, axes: Axes = ()) -> Unchanged:
        """Nothing to add."""
        return self

    def normalize(self, x: Array) -> Array:
        """x as it is."""
        return x


def _is_part(x: Any) -> bool:
    return isinstance(x, Moments | Unchanged)


def zero_moments(space: spaces.Space) -> PyTree:
    """Statistics of no observation, for each Box of a space."""
    if isinstance(space, spaces.Dict):
        return {name: zero_moments(part) for name, part in space.items}
    return Moments.zero(space.shape) if isinstance(space, spaces.Box) else Unchanged()


def merge(moments: PyTree, obs: PyTree, axes: Axes = ()) -> PyTree:
    """Add observations [..., *shape] to the statistics of each leaf."""
    return jax.tree.map(
        lambda part, leaf: part.merge(leaf, axes), moments, obs, is_leaf=_is_part
    )


def normalize(moments: PyTree, obs: PyTree) -> PyTree:
    """Normalise each leaf of observations [..., *shape] to float32."""
    return jax.tree.map(
        lambda part, leaf: part.normalize(leaf), moments, obs, is_leaf=_is_part
    )
