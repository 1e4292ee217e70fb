"""Prioritised replay: exact shares, safe in float32, the same over any devices."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import stories
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from jaxrl_par.replay import prioritized, ring, uniform

ENVS, GROUPS, LENGTH = 8, 8, 3


def tree_of(leaves):
    """A tree [G, n] with these leaves."""
    tree = prioritized.empty(len(leaves), leaves.shape[1], len(leaves))
    width = tree.levels[0].shape[1]
    index = np.arange(len(leaves))[:, None] * width + np.arange(leaves.shape[1])
    return write(tree, jnp.asarray(index.reshape(-1)), jnp.asarray(leaves.reshape(-1)))


write = jax.jit(prioritized.write)


@functools.partial(jax.jit, static_argnums=2)
def draw(tree, key, shape):
    return prioritized.draw(tree, key, shape, ())


def masses(tree, slots):
    """Leaves [G * n] of a tree, without the padding."""
    return np.asarray(tree.levels[0])[:, :slots].reshape(-1)


def chi_square(counts, shares):
    """The statistic's distance from its mean, in standard deviations."""
    expected = counts.sum() * shares
    assert (counts[shares == 0] == 0).all()
    some = shares > 0
    statistic = (np.square(counts - expected)[some] / expected[some]).sum()
    freedom = some.sum() - 1
    return (statistic - freedom) / np.sqrt(2 * freedom)


@pytest.mark.parametrize("slots", [1, 5, 16, 17, 256, 700])
def test_nodes_are_the_sums_of_their_children(slots):
    leaves = np.random.default_rng(slots).random((3, slots)).astype(np.float32)
    tree = tree_of(leaves)
    np.testing.assert_array_equal(tree.levels[0][:, :slots], leaves)
    np.testing.assert_allclose(tree.levels[-1][:, 0], leaves.sum(1), rtol=1e-6)
    for below, level in zip(tree.levels, tree.levels[1:], strict=False):
        sums = np.asarray(below).reshape(3, -1, prioritized.FANOUT).sum(-1)
        np.testing.assert_allclose(level[:, : sums.shape[1]], sums, rtol=1e-6)


def test_draws_have_their_shares():
    """1e6 draws of priorities over six orders of magnitude, a third of them 0."""
    rng = np.random.default_rng(0)
    leaves = (10.0 ** rng.uniform(-3, 3, (4, 50))).astype(np.float32)
    leaves *= rng.random((4, 50)) > 1 / 3
    tree = tree_of(leaves)
    found = draw(tree, jax.random.key(1), (1_000_000,))
    width = tree.levels[0].shape[1]
    number = np.asarray(found.leaf) // width * 50 + np.asarray(found.leaf) % width
    shares = leaves.reshape(-1).astype(np.float64) / leaves.sum(dtype=np.float64)
    counts = np.bincount(number, minlength=200)
    assert abs(chi_square(counts, shares)) < 5
    np.testing.assert_allclose(found.probability, shares[number], rtol=1e-5)


def test_shares_below_the_steps_of_a_float_are_kept():
    """A float32 in [0, 1) has steps of 2^-23: one alone would draw one leaf in 16."""
    leaves = np.full((1, 65_537), 2.0**-27, np.float32)
    leaves[0, 0] = 1
    found = draw(tree_of(leaves), jax.random.key(1), (4_000_000,))
    small = np.asarray(found.leaf)[np.asarray(found.leaf) > 0]
    shares = np.full(16, 1 / 16)
    assert abs(chi_square(np.bincount(small % 16, minlength=16), shares)) < 5
    np.testing.assert_allclose(len(small), 4e6 * 2.0**-11 / (1 + 2.0**-11), rtol=0.1)


def test_sums_do_not_drift():
    """A million changes over twelve orders of magnitude, then all back to 1."""
    tree = tree_of(np.zeros((1, 4096), np.float32))

    def change(i, tree):
        key = jax.random.fold_in(jax.random.key(0), i)
        leaf_key, size_key = jax.random.split(key)
        leaf = jax.random.randint(leaf_key, (1000,), 0, 4096)
        size = 10 ** jax.random.uniform(size_key, (1000,), minval=-6, maxval=6)
        return prioritized.write(tree, leaf, size)

    tree = jax.jit(lambda t: jax.lax.fori_loop(0, 1000, change, t))(tree)
    leaves = np.asarray(tree.levels[0], np.float64)
    np.testing.assert_allclose(tree.levels[-1][0, 0], leaves.sum(), rtol=1e-6)
    tree = write(tree, jnp.arange(4096), jnp.full(4096, 1e-6))
    np.testing.assert_allclose(tree.levels[-1][0, 0], 4096e-6, rtol=1e-6)
    tree = write(tree, jnp.arange(4095), jnp.zeros(4095))
    assert set(np.asarray(draw(tree, jax.random.key(2), (10_000,)).leaf)) == {4095}


def test_of_a_leaf_written_twice_the_larger_holds():
    tree = tree_of(np.array([[1, 2, 3, 4]], np.float32))
    tree = write(tree, jnp.array([1, 2, 1, -1]), jnp.array([7.0, 0.0, 5.0, 9.0]))
    assert masses(tree, 4).tolist() == [1, 7, 0, 4]
    assert tree.levels[-1].tolist() == [[12]]


def test_shares_are_those_of_flashbax():
    flashbax = pytest.importorskip("flashbax")
    priority = np.random.default_rng(0).exponential(size=49).astype(np.float32)
    buffer = flashbax.make_prioritised_flat_buffer(64, 2, 32, True, None, 1.0)
    with jax.numpy_rank_promotion("allow"):
        state = buffer.init(jnp.float32(0))
        state = jax.jit(buffer.add)(state, jnp.zeros(50))  # 49 transitions
        state = jax.jit(buffer.set_priorities)(state, jnp.arange(49), priority)
        theirs = jax.jit(buffer.sample)(state, jax.random.key(0))
    ours = draw(tree_of(priority[None]), jax.random.key(0), (1000,))
    shares = np.full(49, np.nan)
    shares[np.asarray(ours.leaf)] = ours.probability
    found = shares[np.asarray(theirs.indices)]
    assert np.isfinite(found).sum() > 25
    np.testing.assert_allclose(
        np.where(np.isnan(found), theirs.probabilities, found),
        theirs.probabilities,
        rtol=1e-5,
    )


def test_what_is_new_comes_as_often_as_the_largest():
    """Priorities 5, .1 and .5, and a new one: 5 / 10.6 of the draws."""
    story = stories.tell(9, 1, end=0.0)
    kept = stories.stored(story, 10, 1, 4)
    tree = prioritized.empty(1, kept.slots, 1)
    changes = prioritized.Changes(
        jnp.arange(3), jnp.array([5, 0.1, 0.5]), jnp.float32(5)
    )
    tree = prioritized.refresh(tree, kept, 1, changes, ())
    np.testing.assert_allclose(masses(tree, 5), [5, 0.1, 0.5, 5, 0], rtol=1e-6)
    found = draw(tree, jax.random.key(0), (100,))
    np.testing.assert_allclose(
        np.asarray(found.probability)[np.asarray(found.leaf) == 3], 5 / 10.6, rtol=1e-5
    )


def test_equal_priorities_have_weights_of_one():
    tree = tree_of(np.full((1, 4), 1e-6, np.float32))
    found = draw(tree, jax.random.key(0), (64,))
    np.testing.assert_allclose(found.probability, 0.25, rtol=1e-6)
    weight = prioritized.weights(found.probability, jnp.int32(4), 0.7)
    np.testing.assert_allclose(weight, 1, rtol=1e-6)


def test_weights_are_the_papers():
    """(N P)^-beta over the largest of the minibatch, for P = [.1, .2, .7], N = 10."""
    probability = jnp.array([[0.1, 0.2, 0.7]])
    weight = prioritized.weights(probability, jnp.int32(10), 0.5)
    np.testing.assert_allclose(weight, [[1, 0.5**0.5, (1 / 7) ** 0.5]], rtol=1e-6)
    assert prioritized.weights(probability, jnp.int32(10), 0.0).tolist() == [[1, 1, 1]]


def run(devices, key, rollouts, shape):
    """Rings and trees after some rollouts with changes between them, and draws:

    (leaf, probability, transitions, masses of all groups), the same whatever the
    number of devices.
    """
    story = stories.tell(3 * rollouts + 1, ENVS, 7)
    axes = ("data",) if devices > 1 else ()
    parts = [stories.rollout(story, LENGTH * i, LENGTH, 1) for i in range(rollouts)]
    parts = jax.tree.map(lambda *x: jnp.stack(x), *parts)

    def play(kept, tree, parts):
        def step(carry, numbered):
            kept, tree, changes = carry
            i, part = numbered
            kept = ring.add(kept, part, part.action)
            tree = prioritized.refresh(tree, kept, LENGTH, changes, axes)
            draws = prioritized.draw(tree, jax.random.fold_in(key, i), (16,), axes)
            priority = 1 + 100 * (draws.leaf % 7).astype(jnp.float32)
            changes = prioritized.Changes(draws.leaf, priority, jnp.float32(50))
            return (kept, tree, changes), None

        start = (kept, tree, prioritized.no_changes(16))
        steps = jnp.arange(len(parts.reward))
        (kept, tree, _), _ = jax.lax.scan(step, start, (steps, parts))
        last = jax.random.fold_in(key, rollouts)
        draws = prioritized.draw(tree, last, shape, axes)
        found = prioritized.fetch(tree, kept, draws.leaf, 2, 0.9, axes)
        return draws, found, prioritized.total(tree, axes)

    kept = ring.empty(stories.spec(7), ENVS, 10 * ENVS, LENGTH, jnp.int32(0))
    tree = prioritized.empty(ENVS, kept.slots, GROUPS)
    args = (kept, tree, parts)
    if axes:
        third = P(None, None, "data")
        specs = jax.tree.map(lambda x: third if x.ndim > 1 else P(), parts)
        specs = dataclasses.replace(specs, last_obs=P(None, "data"))
        first = jax.tree.map(lambda x: P("data"), (kept, tree))
        play = jax.shard_map(
            play,
            mesh=jax.make_mesh((devices,), axes, axis_types=(AxisType.Auto,)),
            in_specs=(*first, specs),
            out_specs=(P(), P(None, "data"), P()),
            check_vma=False,
        )
    return jax.tree.map(np.asarray, jax.jit(play)(*args))


def test_the_draws_are_the_same_on_any_number_of_devices():
    one = run(1, jax.random.key(3), 5, (2, 64))
    for devices in (2, 4, 8):
        jax.tree.map(
            np.testing.assert_array_equal,
            one,
            run(devices, jax.random.key(3), 5, (2, 64)),
        )


@pytest.mark.parametrize("devices", [1, 2, 4, 8])
def test_a_million_draws_over_devices_have_their_shares(devices):
    draws, _, group = run(devices, jax.random.key(4), 5, (1, 1_000_000))
    leaf, probability = draws.leaf[0], draws.probability[0]
    _, first, counts = np.unique(leaf, return_index=True, return_counts=True)
    assert abs(chi_square(counts, probability[first])) < 5
    assert np.isclose(probability[first].sum(), 1, rtol=1e-5)
    assert group.max() > 1.5 * group.min()  # a skewed store


def test_uniform_draws_are_the_same_on_any_number_of_devices():
    def play(kept, axes):
        return uniform.draw(kept, jax.random.key(0), (2, 32), GROUPS, axes)

    story = stories.tell(30, ENVS, 7)
    kept = stories.stored(story, 10 * ENVS, LENGTH, 5, 7)
    one = play(kept, ())
    assert set(np.unique(one.env)) == set(range(ENVS))
    for devices in (2, 8):
        mesh = jax.make_mesh((devices,), ("data",), axis_types=(AxisType.Auto,))
        specs = jax.tree.map(lambda x: P("data"), kept)
        over = jax.shard_map(
            lambda kept: play(kept, ("data",)),
            mesh=mesh,
            in_specs=(specs,),
            out_specs=P(None, "data"),
            check_vma=False,
        )
        env, slot = jax.jit(over)(kept)
        first = np.arange(32) // (32 // devices) * (ENVS // devices)
        np.testing.assert_array_equal(env + first[None], one.env)
        np.testing.assert_array_equal(slot, one.slot)


@pytest.mark.parametrize("groups", [1, 4])
def test_uniform_draws_are_uniform(groups):
    story = stories.tell(60, 4, end=0.0)
    kept = stories.stored(story, 40, 3, 17)
    place = uniform.draw(kept, jax.random.key(0), (1, 1_000_000), groups, ())
    number = np.asarray(place.env) * kept.slots + np.asarray(place.slot)
    counts = np.bincount(number[0], minlength=4 * kept.slots)
    shares = np.full((4, kept.slots), 1 / 40)
    shares[:, int(kept.position[0])] = 0
    assert abs(chi_square(counts, shares.reshape(-1))) < 5
