"""Reductions over devices; gradients with plain SGD, which hides no factor."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from jaxrl_par import collectives

SAMPLES = 48
RATE = 0.1
AXES = ("data",)
ALL, SPLIT = P(), P("data")


def loss(params, batch):
    """A mean over samples, of a network with a bend, and two means as aux."""
    hidden = jnp.tanh(batch["x"] @ params["w"] + params["b"][None])
    error = hidden.sum(-1) - batch["y"]
    loss = jnp.square(error).mean()
    return loss, {"loss": loss, "error": error.mean()}


def problem():
    rng = np.random.default_rng(0)
    draw = lambda *shape: rng.normal(size=shape).astype(np.float32)  # noqa: E731
    params = {"w": draw(5, 3), "b": draw(3)}
    return params, {"x": draw(SAMPLES, 5), "y": draw(SAMPLES)}


def over(devices, function, *specs, out=ALL, check_vma=False):
    """`function(*args, axes)` over the first devices."""
    if devices == 1:
        return jax.jit(lambda *args: function(*args, ()))
    mesh = jax.make_mesh(
        (devices,), AXES, axis_types=(AxisType.Auto,), devices=jax.devices()[:devices]
    )
    return jax.jit(
        jax.shard_map(
            lambda *args: function(*args, AXES),
            mesh=mesh,
            in_specs=specs,
            out_specs=out,
            check_vma=check_vma,
        )
    )


def sgd(devices, reduce=collectives.gradient, check_vma=False, **kwargs):
    """Parameters and metrics after a step of plain SGD on the whole batch."""

    def step(params, batch, axes):
        gradient, aux = reduce(loss, params, batch, axes, **kwargs)
        return jax.tree.map(lambda p, g: p - RATE * g, params, gradient), aux

    params, batch = problem()
    run = over(devices, step, ALL, SPLIT, check_vma=check_vma)
    return jax.tree.map(np.asarray, run(params, batch))


def assert_close(one, other):
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-6), one, other
    )


@pytest.fixture(scope="module")
def expected():
    """What jax.grad of the whole batch gives on one device."""
    params, batch = problem()
    gradient, aux = jax.jit(jax.grad(loss, has_aux=True))(params, batch)
    return jax.tree.map(lambda p, g: p - RATE * g, params, gradient), aux


@pytest.mark.parametrize("devices", [1, 2, 8])
def test_gradients_agree_on_any_number_of_devices(expected, devices):
    assert_close(sgd(devices), expected)


@pytest.mark.parametrize("microbatch_size", [None, 4])
def test_gradients_agree_in_both_modes_of_shard_map(expected, microbatch_size):
    found = sgd(2, check_vma=True, microbatch_size=microbatch_size)
    assert_close(found, expected)


def test_a_sum_in_place_of_the_mean_is_seen(expected):
    def summed(loss, params, batch, axes):
        gradient, aux = jax.grad(loss, has_aux=True)(params, batch)
        return jax.lax.psum(gradient, axes), aux

    with pytest.raises(AssertionError):
        assert_close(sgd(2, summed)[0], expected[0])


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("microbatch_size", [1, 2, 5, 7, 24, 48, 1000])
def test_microbatches_of_any_size_equal_the_whole(expected, devices, microbatch_size):
    assert_close(sgd(devices, microbatch_size=microbatch_size), expected)


def test_microbatches_hold_at_most_so_many_samples():
    sizes = []

    def record(params, batch):
        sizes.append(len(batch["y"]))
        return loss(params, batch)

    params, batch = problem()
    for most, size in ((48, 48), (47, 24), (24, 24), (23, 16), (5, 4), (1, 1)):
        sizes.clear()
        collectives.gradient(record, params, batch, (), most)
        assert set(sizes) == {size}


def test_without_axes_reductions_do_nothing():
    tree = {"a": np.arange(3.0)}
    assert collectives.mean(tree, ()) is tree
    assert collectives.total(tree, ()) is tree
    assert (collectives.index(()), collectives.size(())) == (0, 1)


@pytest.mark.parametrize("devices", [2, 8])
def test_reductions_over_devices(devices):
    def reduce(x, axes):
        reduced = collectives.mean(x, axes), collectives.total(x, axes)
        place = jnp.asarray(collectives.index(axes))[None]
        return *reduced, place, collectives.size(axes) * jnp.ones(1)

    x = np.arange(16.0, dtype=np.float32)
    run = over(devices, reduce, SPLIT, out=(ALL, ALL, SPLIT, ALL))
    mean, total, place, size = run(x)
    shares = x.reshape(devices, -1)
    np.testing.assert_allclose(mean, shares.mean(0))
    np.testing.assert_allclose(total, shares.sum(0))
    np.testing.assert_array_equal(place, np.arange(devices))
    assert size == devices


@pytest.mark.parametrize("devices", [1, 2, 8])
@pytest.mark.parametrize("axis", [0, 1, (0, 1)])
def test_moments_are_of_all_samples(devices, axis):
    # A mean of 1000 and a deviation of .1: squares minus a square would lose it.
    x = 1000 + 0.1 * np.random.default_rng(0).normal(size=(16, 6))
    x = x.astype(np.float32)
    split = SPLIT if axis != 1 else P(None, "data")
    if axis == 1 and devices == 8:
        x = np.tile(x, (1, 4))

    def both(x, axes):
        return collectives.moments(x, axis, axes)

    mean, var = over(devices, both, split)(x)
    exact = x.astype(np.float64)
    np.testing.assert_allclose(mean, exact.mean(axis), rtol=1e-6)
    np.testing.assert_allclose(var, exact.var(axis), rtol=5e-3)
