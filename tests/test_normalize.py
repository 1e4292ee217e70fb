"""Running statistics against NumPy over all samples at once."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from jaxrl_par import normalize
from jaxrl_par.normalize import MAX_COUNT, Moments, Unchanged
from jaxrl_par.returns import discounted_returns
from jaxrl_par.spaces import Box, Dict, Discrete, MultiDiscrete

F = np.float32


def test_batches_are_merged_by_their_counts():
    # [0, 2], then [4, 6, 8, 10]: mean 30 / 6 = 5;
    # squares about 5: 25 + 9 + 1 + 1 + 9 + 25 = 70; 70 / 6 = 11.6666667.
    moments = Moments.zero().merge(jnp.array([0.0, 2.0]))
    moments = moments.merge(jnp.array([4.0, 6.0, 8.0, 10.0]))
    assert moments.count == 6
    np.testing.assert_allclose(moments.mean, 5, rtol=1e-6)
    np.testing.assert_allclose(moments.var, 11.6666667, rtol=1e-6)


def test_a_thousand_batches_keep_the_deviation():
    rng = np.random.default_rng(0)
    batches = rng.normal(3, 2, (1000, 64)).astype(F)

    def add(moments, batch):
        return moments.merge(batch), None

    moments, _ = jax.jit(lambda x: jax.lax.scan(add, Moments.zero(), x))(batches)
    assert moments.count == 64_000
    np.testing.assert_allclose(moments.mean, batches.mean(), rtol=1e-4)
    np.testing.assert_allclose(np.sqrt(moments.var), 2, atol=0.05)
    np.testing.assert_allclose(moments.var, batches.var(), rtol=1e-4)


@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_any_split_into_batches_gives_the_same(offset):
    rng = np.random.default_rng(1)
    data = (offset + rng.normal(size=(60, 3))).astype(F)
    for parts in ([60], [1, 59], [7, 13, 40], [1] * 5 + [55]):
        moments = Moments.zero((3,))
        for batch in np.split(data, np.cumsum(parts)[:-1]):
            moments = moments.merge(batch)
        assert moments.count == 60
        np.testing.assert_allclose(moments.mean, data.mean(0), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(moments.var, data.var(0), rtol=2e-3)


@pytest.mark.parametrize("devices", [2, 8])
def test_devices_count_as_one_batch(devices):
    data = np.random.default_rng(2).normal(5, 3, (64, 3)).astype(F)
    mesh = jax.make_mesh(
        (devices,), ("data",), axis_types=(jax.sharding.AxisType.Auto,)
    )
    start = Moments.zero((3,)).merge(np.ones((8, 3), F))
    merge = jax.shard_map(
        lambda m, x: m.merge(x, ("data",)),
        mesh=mesh,
        in_specs=(P(), P("data")),
        out_specs=P(),
        check_vma=False,
    )
    found = jax.jit(merge)(start, data)
    expected = start.merge(data)
    assert found.count == expected.count == 72
    np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-6)
    np.testing.assert_allclose(found.var, expected.var, rtol=1e-5)


def test_statistics_are_float32_and_exact_counts_in_half_precision():
    # bfloat16 would count to 256 and stop; so would its sums.
    moments, batch = Moments.zero((2,)), jnp.ones((10, 2), jnp.bfloat16)
    moments = jax.lax.fori_loop(0, 1000, lambda _, m: m.merge(batch), moments)
    assert moments.count == 10_000
    dtypes = [str(x.dtype) for x in jax.tree.leaves(moments)]
    assert dtypes == ["int32", "float32", "float32"]
    np.testing.assert_array_equal(moments.mean, [1, 1])
    np.testing.assert_array_equal(moments.var, [0, 0])
    # The mean of 1 and 1 + 2^-7, neighbours in bfloat16, is none of its numbers.
    pair = Moments.zero().merge(jnp.array([1.0, 1 + 2**-7], jnp.bfloat16))
    assert pair.mean == 1 + 2**-8 and pair.var == 2**-16
    assert moments.normalize(batch).dtype == jnp.float32
    assert moments.scale(batch).dtype == jnp.float32


def test_the_count_stops_before_it_overflows():
    moments = Moments(jnp.int32(MAX_COUNT - 3), jnp.float32(1), jnp.float32(4))
    moments = moments.merge(jnp.full(8, 1.0))
    assert moments.count == MAX_COUNT
    moments = moments.merge(jnp.full(8, 1.0))
    assert moments.count == MAX_COUNT
    assert np.isfinite(moments.var) and moments.var > 3.9


def test_normalised_values():
    # mean 5, var 4: (9 - 5) / 2 = 2; scale keeps the mean: 9 / 2 = 4.5.
    moments = Moments(jnp.int32(9), jnp.float32(5), jnp.float32(4))
    np.testing.assert_allclose(moments.normalize(jnp.float32(9)), 2, rtol=1e-6)
    np.testing.assert_allclose(moments.scale(jnp.float32(9)), 4.5, rtol=1e-6)
    np.testing.assert_array_equal(moments.normalize(jnp.array([1e6, -1e6])), [10, -10])
    np.testing.assert_array_equal(moments.scale(jnp.array([1e6, -1e6])), [10, -10])


def test_a_constant_is_zero_and_its_gradient_finite():
    # The plain form, (x - mean) / sqrt(var), is 0 / 0 at variance 0, and the
    # derivative of sqrt is infinite there.
    moments = Moments.zero((2,)).merge(jnp.full((16, 2), 7.0))
    np.testing.assert_array_equal(moments.var, 0)
    np.testing.assert_array_equal(moments.normalize(jnp.full((3, 2), 7.0)), 0)

    def total(x):
        moments = Moments.zero((2,)).merge(x)
        return (moments.normalize(x) * jnp.arange(6.0).reshape(3, 2)).sum()

    assert np.isfinite(jax.jit(jax.grad(total))(np.full((3, 2), 7.0, F))).all()


def test_nothing_seen_changes_nothing_but_large_values():
    x = jnp.array([[1.0, -2.0]])
    np.testing.assert_allclose(Moments.zero((2,)).normalize(x), x, rtol=1e-6)


def test_each_box_of_an_observation_has_its_own():
    space = Dict(
        (
            ("image", Box(0, 255, (2, 2, 1), np.dtype(np.uint8))),
            ("level", Discrete(5)),
            ("many", MultiDiscrete((3, 4))),
            ("speed", Box(-np.inf, np.inf, (3,))),
        )
    )
    moments = normalize.zero_moments(space)
    assert isinstance(moments["level"], Unchanged)
    rng = np.random.default_rng(0)
    obs = {
        "image": rng.integers(0, 256, (6, 4, 2, 2, 1), np.uint8),
        "level": rng.integers(0, 5, (6, 4)),
        "many": rng.integers(0, 3, (6, 4, 2)),
        "speed": rng.normal(3, 2, (6, 4, 3)).astype(F),
    }
    moments = normalize.merge(moments, obs)
    assert moments["speed"].count == moments["image"].count == 24
    scaled = normalize.normalize(moments, obs)
    for name in ("image", "speed"):  # Of bytes, numbers and not bytes
        assert scaled[name].dtype == jnp.float32
        flat = np.asarray(scaled[name]).reshape(24, -1)
        np.testing.assert_allclose(flat.mean(0), 0, atol=1e-5)
        np.testing.assert_allclose(flat.std(0), 1, rtol=1e-4)
    for name in ("level", "many"):
        np.testing.assert_array_equal(scaled[name], obs[name])


def test_reward_statistics_restart_at_either_end():
    # Returns 1, 1.9, 2.71, then 1, 1.9 after the cut; their variance .4160.
    ended = jnp.array([False, False, True, False, False])
    _, returns = discounted_returns(jnp.zeros(()), jnp.ones(5), ended, 0.9)
    moments = Moments.zero().merge(returns)
    np.testing.assert_allclose(moments.mean, 8.51 / 5, rtol=1e-6)
    np.testing.assert_allclose(moments.var, 0.4160, atol=5e-5)
