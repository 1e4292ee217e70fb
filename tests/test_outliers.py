"""The filter's parts: quantiles against NumPy, bounds by hand, what is replaced.

Rollouts are [T, B] = [100, 2]: 200 samples, so that the quantiles are the third
values from either end and two faults on a side move no bound.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys
from jax.sharding import PartitionSpec as P

from jaxrl_par import outliers
from jaxrl_par.outliers import Filter
from jaxrl_par.train.layout import Layout
from jaxrl_par.types import Rollout

F = np.float32
T, B = 100, 2
DROP, CLIP = Filter("drop", 10.0, 1.0), Filter("clip", 10.0, 1.0)


def by_sorting(x):
    """The 1 %, 50 % and 99 % quantiles of the finite numbers of a vector."""
    x = np.sort(x[np.isfinite(x)])
    aside = len(x) // 100
    return x[[aside, len(x) // 2, len(x) - 1 - aside]] if len(x) else np.full(3, np.nan)


def columns():
    """[F, 400] of every kind of number."""
    rng = np.random.default_rng(0)
    normal = rng.normal(size=400)
    with_infinities = np.where(rng.random(400) < 0.1, np.inf, normal)
    with_infinities[:40] = -np.inf
    with_infinities[40:70] = np.nan
    huge = np.where(rng.random(400) < 0.3, 3e38, 1e-40) * rng.choice([-1, 1], 400)
    return np.stack(
        [
            normal,
            normal + 1e6,
            rng.integers(-3, 4, 400),  # duplicates
            rng.choice([0.0, -0.0], 400),
            with_infinities,
            huge,
            np.full(400, -7.5),
            np.full(400, np.nan),
            np.where(np.arange(400) == 99, 5.0, np.inf),  # one number
        ]
    ).astype(F)


def over(devices, function, *split):
    """`function(*arrays, axes)`, the arrays split along an axis each."""
    if devices == 1:
        return jax.jit(lambda *args: function(*args, ()))
    layout = Layout(tuple(jax.devices()[:devices]))
    specs = tuple(P(*[None] * axis, layout.axes) for axis in split)
    return jax.jit(
        jax.shard_map(
            lambda *args: function(*args, layout.axes),
            mesh=layout.mesh,
            in_specs=specs,
            out_specs=P(),
        )
    )


@pytest.mark.parametrize("devices", [1, 2, 4, 8])
def test_quantiles_are_those_of_sorted_numbers(devices):
    """To the bit, of the numbers of all devices."""
    x = columns()
    found = over(devices, outliers.quantiles, 1)(x)
    np.testing.assert_array_equal(found, np.stack([by_sorting(row) for row in x], 1))


@pytest.mark.parametrize("n", [1, 2, 3, 99, 100, 101, 199, 200])
def test_quantiles_of_few(n):
    x = np.random.default_rng(n).normal(size=(1, n)).astype(F)
    found = outliers.quantiles(jnp.asarray(x), ())
    np.testing.assert_array_equal(found[:, 0], by_sorting(x[0]))


def made(reward=None, obs=None, **fields):
    """A rollout without ends, of normal observations and rewards."""
    rng = np.random.default_rng(1)
    draw = lambda *shape: rng.normal(size=shape).astype(F)  # noqa: E731
    no = np.zeros((T, B), bool)
    usual = {
        "obs": draw(T, B, 3) if obs is None else obs,
        "action": np.zeros((T, B), np.int32),
        "reward": draw(T, B) if reward is None else reward,
        "terminated": no,
        "truncated": no,
        "first": no,
        "extras": {"value": draw(T, B)},
        "last_obs": draw(B, 3),
        "cut_obs": draw(0, B, 3),
        "initial_carry": (),
        "progress": F(0),
        "next_progress": F(0),
    }
    return jax.tree.map(jnp.asarray, Rollout(**(usual | fields)))


def first_number(obs):
    """A critic: the first number of the observation."""
    return obs[:, 0]


def filtered(rule, rollout):
    return rule.rollout(rollout, (), first_number)


def with_at(x, changes):
    """A copy of x with some elements replaced."""
    x = np.array(x)
    for place, value in changes.items():
        x[place] = value
    return x


def dropped(kept):
    return [tuple(map(int, place)) for place in np.argwhere(~np.asarray(kept))]


def test_bounds_by_hand():
    """0 ... 199, quantiles 2, 100, 197, spread 195; bound .5: from 2.5 to 197.5."""
    reward = np.arange(200, dtype=F).reshape(T, B)
    rollout = made(reward, np.zeros((T, B, 3), F))
    found, kept, metrics = filtered(Filter("drop", 0.5, 1.0), rollout)
    outside = np.array([0, 1, 2, 198, 199])
    np.testing.assert_array_equal(np.flatnonzero(~kept), outside)
    expected = np.where(np.isin(reward, outside), 100, reward)
    np.testing.assert_array_equal(found.reward, expected)
    assert metrics["outlier_rewards"] == 5
    found, kept, metrics = filtered(Filter("clip", 0.5, 1.0), rollout)
    np.testing.assert_array_equal(found.reward, np.clip(reward, 2.5, 197.5))
    assert kept is None
    assert metrics["outlier_rewards"] == 5


def test_the_least_spread_by_hand():
    """Always 1, two faults on a side; bound 10, spread .5: from -4 to 6."""
    faults = {(3, 0): 6.0, (4, 0): 6.5, (5, 1): -4.0, (6, 1): -4.5}
    reward = with_at(np.ones((T, B), F), faults)
    found, kept, _ = filtered(Filter("drop", 10.0, 0.5), made(reward))
    assert dropped(kept) == [(4, 0), (6, 1)]
    np.testing.assert_array_equal(found.reward[jnp.array([4, 6]), jnp.array([0, 1])], 1)


@pytest.mark.parametrize("rule", [DROP, CLIP], ids=["drop", "clip"])
@pytest.mark.parametrize(
    "reward",
    [
        np.ones((T, B), F),
        np.zeros((T, B), F),
        with_at(np.zeros((T, B), F), {(17, 1): 1.0}),
        with_at(np.zeros((T, B), F), {(17, 1): 10.0}),
        np.random.default_rng(0).exponential(size=(T, B)).astype(F),
    ],
    ids=["constant", "zero", "sparse", "ten", "exponential"],
)
def test_what_is_usual_or_rare_within_reach_is_not_touched(rule, reward):
    rollout = made(reward)
    found, kept, metrics = filtered(rule, rollout)
    toys.assert_equal(found, rollout)
    assert kept is None or kept.all()
    assert all(count == 0 for count in metrics.values())


@pytest.mark.parametrize("rule", [DROP, CLIP], ids=["drop", "clip"])
def test_counts_are_exact_whatever_the_size(rule):
    """Transitions are counted, not numbers: two of one observation are one."""
    faults = {(3, 0): 1e3, (40, 1): 1e30, (50, 0): -3e38}
    rollout = made()
    reward = with_at(rollout.reward, faults)
    obs = with_at(rollout.obs, {(9, 1, 0): 1e6, (9, 1, 2): -1e30, (60, 0, 1): 400.0})
    found, kept, metrics = filtered(rule, made(reward, obs))
    assert metrics == {"outlier_rewards": 3, "outlier_obs": 2}
    assert (np.abs(found.reward) < 100).all() and (np.abs(found.obs) < 100).all()
    if rule is DROP:
        places = [*faults, (8, 1), (9, 1), (59, 0), (60, 0)]
        assert dropped(kept) == sorted(places)
    same = np.ones((T, B, 3), bool)
    same[9, 1, [0, 2]] = same[60, 0, 1] = False
    np.testing.assert_array_equal(found.obs[same], obs[same])


def test_each_number_of_an_observation_has_its_own_bounds():
    obs = made().obs * jnp.array([1e-2, 1.0, 1e4])[None, None]
    obs = with_at(obs, {(5, 0, 0): 1e3, (5, 1, 2): 1e3})
    found, _, metrics = filtered(CLIP, made(obs=obs))
    assert metrics["outlier_obs"] == 1
    assert found.obs[5, 0, 0] < 11 and found.obs[5, 1, 2] == 1e3


def test_an_observation_drops_the_transitions_to_it_and_from_it():
    """But not what terminated before it; and where a limit cut, its true successor."""
    rollout = made()
    obs = with_at(rollout.obs, {(30, 0, 0): 1e6, (60, 1, 0): 1e6})
    fields = {
        "obs": obs,
        "terminated": with_at(rollout.terminated, {(29, 0): True}),
        "truncated": with_at(rollout.truncated, {(59, 1): True, (80, 0): True}),
        "last_obs": with_at(rollout.last_obs, {(1, 0): 1e6}),
        "cut_obs": np.stack([[[1e6, 0, 0], [0, 0, 0]]]).astype(F),
    }
    found, kept, metrics = filtered(DROP, made(**fields))
    assert dropped(kept) == [(30, 0), (60, 1), (80, 0), (99, 1)]
    assert metrics["outlier_obs"] == 2
    median = by_sorting(obs[..., 0].reshape(-1))[1]
    for x in (found.obs[30, 0], found.last_obs[1], found.cut_obs[0, 0]):
        assert x[0] == median


@pytest.mark.parametrize("rule", [DROP, CLIP], ids=["drop", "clip"])
def test_what_is_not_finite_stays_and_does_not_count(rule):
    """Nor is it dropped with an outlier beside it."""
    rollout = made()
    bad = {(3, 0): np.nan, (4, 0): np.inf, (5, 0): -np.inf}
    reward = with_at(rollout.reward, bad | {(7, 1): 1e5})
    obs = with_at(rollout.obs, {(3, 0, 1): 1e5, (20, 0, 0): np.nan})
    found, kept, metrics = filtered(rule, made(reward, obs))
    assert metrics == {"outlier_rewards": 1, "outlier_obs": 1}
    for place, value in bad.items():
        np.testing.assert_array_equal(found.reward[place], F(value))
    assert np.isnan(found.obs[20, 0, 0])
    if rule is DROP:
        assert dropped(kept) == [(2, 0), (7, 1)]


@pytest.mark.parametrize("rule", [DROP, CLIP], ids=["drop", "clip"])
def test_masks_and_whole_numbers_are_not_touched(rule):
    normal = made().obs
    obs = {
        "action_mask": with_at(np.zeros((T, B, 2), F), {(3, 0, 0): 1e6}),
        "count": with_at(np.zeros((T, B), np.int32), {(4, 0): 10**6}),
        "flag": with_at(np.zeros((T, B), bool), {(4, 0): True}),
        "near": with_at(normal, {(5, 0, 0): 1e6}),
        "wide": with_at(normal, {(6, 0, 0): 1e6}).reshape(T, B, 3, 1),
    }
    others = {
        "last_obs": jax.tree.map(lambda x: x[0], obs),
        "cut_obs": jax.tree.map(lambda x: x[:0], obs),
    }
    found, _, metrics = rule.rollout(made(obs=obs, **others), ())
    assert metrics["outlier_obs"] == 2
    for name in ("action_mask", "count", "flag"):
        np.testing.assert_array_equal(found.obs[name], obs[name])
        assert found.obs[name].dtype == obs[name].dtype
    assert found.obs["near"].max() < 100 and found.obs["wide"].max() < 100


def test_a_clipped_observation_is_valued_anew_and_no_other():
    obs = with_at(made().obs, {(5, 0, 0): 1e6})
    rollout = made(obs=obs)
    found, _, _ = filtered(CLIP, rollout)
    assert found.extras["value"][5, 0] == found.obs[5, 0, 0] < 100
    rest = np.ones((T, B), bool)
    rest[5, 0] = False
    old, new = (x.extras["value"][rest] for x in (rollout, found))
    np.testing.assert_array_equal(old, new)


def test_td_errors_are_clipped_or_dropped():
    """Of -100 ... 99 (spread 195) and a bound of 2: from -390 to 390."""
    usual = np.arange(-100, 100, dtype=F).reshape(T, B)
    delta = with_at(usual, {(0, 0): -1e4, (99, 1): 400.0})
    clipped, kept, metrics = Filter("clip", 2.0, 1.0).td_errors(delta, None, ())
    expected = with_at(usual, {(0, 0): -390, (99, 1): 390})
    np.testing.assert_array_equal(clipped, expected)
    assert kept is None and metrics == {"outlier_td_errors": 2}
    # A dropped transition has no part in the bounds, though its error is NaN.
    delta = with_at(delta, {(50, 0): np.nan, (51, 0): 1e9})
    before = with_at(np.ones((T, B), bool), {(50, 0): False, (51, 0): False})
    rule = Filter("drop", 2.0, 1.0)
    found, kept, metrics = rule.td_errors(delta, jnp.asarray(before), ())
    assert dropped(kept) == [(0, 0), (50, 0), (51, 0), (99, 1)]
    np.testing.assert_array_equal(found, np.where(kept, usual, 0))
    assert metrics == {"outlier_td_errors": 2}
    # But a NaN that nobody dropped stays.
    found, kept, _ = rule.td_errors(delta, jnp.ones((T, B), bool), ())
    assert np.isnan(found[50, 0]) and kept[50, 0]


@pytest.mark.parametrize("devices", [1, 2, 8])
def test_weighted_moments_are_those_of_what_is_kept(devices):
    """Two minibatches; the second has one sample, the first none on some device."""
    rng = np.random.default_rng(0)
    x = (1000 + rng.normal(size=(2, 16))).astype(F)
    kept = rng.random((2, 16)) < 0.6
    kept[0, :4], kept[1] = False, np.arange(16) == 7

    def both(x, kept, axes):
        weight = outliers.weights(kept, axes)
        mean = jnp.stack([outliers.mean(*row) for row in zip(x, weight, strict=True)])
        mean = jax.lax.pmean(mean, axes) if axes else mean
        return mean, *outliers.moments(x, weight, axes)

    mean, centre, var = over(devices, both, 1, 1)(x, kept)
    for i in range(2):
        exact = x[i][kept[i]].astype(np.float64)
        np.testing.assert_allclose([mean[i], centre[i]], exact.mean(), rtol=1e-6)
        np.testing.assert_allclose(var[i], exact.var(), rtol=1e-3, atol=1e-6)


def test_where_nothing_is_kept_weights_are_zero():
    weight = outliers.weights(jnp.zeros((1, 8), bool), ())
    np.testing.assert_array_equal(weight, np.zeros((1, 8)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mode": "none"}, "outliers 'none' must be 'drop', 'clip' or None"),
        ({"bound": 0.0}, "outlier_bound 0.0 must be a finite number above 0"),
        ({"bound": float("inf")}, "outlier_bound inf must be"),
        ({"spread": -1.0}, "outlier_spread -1.0 must be a finite number of at least 0"),
    ],
)
def test_settings_out_of_range_are_refused(changes, message):
    dataclasses.replace(DROP, spread=0.0).validate()
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(DROP, **changes).validate()
