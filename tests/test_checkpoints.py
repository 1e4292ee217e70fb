"""The checkpoints of a run: which are kept, and which is used."""

from __future__ import annotations

import shutil
import threading

import jax
import jax.numpy as jnp
import pytest

from jaxrl_par.train import checkpoint, checkpoints
from jaxrl_par.train.checkpoints import Checkpoints

LIKE = {"x": jnp.float32(0)}


def write(store, *points):
    """Checkpoints of these (update, mean return)."""
    for update, value in points:
        store.save({"x": jnp.float32(update)}, {"update": update, "mean_return": value})
    store.wait()


def kept(store):
    return [int(path.name) for path in store._paths()]


def test_the_newest_and_the_first_of_the_best_are_kept(tmp_path):
    store = Checkpoints(tmp_path / "c", keep=2)
    assert store.best_return() is None
    write(store, (1, None), (2, 7.0), (3, 9.0), (4, 9.0), (5, None), (6, 8.0))
    assert kept(store) == [6, 5, 3]
    assert store.best_return() == 9.0
    assert store.load(LIKE)[0]["x"] == 6
    state, facts = store.load(LIKE, "best")
    assert (state["x"], facts["update"], facts["mean_return"]) == (3, 3, 9.0)


def test_without_evaluations_the_best_is_the_newest(tmp_path):
    store = Checkpoints(tmp_path / "c", keep=3)
    write(store, *((n, None) for n in range(1, 6)))
    assert kept(store) == [5, 4, 3]
    with pytest.warns(UserWarning, match="none was evaluated: the newest is taken"):
        assert store.load(LIKE, "best")[0]["x"] == 5


def test_a_kill_while_an_old_one_is_removed_leaves_no_damaged_one(
    tmp_path, monkeypatch
):
    def stop_half_way(path, ignore_errors):
        for manifest in path.glob("manifest.json"):
            manifest.unlink()

    store = Checkpoints(tmp_path, keep=1)
    write(store, (1, None))
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints.shutil, "rmtree", stop_half_way)
        write(store, (2, None))
    store.rewind(2)
    assert [path.name for path in tmp_path.iterdir()] == [checkpoint.name_of(2)]


@pytest.mark.parametrize("spoil", ["truncate", "empty", "moved", "file"])
def test_a_damaged_one_is_named_and_the_one_before_used(tmp_path, spoil):
    store = Checkpoints(tmp_path, keep=3)
    write(store, (1, None), (2, None))
    newest = tmp_path / checkpoint.name_of(2)
    manifest = newest / "manifest.json"
    if spoil == "truncate":
        manifest.write_bytes(manifest.read_bytes()[:-1])
    elif spoil == "empty":
        manifest.write_bytes(b"")
    elif spoil == "moved":
        newest.rename(tmp_path / checkpoint.name_of(7))
    else:
        newest.rename(tmp_path / "gone")
        newest.write_bytes(b"x")
    number = 7 if spoil == "moved" else 2
    words = rf"{checkpoint.name_of(number)}.* cannot be used: .*0000000001 is used"
    with pytest.warns(UserWarning, match=words):
        state, facts = store.load(LIKE)
    assert (state["x"], facts["update"]) == (1, 1)


def test_if_none_can_be_used_all_reasons_are_given(tmp_path):
    with pytest.raises(ValueError, match=r"no checkpoint in .*nowhere can be used"):
        Checkpoints(tmp_path / "nowhere").load(LIKE)
    store = Checkpoints(tmp_path)
    write(store, (1, None), (2, None))
    for update in (1, 2):
        (tmp_path / checkpoint.name_of(update) / "manifest.json").unlink()
    with pytest.raises(ValueError, match=r"0000000002/man.*; checkpoint .*0000000001"):
        store.load(LIKE)


def test_what_does_not_fit_is_refused_though_an_older_one_would(tmp_path):
    store = Checkpoints(tmp_path)
    store.save({"y": jnp.float32(0)}, {"update": 2})
    write(store, (1, None))
    with pytest.raises(ValueError, match=r"leaf \['x'\] is only in the state"):
        store.load(LIKE)


def test_training_does_not_wait_for_a_write_but_the_next_write_does(tmp_path):
    store, go = Checkpoints(tmp_path), threading.Event()
    store.save(LIKE, {"update": 1}, before=lambda: go.wait(30))
    assert kept(store) == []
    go.set()
    write(store, (2, None))
    assert kept(store) == [2, 1]


def test_a_write_that_failed_is_told_at_the_next_and_costs_nothing(tmp_path):
    def full():
        raise OSError(28, "No space left on device")

    store = Checkpoints(tmp_path)
    write(store, (1, None))
    store.save(LIKE, {"update": 2}, before=full)
    with pytest.raises(OSError, match="No space"):
        store.save(LIKE, {"update": 3})
    assert kept(store) == [1]


def test_what_a_killed_process_left_is_removed(tmp_path):
    store = Checkpoints(tmp_path)
    write(store, (1, None))
    for name in (".0000000002.partial", ".0000000001.old"):
        (tmp_path / name / "state").mkdir(parents=True)
    assert store.load(LIKE)[0]["x"] == 1
    store.rewind(1)
    assert [path.name for path in tmp_path.iterdir()] == [checkpoint.name_of(1)]
    # Killed between the two renames of a checkpoint that took another's place.
    (tmp_path / checkpoint.name_of(1)).rename(tmp_path / ".0000000001.old")
    store.rewind(1)
    assert store.load(LIKE)[0]["x"] == 1


def test_what_is_damaged_or_beyond_is_put_aside_and_counts_for_nothing(tmp_path):
    """Else it would push out whole ones, and be the best for ever."""
    store = Checkpoints(tmp_path, keep=2)
    write(store, (1, 5.0), (2, 9.0), (3, 1.0), (4, 2.0))
    shutil.copytree(tmp_path / checkpoint.name_of(3), tmp_path / checkpoint.name_of(1))
    for update in (2, 4):
        (tmp_path / checkpoint.name_of(update) / "state" / "_METADATA").write_text("x")
    with pytest.warns(UserWarning, match="0000000004.*0000000003 is used"):
        _, facts = store.load(LIKE)
    store.rewind(facts["update"])
    assert kept(store) == [3]
    assert store.best_return() == 1.0
    write(store, (4, 2.0))
    assert kept(store) == [4, 3]
    assert store.load(LIKE, "best")[0]["x"] == 4
    names = {path.name for path in tmp_path.iterdir() if path.name.endswith("damaged")}
    assert names == {f"000000000{update}.damaged" for update in (1, 2, 4)}


def test_leaves_are_put_where_they_are_wanted(tmp_path):
    """On as many devices as there are, split as they are said to be."""
    mesh = jax.make_mesh((4,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    sharding = jax.sharding.NamedSharding(mesh, jax.P("d"))
    store = Checkpoints(tmp_path)
    store.save({"x": jnp.arange(8.0)}, {"update": 1})
    like = {"x": jax.ShapeDtypeStruct((8,), jnp.float32, sharding=sharding)}
    state, _ = store.load(like)
    assert state["x"].sharding == sharding
    assert state["x"].addressable_shards[3].data.tolist() == [6.0, 7.0]
    store.save(state, {"update": 2})
    assert store.load({"x": jnp.zeros(8)})[0]["x"].tolist() == list(range(8))
