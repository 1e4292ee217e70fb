"""Networks: inputs, shapes and initialisation."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_par import CNN, MLP, PPO, networks
from jaxrl_par.networks import convolution, inputs
from jaxrl_par.networks.base import build, check_network
from jaxrl_par.networks.body import Body
from jaxrl_par.networks.initialize import orthogonal
from jaxrl_par.spaces import Box, Dict, Discrete, MultiDiscrete
from jaxrl_par.types import EnvSpec

F = np.float32
BYTES = Box(0, 255, (10, 10, 2), np.dtype(np.uint8))
FLAGS = Box(False, True, (10, 10, 4), np.dtype(np.bool_))
VECTOR = Box(-np.inf, np.inf, (4,))
MASKED = Dict((("action_mask", Box(False, True, (3,), np.dtype(bool))), ("x", VECTOR)))
MIXED = Dict((("image", BYTES), ("kind", Discrete(3, 7)), ("x", VECTOR)))


def spec(obs_space, action_space=None):
    return EnvSpec("test", obs_space, action_space or Discrete(3))


def mixed_obs(size=5):
    rng = np.random.default_rng(0)
    return {
        "image": rng.integers(0, 256, (size, 10, 10, 2), np.uint8),
        "kind": rng.integers(7, 10, size),
        "x": rng.normal(size=(size, 4)).astype(F),
    }


# Inputs


def test_bytes_are_scaled_once_and_only_bytes():
    # 255 -> 1, 128 -> 128 / 255 = .5019608; a float image stays as it is.
    obs = np.full((1, 10, 10, 2), 255, np.uint8)
    obs[0, 0, 0, 0] = 128
    x = np.asarray(inputs.prepare(BYTES, jnp.asarray(obs)))
    assert x.dtype == F
    np.testing.assert_allclose(x[0, 0, 0], [0.5019608, 1], rtol=1e-6)
    half = jnp.full((1, 10, 10, 2), 0.5)
    np.testing.assert_array_equal(inputs.prepare(BYTES, half), half)
    image = Box(0.0, 1.0, (10, 10, 2))
    np.testing.assert_array_equal(inputs.prepare(image, half), half)
    # What is prepared may be prepared again.
    np.testing.assert_array_equal(inputs.prepare(BYTES, jnp.asarray(x)), x)


def test_inputs_of_each_space():
    kinds = inputs.prepare(Discrete(3, start=7), jnp.array([7, 9]))
    np.testing.assert_array_equal(kinds, [[1, 0, 0], [0, 0, 1]])
    many = inputs.prepare(MultiDiscrete((2, 3)), jnp.array([[1, 2]]))
    np.testing.assert_array_equal(many, [[0, 1, 0, 0, 1]])
    flags = inputs.prepare(Box(False, True, (2,), np.dtype(bool)), np.eye(2) > 0)
    assert flags.dtype == jnp.float32
    np.testing.assert_array_equal(flags, np.eye(2))
    counts = Box(0, 9, (2,), np.dtype(np.int32))
    np.testing.assert_array_equal(inputs.prepare(counts, jnp.array([[3, 9]])), [[3, 9]])
    parts = inputs.prepare(MIXED, mixed_obs())
    shapes = {name: x.shape for name, x in parts.items()}
    assert shapes == {"image": (5, 10, 10, 2), "kind": (5, 3), "x": (5, 4)}
    assert inputs.flatten(MIXED, mixed_obs()).shape == (5, 207)
    # A normalised choice or byte is a float already.
    assert inputs.prepare(Discrete(3), jnp.ones((2, 3))).shape == (2, 3)


def test_the_mask_is_no_input():
    assert inputs.network_obs_space(spec(MASKED)) == VECTOR
    two = Dict((*MASKED.items, ("y", VECTOR)))
    assert inputs.network_obs_space(spec(two)) == Dict((("x", VECTOR), ("y", VECTOR)))
    assert inputs.network_obs_space(spec(MIXED)) == MIXED


# MLP and CNN


@pytest.mark.parametrize(
    ("factory", "space"),
    [
        (MLP((8,)), VECTOR),
        (MLP((8,), shared=True), Discrete(5)),
        (MLP((8,)), MultiDiscrete((2, 3))),
        (MLP((8,), "silu"), MIXED),
        (MLP((8,)), MASKED),
        (MLP(()), Box(-1.0, 1.0, ())),
        (CNN((4,), (8,)), FLAGS),
        (CNN((4, 4), (8,), shared=False), BYTES),
        (networks.auto, VECTOR),
        (networks.auto, FLAGS),
    ],
    ids=lambda x: getattr(x, "__name__", repr(x))[:40],
)
@pytest.mark.parametrize("action_space", [Discrete(3), Box(-1.0, 1.0, (2,))], ids=repr)
def test_networks_fit_spaces(factory, space, action_space):
    check_network(factory, spec(space, action_space))


def test_a_network_treats_each_observation_alone():
    init, apply = build(MLP((8,), shared=True), spec(MIXED))
    params = jax.jit(init)(jax.random.key(0))
    obs = mixed_obs()
    outputs, value = jax.jit(apply)(params, obs)
    assert (outputs.shape, value.shape) == ((5, 3), (5,))
    second = jax.tree.map(lambda x: x[1:2], obs)
    alone = jax.jit(apply)(params, second)
    np.testing.assert_allclose(outputs[1:2], alone[0], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(value[1:2], alone[1], rtol=1e-4, atol=1e-6)


def test_the_first_policy_is_near_uniform_and_seeds_differ():
    init, apply = build(MLP((32,)), spec(VECTOR))
    init = jax.jit(init)
    params, other = init(jax.random.key(0)), init(jax.random.key(1))
    outputs, value = jax.jit(apply)(params, np.ones((1, 4), F))
    assert np.abs(outputs).max() < 0.05 and np.abs(value).max() > 0.05
    for x, y in zip(
        *map(jax.tree.leaves, (params, init(jax.random.key(0)))), strict=True
    ):
        np.testing.assert_array_equal(x, y)
    for x, y in zip(*map(jax.tree.leaves, (params, other)), strict=True):
        assert x.ndim == 1 or not (np.asarray(x) == y).any()


def test_log_deviations_are_free_and_begin_where_told():
    factory = MLP((8,), initial_log_std=-1.5)
    init, apply = build(factory, spec(VECTOR, Box(-1.0, 1.0, (2,))))

    @jax.jit
    def run(key, obs):
        params = init(key)
        total = lambda p: apply(p, obs)[0][:, 2:].sum()  # noqa: E731
        return apply(params, obs)[0], jax.grad(total)(params)

    obs = np.array([[1, 2, 3, 4], [-5, 0, 0, 0]], F)
    outputs, gradient = run(jax.random.key(0), obs)
    np.testing.assert_allclose(outputs[:, 2:], -1.5)
    np.testing.assert_array_equal(gradient["params"]["log_std_shift"], [2, 2])


@pytest.mark.parametrize("shape", [(64, 64), (4, 64), (64, 3), (1, 1), (200, 128)])
def test_orthogonal_matrices(shape):
    matrix = np.random.default_rng(0).normal(size=shape).astype(F)
    x = np.asarray(jax.jit(orthogonal)(matrix), np.float64)
    gram = x @ x.T if shape[0] < shape[1] else x.T @ x
    np.testing.assert_allclose(gram, np.eye(min(shape)), atol=2e-5)
    # The nearest one: U V^T of the singular value decomposition.
    u, _, v = np.linalg.svd(np.asarray(matrix, np.float64), full_matrices=False)
    np.testing.assert_allclose(x, u @ v, atol=1e-3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Body(64), "hidden 64 must be a list or a tuple"),
        (lambda: Body((64,), channels=16), "channels 16 must be a list or a tuple"),
        (lambda: MLP((64, 0)), r"hidden \(64, 0\) must be sizes in \[1, 1048576\]"),
        (lambda: MLP(activation="tahn"), "activation 'tahn' must be one of tanh, relu"),
        (lambda: CNN()(spec(VECTOR)), r"needs an image observation \[H, W, C\]"),
        (
            lambda: CNN((4,) * 5)(spec(BYTES)),
            "5 convolutions leave nothing of a 10 x 10",
        ),
    ],
)
def test_impossible_settings_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_the_default_is_a_cnn_for_images():
    for space in (FLAGS, BYTES):
        assert networks.choose(spec(space)) == CNN()
    assert networks.choose(spec(Dict((*MASKED.items[:1], ("x", FLAGS))))) == CNN()
    for space in (VECTOR, MIXED, Discrete(4), Box(0.0, 1.0, (2, 9, 1))):
        assert networks.choose(spec(space)) == MLP()
    assert PPO().network is networks.auto


def test_a_convolution_is_the_same_as_patches():
    """And so are its gradients: what a CPU uses is what an accelerator does."""
    x_key, kernel_key, weight_key = jax.random.split(jax.random.key(0), 3)
    x = jax.random.normal(x_key, (5, 6, 7, 2))
    kernel = jax.random.normal(kernel_key, (3, 3, 2, 4))
    weight = jax.random.normal(weight_key, (5, 4, 5, 4))

    @functools.partial(jax.jit, static_argnums=0)
    def both(convolve):
        y = convolve(x, kernel)
        return y, *jax.grad(lambda *a: (convolve(*a) * weight).sum(), (0, 1))(x, kernel)

    for one, other in zip(
        both(convolution.convolve), both(convolution.of_patches), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
