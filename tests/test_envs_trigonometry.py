"""Sine and cosine against NumPy's in double precision."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_par.envs.trigonometry import sin_cos


@pytest.mark.parametrize("reach", [4.0, 1000.0])
def test_sin_cos(reach):
    angles = np.linspace(-reach, reach, 200_001, dtype=np.float32)
    sin, cos = jax.jit(sin_cos)(angles)
    np.testing.assert_allclose(sin, np.sin(angles.astype(np.float64)), atol=2e-7)
    np.testing.assert_allclose(cos, np.cos(angles.astype(np.float64)), atol=2e-7)
    assert abs(sin).max() <= 1  # or observations would leave their bounds
    assert abs(cos).max() <= 1


def test_derivatives():
    angles = jnp.linspace(-7, 7, 1001)
    sin, cos = sin_cos(angles)
    derivative = jax.vmap(jax.grad(lambda x: sin_cos(x)[0]))(angles)
    np.testing.assert_allclose(derivative, cos, atol=1e-5)
    derivative = jax.vmap(jax.grad(lambda x: sin_cos(x)[1]))(angles)
    np.testing.assert_allclose(derivative, -sin, atol=1e-5)
