"""The activations of the networks."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_par.networks.activations import ACTIVATIONS, tanh


def test_tanh_is_within_1e_5_and_within_one():
    x = jnp.linspace(-20, 20, 100_001)
    y = np.asarray(tanh(x))
    assert np.abs(y - np.tanh(np.asarray(x, np.float64))).max() < 1e-5
    assert np.abs(y).max() <= 1.0


def test_slope_of_tanh():
    x = jnp.linspace(-20, 20, 1001)
    slope = np.asarray(jax.vmap(jax.grad(tanh))(x))
    expected = 1 - np.tanh(np.asarray(x, np.float64)) ** 2
    assert np.abs(slope - expected).max() < 2e-5


def test_every_activation_is_finite_far_out():
    for name, function in ACTIVATIONS.items():
        far = function(jnp.float32([-1e30, 1e30]))
        assert np.isfinite(np.asarray(far)).all(), name
