"""States on disk: to the bit, whole or refused by name, and never executed."""

from __future__ import annotations

import dataclasses
import json
import pickle
import re
from functools import partial
from pathlib import Path

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
from jaxrl_par.train.checkpoint import DamagedError, Snapshot
from jaxrl_par.types import pytree

TREE = {
    "float": jnp.array([1.5, -0.0, jnp.inf, jnp.nan, 1e-45]),
    "half": jnp.ones(3, jnp.bfloat16),
    "flag": jnp.array([True, False]),
    "int": jnp.int32(-7),
    "byte": jnp.arange(6, dtype=jnp.uint8).reshape(2, 3),
    "empty": jnp.zeros((0, 4)),
    "key": jax.random.key(3),
    "keys": jax.random.split(jax.random.key(4), 3),
    "other key": jax.random.key(5, impl="rbg"),
    "../up/and.away": jnp.ones(2),
    "none": None,
    "tuple": (jnp.float32(2), ()),
}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "checkpoints" / "0000000003"


def save(path, tree, **facts):
    checkpoint.save(path, Snapshot.of(tree), facts)


def load(path, like):
    return checkpoint.load(path, like)[0]


def shapes(tree):
    return jax.eval_shape(lambda: jax.tree.map(lambda x: x, tree))


def files(path):
    return sorted(p for p in path.rglob("*") if p.is_file())


def test_a_tree_comes_back_to_the_bit(path):
    save(path, TREE, update=3)
    back, facts = checkpoint.load(path, shapes(TREE))
    assert facts == {"update": 3}
    assert jax.tree.structure(back) == jax.tree.structure(TREE)
    for old, new in zip(jax.tree.leaves(TREE), jax.tree.leaves(back), strict=True):
        assert (old.dtype, old.shape) == (new.dtype, new.shape)
        assert not jax.typeof(new).weak_type
        assert toys.host(old).tobytes() == toys.host(new).tobytes()
    assert list(path.parent.iterdir()) == [path]  # nothing is left beside it
    assert [p.name for p in path.parent.parent.iterdir()] == ["checkpoints"]


def test_a_snapshot_is_not_changed_by_what_training_does_next():
    add = jax.jit(lambda x: x + 1, donate_argnums=0)
    x = add(jnp.zeros(1000))
    before = x.unsafe_buffer_pointer()
    snapshot = Snapshot.of({"x": x})
    after = add(x)
    assert x.is_deleted()
    assert after.unsafe_buffer_pointer() == before  # the copy does not hinder donation
    np.testing.assert_array_equal(snapshot.arrays[0], np.ones(1000))


def test_a_loaded_state_goes_on_as_the_saved_one(path):
    """Ten updates, or five, saved, loaded, and five: equal to the bit; one compile."""
    algorithm, env = toys.Tally(), BatchedEnv(toys.Fate(max_steps=6))
    compiles = []

    @jax.jit
    def go_on(state, updates):
        compiles.append(1)
        return step.chunk(algorithm, env, state, jnp.float32(10), updates, 10, ())[:2]

    init = partial(step.init_state, algorithm, env, 4)
    whole, _ = go_on(init(jax.random.key(0)), jnp.int32(10))
    half, _ = go_on(init(jax.random.key(0)), jnp.int32(5))
    save(path, half)
    loaded = load(path, jax.eval_shape(init, jax.random.key(1)))
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
    save(path, state)
    loaded = load(path, jax.eval_shape(adam.init, params))
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
        (ppo_state(env=Pendulum()), r"is float32\(4, 64\), expected float32\(3, 64\)"),
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
    save(path, state)
    with pytest.raises(ValueError, match=message) as error:
        load(path, other)
    assert not isinstance(error.value, DamagedError)
    toys.assert_equal(load(path, ppo_state()), state)


def test_another_algorithm_dtype_and_generator_are_refused(path):
    save(path, {"a": jnp.ones(2), "b": jax.random.key(0)})
    like = {"a": jnp.ones(2), "b": jax.random.key(0)}
    for other, message in (
        ({"a": jnp.ones(2)}, r"leaf \['b'\] is only in the checkpoint"),
        (like | {"c": jnp.ones(2)}, r"leaf \['c'\] is only in the state"),
        (like | {"a": jnp.ones(2, int)}, r"\['a'\] is float32\(2,\), expected int32"),
        (
            like | {"b": jax.random.key(0, impl="rbg")},
            r"\['b'\] is key<fry>\(2,\), expected key<rbg>",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            load(path, shapes(other))


LENGTHS = {
    "one byte less": lambda n: n - 1,
    "half": lambda n: n // 2,
    "none": lambda n: 0,
}


@pytest.mark.parametrize("cut", LENGTHS)
def test_every_file_cut_short_is_refused_by_name(path, cut):
    save(path, TREE)
    for file in files(path):
        data = file.read_bytes()
        file.write_bytes(data[: LENGTHS[cut](len(data))])
        with pytest.raises(DamagedError, match=f"{file} cannot be used"):
            load(path, shapes(TREE))
        file.write_bytes(data)
    toys.assert_equal(load(path, shapes(TREE)), TREE)


def test_every_file_that_is_missing_changed_or_foreign_is_refused_by_name(path):
    save(path, TREE)
    for file in files(path):
        data = file.read_bytes()
        changed = bytearray(data)
        changed[len(data) // 2] ^= 1
        file.write_bytes(changed)
        with pytest.raises(DamagedError, match=f"{file} cannot be used"):
            load(path, shapes(TREE))
        file.unlink()
        with pytest.raises(DamagedError, match=f"{file} cannot be used"):
            load(path, shapes(TREE))
        file.write_bytes(data)
    (path / "state" / "more").write_bytes(b"x")
    with pytest.raises(DamagedError, match="more cannot be used: it is not in the man"):
        load(path, shapes(TREE))


def test_a_changed_fact_or_another_format_is_noticed(path):
    save(path, TREE, update=3)
    manifest = path / "manifest.json"
    content = json.loads(manifest.read_text())
    for name, value, words in (
        ("facts", {"update": 4}, "its own SHA-256 differs"),
        ("format", 99, "format 99 must be 2: it was written by another version"),
    ):
        manifest.write_text(json.dumps(content | {name: value}) + "\n")
        with pytest.raises(DamagedError, match=words):
            load(path, shapes(TREE))


class Mark:
    """Unpickling it would create a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


# Of what orbax was still reading when it failed.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_pickle_in_the_place_of_any_file_is_not_executed(path, tmp_path):
    """Nor is an array of objects, nor one that the manifest vouches for."""
    marker = tmp_path / "marker"
    evil = pickle.dumps(Mark(marker))
    save(path, TREE)
    content = json.loads((path / "manifest.json").read_text())
    objects = tmp_path / "objects.npy"
    np.save(objects, np.array([Mark(marker)], object), allow_pickle=True)
    marker.unlink(missing_ok=True)
    for file in files(path):
        data = file.read_bytes()
        for bad in (evil, objects.read_bytes()):
            file.write_bytes(bad)
            with pytest.raises(DamagedError, match="cannot be used"):
                load(path, shapes(TREE))
            if file.name != "manifest.json":
                vouch(path, content, file)
                try:  # of what orbax writes, it does not read all
                    toys.assert_equal(load(path, shapes(TREE)), TREE)
                except DamagedError as error:
                    assert "cannot be read" in str(error)
                vouch(path, content, None)
        file.write_bytes(data)
    assert not marker.exists()
    path.rename(path.with_name("aside"))
    path.write_bytes(evil)
    with pytest.raises(DamagedError, match="cannot be used"):
        load(path, shapes(TREE))
    assert not marker.exists()


def vouch(path, content, file):
    """Write the manifest anew, with this file as it now is."""
    content = {k: v for k, v in content.items() if k != "sha256"}
    if file is not None:
        name = str(file.relative_to(path))
        digest = checkpoint._digest(file)
        content = content | {"files": content["files"] | {name: digest}}
    sealed = content | {"sha256": checkpoint._seal(content)}
    (path / "manifest.json").write_text(json.dumps(sealed) + "\n")


def test_the_package_has_no_way_to_execute_a_file():
    words = re.compile(
        r"(import|from) (pickle|dill|marshal|shelve|joblib)|pickle\.load|cloudpickle"
        r"|allow_pickle=True|(?<![\w.])(eval|exec)\("
    )
    assert words.search("x=eval(text)") and not words.search("jax.eval_shape(f)")
    package = Path(checkpoint.__file__).parents[1]
    sources = {source.name: source.read_text() for source in package.rglob("*.py")}
    assert [name for name, text in sources.items() if words.search(text)] == []


def test_a_manifest_names_no_file_outside(path):
    save(path, TREE)
    outside = path.parent / "outside"
    outside.write_bytes(b"x")
    content = json.loads((path / "manifest.json").read_text())
    content["files"]["../outside"] = checkpoint._digest(outside)
    vouch(path, content, None)
    with pytest.raises(DamagedError, match="outside cannot be used: it is not below"):
        load(path, shapes(TREE))


def test_a_failed_write_leaves_the_last_checkpoint(path, monkeypatch):
    """At whatever file it fails."""
    like = {"x": jnp.float32(0)}
    save(path, {"x": jnp.float32(1)})
    for name in ("_write_arrays", "_digest", "_publish"):
        with monkeypatch.context() as patch:
            patch.setattr(checkpoint, name, full)
            with pytest.raises(OSError, match="No space left"):
                save(path, {"x": jnp.float32(2)})
        assert load(path, like)["x"] == 1
        assert list(path.parent.iterdir()) == [path]


def full(*_):
    raise OSError(28, "No space left on device")
