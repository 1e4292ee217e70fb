"""Running normalisation of observations and rewards, in float32.

Statistics are of true counts, merged over batches and devices (Chan et al. 1979).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl_par import collectives
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
        return cls(jnp.int32(0), jnp.zeros(shape), jnp.ones(shape))

    def merge(self, batch: Array, axes: Axes = ()) -> Moments:
        """Add a batch [N, ...] (and those of the other devices).

        n = n_a + n_b, mean = mean_a + d * n_b / n,
        n * var = n_a * var_a + n_b * var_b + d^2 * n_a * n_b / n, d the difference
        of the means.
        """
        added = batch.shape[0] * collectives.size(axes)
        mean, var = collectives.moments(batch.astype(jnp.float32), 0, axes)
        count = self.count + added
        new = added / count.astype(jnp.float32)  # share of the new samples
        delta = mean - self.mean
        return Moments(
            count=jnp.minimum(count, MAX_COUNT),
            mean=self.mean + delta * new,
            var=(1 - new) * self.var + new * var + jnp.square(delta) * new * (1 - new),
        )

    def normalize(self, x: Array, clip: float = 10.0) -> Array:
        """(x - mean) / std, clipped, float32."""
        scaled = (x.astype(jnp.float32) - self.mean) * jax.lax.rsqrt(self.var + 1e-8)
        return jnp.clip(scaled, -clip, clip)

    def scale(self, x: Array, clip: float = 10.0) -> Array:
        """x / std, clipped, float32: the mean stays."""
        return jnp.clip(x * jax.lax.rsqrt(self.var + 1e-8), -clip, clip)


def zero_moments(example: PyTree) -> PyTree:
    """A `Moments` for each leaf of one unbatched observation."""
    return jax.tree.map(lambda x: Moments.zero(x.shape), example)


def merge(moments: PyTree, batch: PyTree, axes: Axes = ()) -> PyTree:
    """Add observations with any leading axes to the statistics of each leaf."""

    def add(part: Moments, leaf: Array) -> Moments:
        return part.merge(leaf.reshape(-1, *part.mean.shape), axes)

    return jax.tree.map(add, moments, batch, is_leaf=lambda x: isinstance(x, Moments))


def normalize(moments: PyTree, obs: PyTree) -> PyTree:
    """Normalise each leaf of observations [..., *shape] to float32."""
    return jax.tree.map(
        lambda part, leaf: part.normalize(leaf),
        moments,
        obs,
        is_leaf=lambda x: isinstance(x, Moments),
    )
