"""Run directories: what a run writes, when, and what `load` makes of it."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl_par as jp
from jaxrl_par.train import places, run_directory
from jaxrl_par.train.places import default_directory
from jaxrl_par.train.run_directory import RunDirectory

ALGORITHM = jp.PPO(
    network=jp.MLP(hidden=(4,)), rollout_length=8, num_epochs=1, num_minibatches=1
)
# A pole that cannot fall: every episode is cut after 100 steps, with return 100.
STEADY = jp.make("CartPole-v1", x_threshold=1e9, angle_threshold=1e9, max_steps=100)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, jp.Run]:
    """A run of 13 updates of 8 steps in one environment, and its directory."""
    out = tmp_path_factory.mktemp("run") / "steady"
    run = jp.train(
        ALGORITHM, STEADY, out=out, num_envs=1, total_steps=104, eval_every=48,
        eval_episodes=2,
    )  # fmt: skip
    return out, run


@pytest.fixture
def copy(saved: tuple[Path, jp.Run], tmp_path: Path) -> Path:
    """A copy of the directory, to be damaged."""
    target = tmp_path / "copy"
    return Path(shutil.copytree(saved[0], target, dirs_exist_ok=True))


def progress(**changes: Any) -> jp.Progress:
    """A point of a run, made by hand."""
    row = {"update": 1, "env_steps": 10, "episode_count": 0, "loss": 0.5}
    state: Any = {"x": jnp.arange(3)}
    base = jp.Progress(
        update=1, env_steps=10, frames=10, total_steps=100, seconds=2.0,
        compile_seconds=3.0, rows=[row], evaluation=None, finished=False, _state=state,
    )  # fmt: skip
    return dataclasses.replace(base, **changes)


def write(path: Path, description: Any = None, **settings: Any) -> RunDirectory:
    """A directory to be written."""
    return RunDirectory(path, description or {}, jp.TrainConfig(**settings))


def rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a file, read by a parser that refuses bare NaN and infinity."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    return [json.loads(x, parse_constant=refuse) for x in path.read_text().splitlines()]


def test_updates_in_which_no_episode_ended_have_no_return(
    saved: tuple[Path, jp.Run],
) -> None:
    found = rows(saved[0] / "metrics.jsonl")
    assert [row["update"] for row in found] == list(range(1, 14))
    for row in found[:12]:
        assert row["episode_count"] == 0
        assert "episode_return" not in row
    assert found[12]["episode_count"] == 1
    assert found[12]["episode_return"] == 100
    assert found[12]["episode_length"] == 100


def test_load_gives_back_the_run(saved: tuple[Path, jp.Run]) -> None:
    directory, run = saved
    loaded = jp.load(directory)
    assert loaded.algorithm == run.algorithm
    assert loaded.env == run.env
    assert loaded.env_steps == run.env_steps == 104
    assert loaded.seconds == pytest.approx(run.seconds)
    assert set(loaded.metrics) == set(run.metrics)
    for name, column in run.metrics.items():
        np.testing.assert_array_equal(loaded.metrics[name], column, err_msg=name)
        assert loaded.metrics[name].dtype == column.dtype
    jax.tree.map(np.testing.assert_array_equal, loaded.params, run.params)
    assert [steps for steps, _ in loaded.evaluations] == [48, 96, 104]
    for (_, found), (_, made) in zip(loaded.evaluations, run.evaluations, strict=True):
        np.testing.assert_array_equal(found.returns, made.returns)
        np.testing.assert_array_equal(found.lengths, made.lengths)
    obs = jnp.zeros((5, 4))
    np.testing.assert_array_equal(loaded.policy(obs), run.policy(obs))


def test_the_summary_is_of_the_run(saved: tuple[Path, jp.Run]) -> None:
    summary = json.loads((saved[0] / "summary.json").read_text())
    assert summary["env_steps"] == 104
    assert summary["updates"] == 13
    assert summary["stopped_early"] is False
    assert summary["training_return"] == 100
    assert summary["evaluation"]["episodes"] == 2
    assert summary["evaluation"]["mean_return"] == 100
    assert summary["evaluation"]["std_return"] == 0


def test_a_run_that_a_callback_stops_is_kept(tmp_path: Path) -> None:
    jp.train(
        ALGORITHM, STEADY, out=tmp_path / "run", callbacks=[lambda _: jp.STOP],
        num_envs=1, total_steps=104, eval_episodes=2,
    )  # fmt: skip
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["stopped_early"] is True
    assert summary["updates"] == 1
    assert summary["evaluation"]["episodes"] == 2
    assert jp.load(tmp_path / "run").env_steps == 8
    assert not (tmp_path / "run" / "curves.png").exists()  # no episode ended


def test_nothing_is_created_before_the_first_update(tmp_path: Path) -> None:
    out = tmp_path / "a" / "b"
    directory = write(out)
    assert not list(tmp_path.iterdir())
    directory.append(progress())
    assert rows(out / "metrics.jsonl")
    with pytest.raises(ValueError, match="num_envs"):
        jp.train(ALGORITHM, STEADY, out=tmp_path / "c", num_envs=0)
    assert not (tmp_path / "c").exists()


def test_rows_are_on_disk_after_each_call_and_only_appended(tmp_path: Path) -> None:
    directory = write(tmp_path / "run")
    path = tmp_path / "run" / "metrics.jsonl"
    directory.append(progress())
    first = path.read_text()
    directory.append(progress(update=2))
    assert path.read_text().startswith(first)
    assert len(rows(path)) == 2


def test_numbers_that_json_lacks_are_null(tmp_path: Path) -> None:
    row = {"update": 1, "env_steps": 8, "episode_count": 0, "loss": float("nan")}
    row |= {"norm": float("inf")}
    description = {"high": [float("inf"), 1.0]}
    write(tmp_path / "run", description).append(progress(rows=[row]))
    (found,) = rows(tmp_path / "run" / "metrics.jsonl")
    assert found["loss"] is None
    assert found["norm"] is None
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["high"] == [None, 1.0]


def test_the_state_is_saved_once_in_a_while_at_the_end_and_at_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr(run_directory.time, "monotonic", lambda: clock[0])
    directory = write(tmp_path / "run", save_every=60)
    directory.append(progress())
    for passed, due in ((0, False), (4, False), (5, True)):
        clock[0] = 100.0 + passed
        assert directory.save_due(progress()) is due
    directory.save(progress())
    for passed, due in ((10, False), (64, False), (65, True), (5, False)):
        clock[0] = 100.0 + passed
        assert directory.save_due(progress(update=2)) is due
    assert not directory.save_due(progress(update=2))
    assert directory.save_due(progress(update=2, finished=True))
    for update, value, due in ((3, 5.0, True), (4, 5.0, False), (5, 6.0, True)):
        result = jp.Evaluation(np.array([value]), np.array([1]), 0)
        point = progress(update=update, evaluation=result)
        assert directory.save_due(point) is due
        if due:
            directory.save(point)
    directory.close()
    found = sorted(int(path.name) for path in (tmp_path / "run/checkpoints").iterdir())
    assert found == [3, 5]
    assert write(tmp_path / "other", save_every=0).save_due(progress())


def test_a_directory_that_is_written_is_locked(tmp_path: Path) -> None:
    directory = write(tmp_path / "run")
    directory.append(progress())
    with pytest.raises(ValueError, match=r"run' is in use: a process trains in it"):
        places.Lock(tmp_path / "run")
    directory.close()
    places.Lock(tmp_path / "run").release()


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("full", "place.*not empty"),
        ("file", "place.*is a file"),
        ("below a file", "place.*cannot be written"),
        ("forbidden", "place.*cannot be written"),
    ],
)
def test_a_place_that_cannot_be_used_is_refused_by_name(
    kind: str, words: str, tmp_path: Path
) -> None:
    out = tmp_path / "place"
    if kind == "full":
        out.mkdir()
        (out / "x").touch()
    elif kind == "forbidden":
        out = Path("/proc/place")  # whose permissions would allow it to root
    else:
        out.touch()
        out = out / "x" if kind == "below a file" else out
    with pytest.raises(ValueError, match=words):
        jp.train(ALGORITHM, STEADY, out=out, num_envs=1)


def test_an_empty_directory_is_used(tmp_path: Path) -> None:
    write(tmp_path).append(progress())
    assert (tmp_path / "config.json").exists()


def test_a_place_taken_meanwhile_is_refused(tmp_path: Path) -> None:
    one, two = write(tmp_path / "run"), write(tmp_path / "run")
    one.append(progress())
    with pytest.raises(ValueError, match="not empty"):
        two.append(progress())


def test_default_directories_are_new_and_say_what_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(places.time, "strftime", lambda _: "now")
    first = default_directory("ppo", "gymnax:Catch-bsuite", 3)
    assert first == Path("runs/gymnax-Catch-bsuite-ppo-seed3-now")
    first.mkdir(parents=True)
    second = default_directory("ppo", "gymnax:Catch-bsuite", 3)
    assert second == Path("runs/gymnax-Catch-bsuite-ppo-seed3-now-2")


def test_the_recent_return_weighs_episodes() -> None:
    # 60 episodes of 2 and 40 of 7 are a hundred; what was before does not count.
    found = run_directory.recent_return([(50, 1000.0), (60, 2.0), (40, 7.0)])
    assert found == pytest.approx((60 * 2 + 40 * 7) / 100)
    assert run_directory.recent_return([]) is None


def test_a_last_line_cut_short_is_left_out(copy: Path) -> None:
    path = copy / "metrics.jsonl"
    path.write_text(path.read_text() + '{"update": 14, "env_st')
    assert len(jp.load(copy).metrics["update"]) == 13


def _spoil_config(name: str, value: Any = None) -> Any:
    def spoil(directory: Path) -> None:
        path = directory / "config.json"
        config = json.loads(path.read_text())
        if value is None:
            del config[name]
        else:
            config[name] = value
        path.write_text(json.dumps(config))

    return spoil


ROW = '{"update": 1, "env_steps": 2, "episode_count": 0}'
DAMAGE = {
    "no config": (lambda d: (d / "config.json").unlink(), "config.json"),
    "no JSON": (lambda d: (d / "config.json").write_text("{"), "config.json.*damaged"),
    "no object": (lambda d: (d / "config.json").write_text("3"), "format"),
    "no format": (_spoil_config("format"), "format"),
    "other format": (_spoil_config("format", 99), "format 99"),
    "no num_envs": (_spoil_config("num_envs"), "damaged.*num_envs"),
    "no algorithm": (_spoil_config("algorithm"), "damaged.*algorithm"),
    "odd algorithm": (_spoil_config("algorithm", {"x": 1}), "damaged"),
    "odd reset": (_spoil_config("reset", "never"), "never"),
    "foreign env": (_spoil_config("env", {"type": "mine:E", "fields": {}}), "mine:E"),
    "no state": (lambda d: shutil.rmtree(d / "checkpoints"), "checkpoints can be used"),
    "other sizes": (_spoil_config("num_envs", 2), "expected"),
    "num_envs as text": (_spoil_config("num_envs", "4"), "num_envs '4' must be"),
    "broken row": (
        lambda d: (d / "metrics.jsonl").write_text(f"{ROW}\n{{\n{ROW}\n"),
        "metrics.jsonl.*line 2",
    ),
    "a number for a row": (
        lambda d: (d / "metrics.jsonl").write_text("1\n"),
        "metrics.jsonl is damaged: line 1: 1 is no object",
    ),
    "text for a number": (
        lambda d: (d / "metrics.jsonl").write_text(f'{ROW[:-1]}, "loss": "low"}}\n'),
        "metrics.jsonl is damaged: line 1: loss 'low'",
    ),
    "an evaluation of text": (
        lambda d: (d / "evaluations.jsonl").write_text(
            '{"env_steps": 1, "returns": ["x"], "lengths": [1], "unfinished": 0}\n'
        ),
        "evaluations.jsonl is damaged: could not convert",
    ),
    "an evaluation of nothing": (
        lambda d: (d / "evaluations.jsonl").write_text('{"a": 1}\n'),
        "evaluations.jsonl is damaged: line 1: it has no env_steps, returns",
    ),
}


@pytest.mark.parametrize(("spoil", "words"), DAMAGE.values(), ids=list(DAMAGE))
def test_damage_is_named(copy: Path, spoil: Any, words: str) -> None:
    spoil(copy)
    with pytest.raises(ValueError, match=words):
        jp.load(copy)


def test_a_directory_of_runs_is_not_a_run(saved: tuple[Path, jp.Run]) -> None:
    with pytest.raises(ValueError, match=r"it holds runs: .*steady"):
        jp.load(saved[0].parent)
    with pytest.raises(ValueError, match="no directory"):
        jp.load(saved[0] / "nowhere")
