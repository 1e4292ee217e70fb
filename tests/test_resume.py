"""Going on with a run: to the bit, and nothing twice or missing."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import toys
from commands import run_here
from every import EVERY

import jaxrl_par as jp
from jaxrl_par.train import places

FATE = toys.Fate(max_steps=6)
TALLY = toys.Tally()
SETTINGS = {
    "num_envs": 4, "total_steps": 16 * 40, "eval_every": 16 * 7, "eval_episodes": 4,
}  # fmt: skip
ROWS = ("metrics.jsonl", "evaluations.jsonl")


def stop_at(update: int) -> Any:
    return lambda progress: jp.STOP if progress.update >= update else None


def tally(out: Path, update: int | None = None, **settings: Any) -> jp.Run:
    """A run of Tally of 40 updates, stopped once `update` are made."""
    callbacks = [] if update is None else [stop_at(update)]
    settings = SETTINGS | {"chunk_seconds": 1e-6, **settings}
    return jp.train(TALLY, FATE, out=out, callbacks=callbacks, **settings)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, jp.Run]:
    """A run that was never stopped."""
    out = tmp_path_factory.mktemp("whole") / "run"
    return out, tally(out)


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of one that was, after 20 updates; with an older checkpoint."""
    out = tmp_path_factory.mktemp("half") / "run"
    tally(out, 20, save_every=0)
    return out


@pytest.fixture
def copy(half: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(half, tmp_path / "run"))


def assert_same(one: tuple[Path, jp.Run], other: tuple[Path, jp.Run]) -> None:
    """State, rows, metrics and evaluations, to the bit."""
    for name in ROWS:
        assert (one[0] / name).read_bytes() == (other[0] / name).read_bytes(), name
    toys.assert_equal(one[1].state, other[1].state)
    assert set(one[1].metrics) == set(other[1].metrics)
    for name, column in one[1].metrics.items():
        np.testing.assert_array_equal(other[1].metrics[name], column, err_msg=name)
        assert other[1].metrics[name].dtype == column.dtype
    for (steps, a), (others, b) in zip(
        one[1].evaluations, other[1].evaluations, strict=True
    ):
        assert steps == others
        np.testing.assert_array_equal(a.returns, b.returns)


def test_a_stopped_run_goes_on_to_the_bit(whole: Any, copy: Path) -> None:
    """The evaluation made because it was stopped, after update 20, is gone."""
    stopped = jp.load(copy, TALLY, FATE)
    assert (stopped.reason, stopped.env_steps) == ("a callback", 320)
    assert [steps // 16 for steps, _ in stopped.evaluations] == [7, 14, 20]
    resumed = jp.resume(copy, TALLY, FATE)
    assert_same(whole, (copy, resumed))
    assert_same(whole, (copy, jp.load(copy, TALLY, FATE)))
    assert resumed.reason is None
    assert resumed.seconds > stopped.seconds > 0
    summary = json.loads((copy / "summary.json").read_text())
    assert summary["status"] == "finished"
    assert summary["updates"] == 40
    expected = json.loads((whole[0] / "summary.json").read_text())
    for name in ("training_return", "evaluation", "env_steps"):
        assert summary[name] == expected[name]


def test_a_checkpoint_says_what_made_it(half: Path) -> None:
    config = json.loads((half / "config.json").read_text())
    for path in (half / "checkpoints").iterdir():
        kept = json.loads((path / "manifest.json").read_text())["facts"]["config"]
        for name in set(kept) - {"processes"}:
            assert kept[name] == config[name]
        assert {"algorithm", "env", "versions", "num_envs", "seed"} <= set(kept)


def test_stopping_again_and_again_changes_nothing(whole: Any, copy: Path) -> None:
    for update in (21, 22, 27, 28, 39):
        jp.resume(copy, TALLY, FATE, callbacks=[stop_at(update)])
    assert_same(whole, (copy, jp.resume(copy, TALLY, FATE)))
    processes = json.loads((copy / "config.json").read_text())["processes"]
    assert [p["update"] for p in processes] == [0, 20, 21, 22, 27, 28, 39]
    assert all(p["devices"] and p["versions"]["jax"] for p in processes)


def test_a_damaged_checkpoint_is_named_and_the_one_before_gives_the_same(
    whole: Any, copy: Path
) -> None:
    newest = max((copy / "checkpoints").iterdir())
    (newest / "manifest.json").write_bytes(b"")
    with pytest.warns(UserWarning, match=f"{newest}.*cannot be used.*0000000019 is us"):
        resumed = jp.resume(copy, TALLY, FATE)
    assert_same(whole, (copy, resumed))


def test_rows_beyond_the_checkpoint_are_made_again(whole: Any, copy: Path) -> None:
    """As a process leaves them that was killed between a row and a checkpoint."""
    for name in ROWS:
        text = (whole[0] / name).read_text()
        (copy / name).write_text(text[: len(text) - 9])
    assert_same(whole, (copy, jp.resume(copy, TALLY, FATE)))


@pytest.mark.parametrize("lost", [0, 11, 19])
def test_missing_rows_are_refused_and_nothing_is_touched(copy: Path, lost: int) -> None:
    path = copy / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:lost] + lines[lost + 1 :]))
    before = contents(copy)
    with pytest.raises(ValueError, match=r"metrics.jsonl is damaged.*each of the 20 "):
        jp.resume(copy, TALLY, FATE)
    assert contents(copy) == before


def contents(directory: Path) -> dict[str, bytes]:
    files = (path for path in directory.rglob("*") if path.is_file())
    return {str(path): path.read_bytes() for path in files}


def test_a_run_that_is_done_is_left_as_it_is(whole: Any, tmp_path: Path) -> None:
    path = Path(shutil.copytree(whole[0], tmp_path / "run"))
    again = jp.resume(path, TALLY, FATE)
    assert_same(whole, (path, again))
    assert again.evaluation is not None
    assert json.loads((path / "summary.json").read_text())["status"] == "finished"


def test_a_longer_total_is_as_if_it_had_been_set_at_first(
    copy: Path, tmp_path: Path
) -> None:
    """But for what a schedule did before: Tally's progress is its share of the run."""
    longer = jp.resume(copy, TALLY, FATE, total_steps=16 * 80)
    assert longer.env_steps == 16 * 80
    progress = longer.metrics["progress"]
    np.testing.assert_allclose(progress[19:22], [19 / 40, 20 / 80, 21 / 80])
    fresh = tally(tmp_path / "fresh", total_steps=16 * 80)
    toys.assert_equal(longer.state, fresh.state)
    config = json.loads((copy / "config.json").read_text())
    assert config["total_steps"] == 16 * 80
    assert [p["total_steps"] for p in config["processes"]] == [640, 1280]


def test_a_run_that_is_cut_to_what_is_done_is_left_as_it_is(copy: Path) -> None:
    before = contents(copy)
    run = jp.resume(copy, TALLY, FATE, total_steps=16 * 20)
    assert [steps // 16 for steps, _ in run.evaluations] == [7, 14, 20]
    changed = {"summary.json", "curves.png"}
    after = contents(copy)
    assert {Path(k).name for k in after if after[k] != before.get(k)} <= changed


def test_evaluations_that_were_made_stay_whatever_changes(copy: Path) -> None:
    other = jp.resume(copy, TALLY, FATE, eval_every=16 * 10)
    assert [steps // 16 for steps, _ in other.evaluations] == [7, 14, 30, 40]


def test_a_run_that_reached_its_return_stays_ended(tmp_path: Path) -> None:
    run = tally(tmp_path, stop_at_return=-1e9)
    assert (run.env_steps, run.reason) == (16 * 7, "stop_at_return")
    before = (tmp_path / "metrics.jsonl").read_bytes()
    again = jp.resume(tmp_path, TALLY, FATE)
    assert (again.env_steps, again.reason) == (16 * 7, "stop_at_return")
    assert (tmp_path / "metrics.jsonl").read_bytes() == before
    assert jp.resume(tmp_path, TALLY, FATE, stop_at_return=None).env_steps == 16 * 40


def test_what_was_passed_and_differs_is_named(copy: Path) -> None:
    with pytest.warns(UserWarning) as seen:
        jp.resume(copy, toys.Tally(rate=0.5), toys.Fate(max_steps=6, end=0.9))
    assert [str(w.message) for w in seen] == [
        f"{name} differs from the run's in {field}: "
        "the run goes on with what was passed"
        for name, field in (("algorithm", "rate"), ("env", "end"))
    ]


def test_a_sum_of_rewards_that_overflows_is_no_obstacle(tmp_path: Path) -> None:
    """Of finite rewards: its row has null for the return."""
    env, settings = toys.Steady(pay=3e37, max_steps=30), {"num_envs": 4}
    settings |= {"total_steps": 16 * 20, "eval_episodes": 0, "chunk_seconds": 1e-6}
    algorithm = toys.Tally(rate=1e-3)
    jp.train(algorithm, env, out=tmp_path, callbacks=[stop_at(10)], **settings)
    run = jp.resume(tmp_path, algorithm, env)
    assert run.env_steps == 16 * 20


def test_the_evaluation_at_the_end_of_a_run_that_is_extended_stays(
    whole: Any, tmp_path: Path
) -> None:
    path = Path(shutil.copytree(whole[0], tmp_path / "run"))
    longer = jp.resume(path, TALLY, FATE, total_steps=16 * 50)
    steps = [steps // 16 for steps, _ in longer.evaluations]
    assert steps == [7, 14, 21, 28, 35, 40, 42, 49, 50]


def test_rates_go_on_from_where_they_were(tmp_path: Path) -> None:
    """Half of a run of 40 updates from 3e-4: the next rate is 1.5e-4, not 3e-4."""
    algorithm = jp.PPO(
        jp.MLP((8,)), rollout_length=8, num_epochs=1, num_minibatches=1,
        learning_rate=3e-4,
    )  # fmt: skip
    settings = {"num_envs": 4, "total_steps": 32 * 40, "eval_episodes": 0}
    jp.train(
        algorithm, jp.make("CartPole-v1"), out=tmp_path / "run", chunk_seconds=1e-6,
        callbacks=[stop_at(20)], **settings,
    )  # fmt: skip
    seen: list[Any] = []
    jp.resume(tmp_path / "run", callbacks=[lambda p: seen.extend(p.rows)])
    assert seen[0]["update"] == 21
    assert seen[0]["env_steps"] == 32 * 21
    np.testing.assert_allclose(seen[0]["learning_rate"], 1.5e-4, rtol=1e-6)
    assert seen[-1]["env_steps"] == 32 * 40


REFUSED = {
    "smaller total": ({"total_steps": 16}, "total_steps 16 must be at least the 320"),
    "another seed": ({"seed": 1}, "no setting that may change: 'seed'; nearest"),
    "num_envs": ({"num_envs": 8}, "no setting that may change: 'num_envs'"),
    "misspelt": ({"total_step": 5}, "no setting that may change: .*total_steps"),
    "no number": ({"total_steps": "9"}, "total_steps '9' must be a whole number"),
    "no callbacks": ({"callbacks": 3}, "callbacks 3 must be a list"),
    "another size": (
        {"algorithm": toys.Tally(rollout_length=5)},
        r"last\['action'\] is int32\(4, 4\), expected int32\(4, 5\)",
    ),
    "another algorithm": (
        {"algorithm": jp.PPO(jp.MLP((4,)), rollout_length=4)},
        r"leaf \.algorithm\.params is .*|leaf \.algorithm\..* is only in the",
    ),
    "another env": (
        {"env": toys.Steady()},
        r"leaf .*env.inner is float32\(4, 2\), expected float32\(4,\)",
    ),
}


@pytest.mark.parametrize(("changes", "words"), REFUSED.values(), ids=list(REFUSED))
def test_what_cannot_go_on_is_refused_and_nothing_is_touched(
    copy: Path, changes: dict[str, Any], words: str
) -> None:
    before = contents(copy)
    with pytest.raises(ValueError, match=words):
        jp.resume(copy, **{"algorithm": TALLY, "env": FATE, **changes})
    assert contents(copy) == before
    places.Lock(copy).release()  # it is free again


def test_places_that_hold_no_run_are_refused(tmp_path: Path) -> None:
    for path, words in (
        (tmp_path / "none", "there is no directory"),
        (tmp_path, "is not a run directory"),
        (5, "directory 5 must be a path"),
    ):
        with pytest.raises(ValueError, match=words):
            jp.resume(path)  # type: ignore[arg-type]
    lines = json.dumps({"format": 2, "num_envs": 4})
    (tmp_path / "config.json").write_text(lines)
    with pytest.raises(ValueError, match=r"config.json is damaged"):
        jp.resume(tmp_path)


def test_a_run_under_way_is_not_resumed(copy: Path) -> None:
    lock = places.Lock(copy)
    with pytest.raises(ValueError, match="is in use: a process trains in it"):
        jp.resume(copy, TALLY, FATE)
    lock.release()


@pytest.mark.parametrize("devices", [1, 2, 8])
def test_on_other_devices_parameters_agree(tmp_path: Path, devices: int) -> None:
    """Five updates on four devices, then three on others: within 1e-5."""
    algorithm = jp.PPO(
        jp.MLP((8,)), rollout_length=8, num_epochs=2, num_minibatches=2,
        normalize_obs=True, normalize_reward=True,
    )  # fmt: skip
    settings = {
        "num_envs": 8, "total_steps": 64 * 8, "eval_episodes": 0, "data": 4,
        "chunk_seconds": 1e-6,
    }  # fmt: skip
    env = jp.make("CartPole-v1")
    whole = jp.train(algorithm, env, **settings)
    jp.train(algorithm, env, out=tmp_path, callbacks=[stop_at(5)], **settings)
    other = jp.resume(tmp_path, data=devices)
    assert len(other.config["devices"]) == devices
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-5),
        whole.params,
        other.params,
    )
    assert other.metrics["update"].tolist() == list(range(1, 9))


def test_as_many_devices_are_used_as_before(tmp_path: Path) -> None:
    tally(tmp_path, 20, num_envs=4, data=2)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"data": None}))
    assert len(jp.resume(tmp_path, TALLY, FATE).config["devices"]) == 2


SCRIPT = """
import sys, jaxrl_par as jp
jp.resume(sys.argv[1])
"""


@pytest.mark.parametrize("name", EVERY)
def test_forty_updates_are_twenty_a_new_process_and_twenty(
    name: str, tmp_path: Path
) -> None:
    """For every algorithm, to the bit; replays are full by then."""
    algorithm, env_name = EVERY[name]
    env, out = jp.make(env_name), tmp_path / "half"
    steps = 4 * algorithm.rollout_length
    settings = {"num_envs": 4, "total_steps": steps * 40, "eval_every": steps * 15}
    settings |= {"eval_episodes": 4, "chunk_seconds": 1e-6}
    whole = jp.train(algorithm, env, out=tmp_path / "whole", **settings)
    jp.train(algorithm, env, out=out, callbacks=[stop_at(20)], **settings)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(out)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert_same((tmp_path / "whole", whole), (out, jp.load(out)))


@pytest.mark.slow
def test_a_run_killed_thirty_times_is_the_undisturbed_one(tmp_path: Path) -> None:
    script = Path(__file__).parent / "killed.py"
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path), "30", "0"],
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
    assert len(seen["points"]) == 30
    assert seen["points"] == sorted(seen["points"])  # it never goes back
    assert len(set(seen["points"])) > 10
    assert seen["torn"] == 0
    one, other = (
        (tmp_path / name, jp.load(tmp_path / name, TALLY, toys.Fate(max_steps=7)))
        for name in ("whole", "killed")
    )
    assert_same(one, other)


def test_the_command_goes_on_and_says_what_changed(copy: Path) -> None:
    """What the package does not know cannot be resumed from the command line."""
    status, _, err = run_here("resume", str(copy))
    assert status == 2
    assert "toys:Tally is not part of jaxrl_par" in err
