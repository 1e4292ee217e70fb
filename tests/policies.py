"""What the tests of distributions share."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_par.distributions import Normal


@partial(jax.jit, static_argnums=0)
def everything(distribution, outputs, noise):
    """A distribution's functions in one program: sample, log_prob, entropy, ..."""
    sample = distribution.sample(outputs, noise)
    return (
        sample,
        distribution.log_prob(outputs, sample),
        distribution.entropy(outputs),
        distribution.mode(outputs),
        distribution.to_action(sample),
    )


def random_outputs(distribution, shape=(7, 6), seed=0):
    """Outputs with any leading axes; log deviations around -1."""
    outputs = np.random.default_rng(seed).normal(
        size=(*shape, distribution.num_outputs)
    )
    return jnp.asarray(outputs - isinstance(distribution, Normal), jnp.float32)


def values_and_jacobian(function):
    return lambda x: (function(x), jax.jacobian(function)(x))
