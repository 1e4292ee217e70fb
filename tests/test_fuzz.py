"""Hundreds of configurations: each runs, or is refused in time, and none by halves.

Of every setting there are values that work, are of the wrong sign, size or type, or
are no numbers at all; several are put together at random. The sequence is the same
in every run; HYPOTHESIS_PROFILE=random draws others.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import pytest
import toys
from commands import run_here
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

import jaxrl_par as jp
from jaxrl_par.train.run_directory import RunDirectory

EXAMPLES = 110
SECONDS = 10.0  # until a refusal
LAX = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=os.environ.get("HYPOTHESIS_PROFILE") != "random",
    database=None,
    suppress_health_check=list(HealthCheck),
)

NUMBERS = ["0", "-1", "-0", "1", "2", "3", "7", "1.5", "1e3", "1e400", "-1e-9", "nan",
           "inf", "None", "", " ", "x", "0x10", "1_0", "²", "٣", "1,5", "True", "--",
           "99999999999999999999", "1e-50", "4294967296", "[1]", "1;2",
           "\udcff"]  # fmt: skip
FLAGS = ["--num-envs", "--total-steps", "--seed", "--eval-every", "--eval-episodes",
         "--pool-size", "--data", "--stop-at-return", "--max-seconds",
         "--max-rollbacks", "--chunk-seconds", "--save-every", "--keep-checkpoints",
         "--rollout-length", "--num-epochs", "--num-minibatches", "--num-groups",
         "--lr", "--gamma", "--gae-lambda", "--clip-eps", "--value-clip",
         "--entropy-coef", "--max-grad-norm", "--adam-eps", "--target-kl",
         "--adaptive-kl", "--microbatch-size", "--hidden", "--initial-log-std",
         "--env.gravity", "--env.max-steps", "--env.force"]  # fmt: skip
WORDS = [["--reset", "never"], ["--reset", "exact"], ["--device", "tpu"],
         ["--device", "cpu"], ["--on-nonfinite", "skip"], ["--on-nonfinite", "x"],
         ["--network", "cnn"], ["--network", "mlp"], ["--activation", "relu"],
         ["--activation", "tahn"], ["--no-anneal"], ["--anneal", "yes"],
         ["--num-env", "4"], ["--squash"], ["--normalize-obs"], ["-h1"], ["x"],
         ["--out"], ["--log", "wand"], ["--log"], ["--outliers", "drop"]]  # fmt: skip
NAMES = [["ppo", "CartPole-v1"]] * 8 + [
    ["ppo", "Pendulum-v1"], ["PPO", "CartPole-v1"], ["ppo", "CartPole"], ["ppo"], [],
    ["ppo", "gymnax:"], ["", ""], ["ppo", "../x"], ["ppo", "brax:ant"],
]  # fmt: skip
OUTS = ["run", "a/b/c", "über maß", "x" * 300, "file/run", "full", "file", "", ".",
        "nul\0byte", "\udcff", "new\nline"]  # fmt: skip
SMALL = ["--num-envs", "4", "--rollout-length", "4", "--total-steps", "32", "--hidden",
         "4", "--num-epochs", "1", "--num-minibatches", "1", "--eval-episodes", "2",
         "--max-seconds", "5"]  # fmt: skip


@contextlib.contextmanager
def place() -> Iterator[Path]:
    """A directory with a file and a full directory, to work in."""
    before, here = Path.cwd(), Path(tempfile.mkdtemp())
    (here / "file").touch()
    (here / "full").mkdir()
    (here / "full" / "x").touch()
    os.chdir(here)
    try:
        yield here
    finally:
        os.chdir(before)
        shutil.rmtree(here)


def seen(here: Path) -> set[str]:
    return {str(path.relative_to(here)) for path in here.rglob("*")}


flag = st.tuples(st.sampled_from(FLAGS), st.sampled_from(NUMBERS)).map(list)
some = st.lists(flag | st.sampled_from(WORDS), min_size=0, max_size=3)


@LAX
@given(st.sampled_from(NAMES), some, st.sampled_from(["run"] * 20 + OUTS))
def test_the_command_runs_or_refuses(
    names: list[str], changes: list[list[str]], out: str
) -> None:
    words = ["train", *names, *SMALL, *(w for change in changes for w in change)]
    with place() as here:
        before, begin = seen(here), time.monotonic()
        status, said, error = run_here(*words, "--out", out)
        elapsed = time.monotonic() - begin
        event(f"status {status}")
        if status == 2:
            assert seen(here) == before
            assert (said + error).strip()
            assert "Traceback" not in error
            assert elapsed < SECONDS
        elif status == 0 and "plan" not in said:
            assert "usage" in said  # help was asked for
        else:
            assert status in (0, 3, 75), (status, error)
            assert jp.load(out).env_steps >= (0 if status == 3 else 4)
            assert (Path(out) / "summary.json").exists()
            jax.clear_caches()  # else the programs of a hundred runs stay


VALUES: dict[str, list[Any]] = {
    "num_envs": [4, 0, -4, 4.0, "4", None, True, 2**40, [4]],
    "total_steps": [32, 1, 0, -1, 1e3, "32", None, 2**70, float("nan")],
    "seed": [0, -1, 2**32, 1.5, "0", None],
    "eval_every": [None, 16, 1, 0, -1, 0.5, "x"],
    "eval_episodes": [0, 1, 2, -1, None, 2.5, 2**60],
    "reset": ["pool", "exact", "never", None, 3],
    "pool_size": [1, 8, 0, "8", None],
    "data": [None, 1, 2, 3, 0, -1, 99, "2"],
    "device": ["auto", "cpu", "gpu", "", None, 3],
    "stop_at_return": [None, 0.0, -1e9, float("nan"), "x", [1], 1e300],
    "max_seconds": [None, 1e-9, 5, 0, -1, float("inf"), "5", True],
    "on_nonfinite": ["stop", "skip", "rollback", "ignore", None],
    "max_rollbacks": [1, 0, None, 2.0],
    "chunk_seconds": [1e-6, 0.5, 0, -1, None, "1"],
    "save_every": [0, 60, -1, None, float("inf"), {}],
    "keep_checkpoints": [1, 2, 0, -1, None, "all"],
    "callbacks": [(), [print], None, 3, [3], {}],
    "num_env": [4],
}
CHANGES = st.lists(
    st.sampled_from(list(VALUES)).flatmap(
        lambda name: st.tuples(st.just(name), st.sampled_from(VALUES[name]))
    ),
    max_size=3,
).map(dict)
AGENTS = [toys.Tally()] * 8 + [toys.Tally, "ppo", None, object(), 3]
WORLDS = [toys.Fate(max_steps=5)] * 8 + [toys.Fate, "CartPole-v1", None, object()]


@LAX
@given(
    st.sampled_from(AGENTS),
    st.sampled_from(WORLDS),
    CHANGES,
    st.sampled_from(["run"] * 9 + [None] * 3 + [5, b"run", *OUTS]),
)
def test_train_runs_or_refuses(
    algorithm: Any, env: Any, changes: dict[str, Any], out: Any
) -> None:
    given_ = {"num_envs": 4, "total_steps": 32, "eval_episodes": 0} | changes
    with place() as here, warnings.catch_warnings():
        warnings.simplefilter("error")
        before, begin = seen(here), time.monotonic()
        try:
            run = jp.train(algorithm, env, out=out, **given_)
        except ValueError as error:
            assert str(error)
            assert seen(here) == before
            assert time.monotonic() - begin < SECONDS
            return
        event("ran")
        assert run.env_steps >= 4
        if out is not None:
            loaded = jp.load(out, algorithm, env)
            toys.assert_equal(loaded.state, run.state)
        jax.clear_caches()


def test_a_refusal_names_what_was_wrong(tmp_path: Path) -> None:
    """The argument, its value and the rule, whatever is wrong."""
    for name, values in VALUES.items():
        for value in values:
            try:
                config = jp.TrainConfig(**{name: value})
            except (ValueError, TypeError) as error:
                assert name in str(error)
                assert repr(value) in str(error) or isinstance(error, TypeError)
            else:
                RunDirectory(tmp_path, {}, config)


@pytest.mark.parametrize("path", [5, None, b"x", "nul\0byte"])
def test_what_is_no_path_is_refused_everywhere(path: Any) -> None:
    run = jp.train(toys.Tally(), toys.Fate(), num_envs=4, total_steps=4)
    for function in (jp.load, jp.resume, run.save):
        with pytest.raises(ValueError, match=r"directory .* must be a path"):
            function(path)
