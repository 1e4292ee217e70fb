"""States on disk: to the bit, whole or refused, and never executed."""

from __future__ import annotations

import dataclasses
import pickle
import zipfile
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import toys

from jaxrl_par.algorithms.ppo import PPO
from jaxrl_par.envs.batched import BatchedEnv
from jaxrl_par.envs.cartpole import CartPole
from jaxrl_par.envs.pendulum import Pendulum
from jaxrl_par.networks.actor_critic import MLP
from jaxrl_par.spaces import Box
from jaxrl_par.train import checkpoint, step
from jaxrl_par.types import pytree

TREE = {
    "float": jnp.array([1.5, -0.0, jnp.inf, jnp.nan, 1e-45]),
    "flag": jnp.array([True, False]),
    "int": jnp.int32(-7),
    "byte": jnp.arange(6, dtype=jnp.uint8).reshape(2, 3),
    "empty": jnp.zeros((0, 4)),
    "key": jax.random.key(3),
    "keys": jax.random.split(jax.random.key(4), 3),
    "none": None,
    "tuple": (jnp.float32(2), ()),
}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "last.npz"


def shapes(tree):
    return jax.eval_shape(lambda: jax.tree.map(lambda x: x, tree))


def test_a_tree_comes_back_to_the_bit(path):
    checkpoint.save(path, TREE)
    back = checkpoint.load(path, shapes(TREE))
    assert jax.tree.structure(back) == jax.tree.structure(TREE)
    for old, new in zip(jax.tree.leaves(TREE), jax.tree.leaves(back), strict=True):
        assert (old.dtype, old.shape) == (new.dtype, new.shape)
        assert not jax.typeof(new).weak_type
        assert toys.host(old).tobytes() == toys.host(new).tobytes()
    assert list(path.parent.iterdir()) == [path]  # nothing is left beside it


def test_a_loaded_state_goes_on_as_the_saved_one(path):
    """Ten updates, or five, saved, loaded, and five: equal to the bit; one compile."""
    algorithm, env = toys.Tally(), BatchedEnv(toys.Fate(max_steps=6))
    compiles = []

    @jax.jit
    def go_on(state, updates):
        compiles.append(1)
        return step.chunk(algorithm, env, state, jnp.float32(10), updates, 10, ())

    init = partial(step.init_state, algorithm, env, 4)
    whole, _ = go_on(init(jax.random.key(0)), jnp.int32(10))
    half, _ = go_on(init(jax.random.key(0)), jnp.int32(5))
    checkpoint.save(path, half)
    loaded = checkpoint.load(path, jax.eval_shape(init, jax.random.key(1)))
    resumed, table = go_on(loaded, jnp.int32(5))
    toys.assert_equal(whole, resumed)
    np.testing.assert_allclose(table["progress"][:5], [0.5, 0.6, 0.7, 0.8, 0.9])
    assert len(compiles) == 1


def test_adam_goes_on_where_it_was(path):
    """Ten gradients of 1, then one of 0.1: 9.110184e-4; a fresh state gives 1e-3."""
    adam = optax.adam(1e-3)
    params = jnp.float32(0)
    state = adam.init(params)
    for _ in range(10):
        _, state = adam.update(jnp.float32(1), state, params)
    checkpoint.save(path, state)
    loaded = checkpoint.load(path, jax.eval_shape(adam.init, params))
    assert loaded[0].count == 10
    update, after = adam.update(jnp.float32(0.1), loaded, params)
    np.testing.assert_allclose(-update, 9.110184e-4, rtol=1e-5)
    assert after[0].count == 11


@pytree
class Wider(CartPole):
    """CartPole with one more number to see."""

    @property
    def spec(self):
        return dataclasses.replace(super().spec, obs_space=Box(-1.0, 1.0, (5,)))


def ppo_state(hidden=64, env=None, **settings):
    algorithm = PPO(network=MLP((hidden,)), rollout_length=8, **settings)
    batched = BatchedEnv(env or CartPole())
    return jax.eval_shape(
        partial(step.init_state, algorithm, batched, 4), jax.random.key(0)
    )


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (ppo_state(128), r"actor_torso.*is float32\(64,\), expected float32\(128,\)"),
        (ppo_state(env=Pendulum()), r"leaf .*log_std.* is only in the state"),
        (
            ppo_state(env=Wider()),
            r"kernel'\] is float32\(4, 64\), expected .*\(5, 64\)",
        ),
        (ppo_state(normalize_obs=True), r"obs_moments.* is only in the state"),
    ],
    ids=["wider", "other-env", "larger-obs", "other-options"],
)
def test_what_does_not_fit_is_refused_with_the_leaf(path, other, message):
    state = jax.tree.map(
        lambda s: (
            jax.random.key(0)
            if jax.dtypes.issubdtype(s.dtype, jax.dtypes.prng_key)
            else jnp.zeros(s.shape, s.dtype)
        ),
        ppo_state(),
    )
    checkpoint.save(path, state)
    with pytest.raises(ValueError, match=message):
        checkpoint.load(path, other)
    toys.assert_equal(checkpoint.load(path, ppo_state()), state)


def test_another_algorithm_and_dtype_are_refused(path):
    checkpoint.save(path, {"a": jnp.ones(2), "b": jnp.ones(2)})
    with pytest.raises(ValueError, match=r"leaf \['b'\] is only in the checkpoint"):
        checkpoint.load(path, shapes({"a": jnp.ones(2)}))
    with pytest.raises(ValueError, match=r"leaf \['c'\] is only in the state"):
        checkpoint.load(path, shapes({"a": jnp.ones(2), "c": jnp.ones(2)}))
    with pytest.raises(ValueError, match=r"\['a'\] is float32\(2,\), expected int32"):
        checkpoint.load(path, shapes({"a": jnp.ones(2, int), "b": jnp.ones(2)}))


@pytest.mark.parametrize("cut", ["one byte", "half", "all", "missing"])
def test_a_damaged_file_is_refused_by_name(path, cut):
    checkpoint.save(path, TREE)
    data = path.read_bytes()
    keep = {"one byte": len(data) - 1, "half": len(data) // 2, "all": 0}
    if cut == "missing":
        path.unlink()
    else:
        path.write_bytes(data[: keep[cut]])
    with pytest.raises(ValueError, match=r"checkpoint .*last\.npz cannot be read"):
        checkpoint.load(path, shapes(TREE))


def test_every_changed_byte_of_an_array_is_noticed(path):
    """By the file's own sums."""
    tree = {"x": jnp.arange(100.0)}
    checkpoint.save(path, tree)
    data = bytearray(path.read_bytes())
    data[data.index(np.float32(50).tobytes())] ^= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match="cannot be read"):
        checkpoint.load(path, shapes(tree))


def test_a_failed_write_leaves_the_last_file(path, monkeypatch):
    """As when the disk is full."""
    checkpoint.save(path, {"x": jnp.float32(1)})

    def full(file, **arrays):
        file.write(b"half of it")
        raise OSError("No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(OSError, match="No space left"):
        checkpoint.save(path, {"x": jnp.float32(2)})
    assert checkpoint.load(path, {"x": jnp.float32(0)})["x"] == 1


class Mark:
    """Unpickling it would create a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.mark.parametrize("place", ["file", "member", "object array"])
def test_nothing_in_a_file_is_executed(path, tmp_path, place):
    marker = tmp_path / "marker"
    like = {"x": jnp.float32(0)}
    checkpoint.save(path, like)
    evil = pickle.dumps(Mark(marker))
    if place == "file":
        path.write_bytes(evil)
    elif place == "member":
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("['x'].npy", evil)
    else:
        array = np.array([Mark(marker)], object)
        np.savez(path, **{"['x']": array}, allow_pickle=True)
        marker.unlink(missing_ok=True)
    with pytest.raises(ValueError, match="checkpoint"):
        checkpoint.load(path, like)
    assert not marker.exists()
