"""Stratified minibatches: every sample once, equal strata, the same on any devices."""

from __future__ import annotations

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from jaxrl_par import minibatches

EPOCHS = 2
# length, num_envs, num_minibatches, num_groups
SIZES = [(8, 8, 4, 8), (6, 16, 4, 8), (4, 24, 3, 8), (16, 8, 1, 8), (1, 16, 2, 8)]


def shuffle(key, batch, num_minibatches, num_groups, axes):
    """Every epoch's minibatches, [epochs, M, N, ...], of a batch [T, B, ...]."""
    length, num_envs = jax.tree.leaves(batch)[0].shape[:2]
    sizes = minibatches.sizes_of(length, num_envs, num_minibatches, num_groups, axes)
    rows = minibatches.shuffled_rows(key, sizes, EPOCHS, axes)
    return jax.vmap(lambda r: minibatches.gather(batch, r, sizes))(rows)


@functools.cache
def shuffled_numbers(sizes, devices=1, seed=0):
    """The minibatches of a batch whose samples are numbered, t * B + b."""
    length, num_envs, num_minibatches, num_groups = sizes
    numbers = jnp.arange(length * num_envs).reshape(length, num_envs)
    batch = {"number": numbers, "vector": jnp.stack([numbers, -numbers], -1)}
    axes = ("data",) if devices > 1 else ()

    def run(key, batch):
        return shuffle(key, batch, num_minibatches, num_groups, axes)

    if axes:
        mesh = jax.make_mesh((devices,), axes, axis_types=(AxisType.Auto,))
        run = jax.shard_map(
            run,
            mesh=mesh,
            in_specs=(P(), P(None, "data")),
            out_specs=P(None, None, "data"),
            check_vma=False,
        )
    return jax.tree.map(np.asarray, jax.jit(run)(jax.random.key(seed), batch))


@pytest.mark.parametrize("sizes", SIZES)
def test_every_sample_is_in_an_epoch_once(sizes):
    shuffled = shuffled_numbers(sizes)
    number = shuffled["number"]
    total = sizes[0] * sizes[1]
    assert number.shape == (EPOCHS, sizes[2], total // sizes[2])
    for epoch in number:
        np.testing.assert_array_equal(np.sort(epoch.reshape(-1)), np.arange(total))
    both = np.stack([number, -number], -1)  # leaves stay together
    np.testing.assert_array_equal(shuffled["vector"], both)


@pytest.mark.parametrize("sizes", SIZES)
def test_each_minibatch_has_an_equal_part_of_each_group(sizes):
    _, num_envs, _, num_groups = sizes
    env = shuffled_numbers(sizes)["number"] % num_envs
    groups = math.gcd(num_envs, num_groups)
    group = env // (num_envs // groups)
    counts = (group[..., None] == np.arange(groups)).sum(2)
    assert (counts == counts[..., :1]).all()


@pytest.mark.parametrize(
    ("sizes", "devices"), [(SIZES[0], 2), (SIZES[1], 4), (SIZES[1], 8), (SIZES[2], 8)]
)
def test_minibatches_are_the_same_on_any_number_of_devices(sizes, devices):
    expected = np.sort(shuffled_numbers(sizes)["number"], -1)
    found = np.sort(shuffled_numbers(sizes, devices)["number"], -1)
    np.testing.assert_array_equal(found, expected)


def test_epochs_groups_and_keys_shuffle_differently():
    sizes = (16, 8, 1, 8)
    number = shuffled_numbers(sizes)["number"].reshape(EPOCHS, 8, 16)  # group, order
    steps = {tuple(row // 8) for row in number.reshape(-1, 16)}
    assert len(steps) == EPOCHS * 8
    other = shuffled_numbers(sizes, seed=1)["number"].reshape(-1, 16)
    assert steps.isdisjoint({tuple(row // 8) for row in other})


def test_sizes_that_do_not_divide_are_refused():
    with pytest.raises(ValueError, match=r"num_minibatches 4 must divide .* = 3 \* 2"):
        minibatches.sizes_of(3, 16, 4, 8, ())


@pytest.mark.parametrize(
    ("length", "group_envs", "num_minibatches", "blocks"),
    [(8, 4, 4, 1), (6, 4, 4, 2), (3, 4, 4, 4), (3, 4, 3, 1), (1, 6, 3, 3)],
)
def test_blocks_are_the_fewest(length, group_envs, num_minibatches, blocks):
    found = minibatches.blocks_per_group(length, group_envs, num_minibatches)
    assert found == blocks


@pytest.mark.parametrize(("n", "quantile"), [(2, 10.8), (3, 20.5), (4, 49.7)])
def test_permutations_are_uniform(n, quantile):
    # 0.999 quantile of chi-square with n! - 1 degrees of freedom.
    number = 24_000
    keys = jax.random.split(jax.random.key(n), number)
    found = np.asarray(jax.jit(minibatches.permutations, static_argnums=1)(keys, n))
    orders = list(itertools.permutations(range(n)))
    code = n ** np.arange(n)
    counts = np.array([(found @ code == order @ code).sum() for order in orders])
    assert counts.sum() == number
    expected = number / len(orders)
    assert ((counts - expected) ** 2 / expected).sum() < quantile


@pytest.mark.parametrize("n", [1, 7, 64, 1000])
def test_permutations_hold_each_index_once(n):
    keys = jax.random.split(jax.random.key(0), 400)
    found = jax.jit(minibatches.permutations, static_argnums=1)(keys, n)
    assert found.dtype == jnp.int32
    np.testing.assert_array_equal(np.sort(found, -1), np.tile(np.arange(n), (400, 1)))
    # No place prefers an index: means of a place over keys, within 5 deviations.
    error = np.sqrt((n**2 - 1) / 12 / 400)
    assert (abs(np.asarray(found).mean(0) - (n - 1) / 2) <= 5 * error).all()
