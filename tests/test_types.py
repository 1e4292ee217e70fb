"""Rollout's successors against the whole array; pytrees and settled types."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_par.spaces import Box, Discrete
from jaxrl_par.types import EnvSpec, Rollout, is_key, pytree, static, strong

NUM_ENVS = 4


def make_rollout(seed, length, rows):
    """A rollout with at most `rows` cuts an environment, and all its successors.

    Observations are distinct numbers, so that a wrong one is seen: the policy's
    first view of a step, and for every step its true successor.
    """
    rng = np.random.default_rng(seed)
    ends = rng.integers(0, 4, size=(length, NUM_ENVS))  # 0 terminated, 1 truncated
    terminated, truncated = ends == 0, ends == 1
    if rows < length:
        truncated &= np.cumsum(truncated, 0) <= rows
    ended = terminated | truncated
    number = rng.permutation(10_000)[: (length + 1) * NUM_ENVS * 2]
    number = number.reshape(2, length + 1, NUM_ENVS).astype(np.float32)
    flat, fresh = number
    successor = np.where(ended, fresh[1:], flat[1:])
    if rows == length:
        cut = successor.copy()
    else:
        cut = np.full((rows, NUM_ENVS), -1.0, np.float32)
        for env in range(NUM_ENVS):
            kept = successor[truncated[:, env], env]
            cut[: len(kept), env] = kept
    tree = lambda x: {"a": x, "b": np.stack([x, -x], -1)}  # noqa: E731
    rollout = Rollout(
        obs=tree(flat[:-1]),
        action=np.zeros((length, NUM_ENVS), np.int32),
        reward=np.zeros((length, NUM_ENVS), np.float32),
        terminated=terminated,
        truncated=truncated,
        first=np.zeros((length, NUM_ENVS), bool),
        extras={},
        last_obs=tree(flat[-1]),
        cut_obs=tree(cut),
        initial_carry=(),
        progress=np.float32(0),
        next_progress=np.float32(1),
    )
    return jax.tree.map(jnp.asarray, rollout), successor


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("length", "rows"), [(9, 0), (9, 1), (9, 3), (9, 9), (3, 3), (1, 0), (1, 1)]
)
def test_kept_successors_equal_the_whole_array(seed, length, rows):
    rollout, successor = make_rollout(seed, length, rows)
    defined = ~np.asarray(rollout.terminated)
    next_obs = jax.jit(Rollout.next_obs)(rollout)
    np.testing.assert_array_equal(
        np.asarray(next_obs["a"])[defined], successor[defined]
    )
    both = np.stack([successor, -successor], -1)
    np.testing.assert_array_equal(np.asarray(next_obs["b"])[defined], both[defined])

    def value_of(obs):
        assert obs["b"].shape == (len(obs["a"]), 2)
        return 3 * obs["a"] - obs["b"][:, 1]  # 4 times the number

    found = jax.jit(lambda r: r.successor_values(4 * r.obs["a"], value_of))(rollout)
    np.testing.assert_array_equal(np.asarray(found)[defined], 4 * successor[defined])


def test_rollouts_of_the_test_have_what_they_must():
    for rows in (1, 3, 9):
        rollout, _ = make_rollout(0, 9, rows)
        most = int(rollout.truncated.sum(0).max())
        assert (1 <= most <= rows) and rollout.terminated.any()


def test_only_what_is_lacking_is_computed():
    for rows, calls in ((0, 1), (2, 3), (9, 10)):
        rollout, _ = make_rollout(0, 9, rows)
        sizes = []

        def value_of(obs, sizes=sizes):
            sizes.append(len(obs["a"]))
            return obs["a"]

        rollout.successor_values(rollout.obs["a"], value_of)
        assert sizes == [calls * NUM_ENVS]


def test_pytree_fields_are_leaves_unless_static():
    @pytree
    class Thing:
        rate: float
        size: int = static(default=3)

    thing = Thing(0.5)
    assert jax.tree.leaves(thing) == [0.5]
    doubled = jax.tree.map(lambda x: 2 * x, thing)
    assert doubled == Thing(1.0, 3)
    assert jax.tree.structure(thing) != jax.tree.structure(Thing(0.5, 4))
    with pytest.raises(dataclasses.FrozenInstanceError):
        thing.rate = 1.0


def test_strong_settles_types_and_keeps_values():
    tree = {
        "float": 1.5,
        "weak": jnp.asarray(2.0) * 1,
        "int": 3,
        "bool": True,
        "array": np.float64([1, 2]),
        "half": jnp.bfloat16(1),
        "key": jax.random.key(0),
    }
    assert jax.typeof(jnp.asarray(2.0)).weak_type
    settled = strong(tree)
    dtypes = {k: str(v.dtype) for k, v in settled.items()}
    assert dtypes == {
        "float": "float32",
        "weak": "float32",
        "int": "int32",
        "bool": "bool",
        "array": "float32",
        "half": "bfloat16",
        "key": "key<fry>",
    }
    assert not any(jax.typeof(x).weak_type for x in jax.tree.leaves(settled))
    assert (settled["float"], settled["int"]) == (1.5, 3)
    np.testing.assert_array_equal(settled["array"], [1, 2])
    assert is_key(settled["key"]) and not is_key(settled["int"]) and not is_key(3)
    # Settled types are a fixed point: a second call compiles nothing new.
    assert jax.typeof(strong(settled)["weak"]) == jax.typeof(settled["weak"])


@pytest.mark.parametrize("field", ["max_steps", "frames_per_step"])
def test_spec_refuses_a_count_below_one(field):
    with pytest.raises(
        ValueError, match=f"{field} 0 must be a whole number of at least 1"
    ):
        EnvSpec("x", Box(0.0, 1.0, (2,)), Discrete(2), **{field: 0})


def test_specs_are_equal_and_hash_by_value():
    one, other = (EnvSpec("x", Box(0.0, 1.0, (2,)), Discrete(2)) for _ in range(2))
    assert one == other and hash(one) == hash(other)
    assert one != EnvSpec("x", Box(0.0, 1.0, (2,)), Discrete(3))
