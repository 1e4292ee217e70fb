"""Adam, on one vector and leaf by leaf, against NumPy."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from jaxrl_par.algorithms import optimizers

B1, B2, EPS = 0.9, 0.999, 1e-8


def reference(params, gradients, rate, max_norm):
    """Kingma & Ba 2015, algorithm 1, with gradients clipped to a norm before."""
    params = {name: np.asarray(x, np.float64) for name, x in params.items()}
    first = dict.fromkeys(params, 0.0)
    second = dict.fromkeys(params, 0.0)
    for t, gradient in enumerate(gradients, 1):
        norm = np.sqrt(sum(np.square(g).sum() for g in gradient.values()))
        scale = 1.0 if max_norm is None else min(1.0, max_norm / norm)
        for name, g in gradient.items():
            g = scale * np.asarray(g, np.float64)
            first[name] = B1 * first[name] + (1 - B1) * g
            second[name] = B2 * second[name] + (1 - B2) * np.square(g)
            corrected = np.sqrt(second[name] / (1 - B2**t)) + EPS
            params[name] -= rate * first[name] / (1 - B1**t) / corrected
    return params


def one_sample(gradient):
    return jax.tree.map(lambda g: g[None], gradient)


def linear(params, gradient):
    """A loss with the gradient that is given."""
    products = jax.tree.map(lambda p, g: (p * g[0]).sum(), params, gradient)
    return sum(jax.tree.leaves(products)), ({}, ())


@pytest.mark.parametrize("max_norm", [None, 0.5])
@pytest.mark.parametrize("rows", [3, optimizers.FLAT_PARAMS // 4])
def test_steps_are_adams(rows, max_norm):
    rng = np.random.default_rng(0)
    shapes = {"kernel": (rows, 4), "bias": (4,)}
    draw = lambda: {  # noqa: E731
        name: rng.normal(size=shape).astype(np.float32)
        for name, shape in shapes.items()
    }
    params, gradients = draw(), [draw() for _ in range(3)]
    optimizer = optimizers.Adam(EPS, max_norm)
    new, state = params, optimizer.init(params)
    for gradient in gradients:
        taken = optimizer.step(linear, new, state, one_sample(gradient), 0.01, ())
        new, state = taken.params, taken.opt_state
        jax.tree.map(np.testing.assert_array_equal, taken.gradient, gradient)
    expected = reference(params, gradients, 0.01, max_norm)
    for name in shapes:
        np.testing.assert_allclose(new[name], expected[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("more", [0, 1])
def test_a_large_network_is_not_copied_to_a_vector(more):
    params = {"kernel": np.zeros((optimizers.FLAT_PARAMS // 4, 4)), "more": more}
    params["more"] = np.zeros(more)
    state = jax.eval_shape(optimizers.Adam(EPS).init, params)
    assert len(jax.tree.leaves(state)) == (5 if more else 3)  # two moments, a count
