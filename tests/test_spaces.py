"""Spaces: samples lie within, contains says so, equality and hashing, scaling."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_par.spaces import (
    Box,
    Dict,
    Discrete,
    MultiDiscrete,
    flat_size,
    from_unit,
    to_unit,
    zeros,
)

MIXED = Box(np.array([-np.inf, 0.0, -np.inf, -1.0]), np.array([np.inf, np.inf, 0.0, 2]))
SPACES = [
    Discrete(3),
    Discrete(2, start=10),
    Discrete(3, start=-1),
    MultiDiscrete((2, 3, 4)),
    Box(-1.0, 1.0, (2, 3)),
    Box(0, 255, (4,), np.dtype(np.uint8)),
    Box(-(2**31), 2**31 - 1, (4,), np.dtype(np.int32)),
    Box(False, True, (5,), np.dtype(np.bool_)),
    Box(-3.4e38, 3.4e38, (2,)),  # a finite box whose span is not
    MIXED,
    Dict((("b", Discrete(3)), ("a", Box(0.0, 1.0, (2,))))),
]


def draw(space, number=300):
    return jax.jit(jax.vmap(space.sample))(jax.random.split(jax.random.key(0), number))


@pytest.mark.parametrize("space", SPACES, ids=repr)
def test_samples_lie_within(space):
    draws = draw(space)
    assert space.contains(jax.tree.map(np.asarray, draws))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(draws))
    placeholder = jax.tree.map(lambda leaf: leaf[0], draws)
    same = jax.tree.map(
        lambda a, b: (a.shape, a.dtype) == (b.shape, b.dtype), zeros(space), placeholder
    )
    assert all(jax.tree.leaves(same))
    assert flat_size(space) == sum(leaf.size for leaf in jax.tree.leaves(placeholder))


def test_samples_cover_the_space():
    assert set(np.unique(draw(Discrete(2, 10)))) == {10, 11}
    draws = draw(MultiDiscrete((2, 3)))
    assert {tuple(row) for row in np.asarray(draws)} == {
        (i, j) for i in range(2) for j in range(3)
    }
    flags = draw(Box(False, True, (2,), np.dtype(np.bool_)))
    assert 0.4 < flags.mean() < 0.6
    assert draw(Box(True, True, (2,), np.dtype(np.bool_))).all()
    draws = draw(Box(-2.0, 6.0, (2,)))
    assert abs(draws.mean() - 2) < 0.4  # deviation 0.09
    assert draws.min() < -1.5
    assert draws.max() > 5.5


@pytest.mark.parametrize(
    ("space", "value"),
    [
        (Discrete(3), 3),
        (Discrete(3), -1),
        (Discrete(2, start=10), 0),
        (Discrete(3), 1.0),
        (MultiDiscrete((2, 3)), [1, 3]),
        (MultiDiscrete((2, 3)), [1]),
        (MultiDiscrete((2, 3)), [0.0, 1.0]),
        (Box(0.0, 1.0, (2,)), [0.0, 1.1]),
        (Box(0.0, 1.0, (2,)), [0.0, np.nan]),
        (Box(0.0, 1.0, (2,)), [0.0]),
        (Box(0.0, 1.0, (2,)), 0.5),
        (Dict((("a", Discrete(2)),)), {"a": 0, "b": 0}),
        (Dict((("a", Discrete(2)),)), {"a": 2}),
        (Dict((("a", Discrete(2)),)), 0),
    ],
)
def test_what_is_outside(space, value):
    assert not space.contains(value)


def test_equal_spaces_are_equal_and_hash_alike():
    for space in SPACES:
        copy = dataclasses.replace(space)
        assert copy == space
        assert hash(copy) == hash(space)
    assert len(set(SPACES)) == len(SPACES)
    assert Box(0.0, 1.0, (2,)) != Box(0.0, 1.0, (2,), np.dtype(np.int32))
    one, other = {"a": Discrete(2), "b": Discrete(3)}, {"b": Discrete(3)}
    assert Dict(one) == Dict({**other, "a": Discrete(2)})  # type: ignore[arg-type]
    assert Dict(tuple(one.items())) == Dict(tuple(reversed(one.items())))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Discrete(0), "n 0 must be at least 1"),
        (lambda: MultiDiscrete(()), "nvec"),
        (lambda: MultiDiscrete((2, 0)), "nvec"),
        (lambda: Box(1.0, 0.0, (2,)), r"low \[1. 1.\] must not exceed high \[0. 0.\]"),
        (lambda: Box(np.nan, 1.0, (2,)), "low nan must not be NaN"),
        (lambda: Box(0, 1.5, (2,), np.dtype(np.int32)), "high 1.5 must be a value"),
        (lambda: Box(0, np.inf, (2,), np.dtype(np.int32)), "high inf must be a value"),
        (lambda: Box(0, 300, (2,), np.dtype(np.uint8)), "high 300 must be a value"),
    ],
)
def test_what_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_unit_scaling():
    box = Box(np.array([-1.0, 0.0]), np.array([1.0, 3.0]))
    # 0 is the middle: (-1 + 1) / 2 = 0 and (0 + 3) / 2 = 1.5; beyond 1 the bound.
    np.testing.assert_allclose(from_unit(box, jnp.zeros(2)), [0, 1.5])
    np.testing.assert_allclose(from_unit(box, jnp.array([-5.0, 5.0])), [-1, 3])
    units = jax.random.uniform(jax.random.key(0), (7, 2), minval=-1, maxval=1)
    values = from_unit(box, units)
    assert box.contains(values)
    np.testing.assert_allclose(to_unit(box, values), units, atol=1e-6)


def test_unit_scaling_never_leaves_an_awkward_box():
    """Rounding may not carry the bound over."""
    box = Box(np.array([-0.1, 1e-3]), np.array([0.3, 0.7]))
    assert box.contains(from_unit(box, jnp.array([[1.0, 1.0], [-1.0, -1.0]])))
