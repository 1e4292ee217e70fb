"""Commands in processes of their own: signals, budgets, and what they leave."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import toys

import jaxrl_par as jp

TOTAL = 200_000
SMALL = (
    "ppo CartPole-v1 --num-envs 8 --rollout-length 32 --num-epochs 1 --hidden 8 "
    f"--eval-episodes 4 --chunk-seconds 0.05 --total-steps {TOTAL}"
).split()


def start(*words: str) -> subprocess.Popen[str]:
    kept = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    return subprocess.Popen(
        [sys.executable, "-m", "jaxrl_par", *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=kept,
    )  # fmt: skip


def run(*words: str) -> tuple[int, str, str]:
    """Status, stdout and stderr."""
    process = start(*words)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def train(out: Path, *words: str) -> Sequence[str]:
    return ["train", *SMALL, "--out", str(out), *words]


def wait_for(path: Path, lines: int = 0) -> None:
    """Until a file is there, with so many lines."""
    limit = time.monotonic() + 90
    while not path.exists() or path.read_bytes().count(b"\n") < lines:
        assert time.monotonic() < limit, f"{path} does not come"
        time.sleep(0.02)


def summary(directory: Path) -> dict[str, Any]:
    return json.loads((directory / "summary.json").read_text())


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was never stopped."""
    out = tmp_path_factory.mktemp("whole") / "run"
    status, _, err = run(*train(out))
    assert status == 0, err
    return out


def assert_goes_on(out: Path, whole: Path, *words: str) -> None:
    """Resumed, it is the run that was never stopped, to the bit."""
    status, said, err = run("resume", str(out), *words)
    assert status == 0, err
    assert "CartPole-v1, from" in said
    for name in ("metrics.jsonl", "evaluations.jsonl"):
        assert (out / name).read_bytes() == (whole / name).read_bytes()
    toys.assert_equal(jp.load(out).state, jp.load(whole).state)
    assert summary(out)["status"] == "finished"


@pytest.mark.parametrize(("name", "status"), [("SIGTERM", 143), ("SIGINT", 130)])
def test_a_signal_saves_and_the_run_goes_on_to_the_bit(
    name: str, status: int, whole: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    process = start(*train(out))
    wait_for(out / "timing.jsonl", lines=2)
    process.send_signal(getattr(signal, name))
    _, err = process.communicate(timeout=60)
    assert process.returncode == status
    assert f"{name}: finishing what runs, then saving" in err
    assert "Traceback" not in err
    found = summary(out)
    assert (found["status"], found["reason"]) == ("stopped", name)
    stopped = jp.load(out)
    assert int(stopped.state.update) == found["updates"] == len(stopped.metrics["loss"])
    assert not stopped.evaluations  # there may be no time for one
    assert_goes_on(out, whole)


def test_a_second_signal_leaves_at_once_and_harms_nothing(
    whole: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    process = start(*train(out, "--save-every", "0"))
    wait_for(out / "timing.jsonl")
    for _ in range(2):
        process.send_signal(signal.SIGTERM)
        time.sleep(0.01)  # two at once are one
    process.communicate(timeout=60)
    assert process.returncode == 143
    assert_goes_on(out, whole)  # from its start, if it had no checkpoint


def test_a_signal_before_the_first_update_leaves_nothing(tmp_path: Path) -> None:
    """At once, even within a call that takes minutes."""
    out = tmp_path / "run"
    process = start(*train(out, "--rollout-length", "262144", "--num-epochs", "50"))
    assert process.stdout is not None
    while "plan" not in process.stdout.readline():
        pass
    time.sleep(5)  # it compiles, or is within the first update
    begin = time.monotonic()
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 143
    assert "SIGTERM: left at once; nothing was trained" in err
    assert time.monotonic() - begin < 10
    assert not out.exists()


def test_a_time_budget_ends_with_its_own_status(whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    status, said, _ = run(*train(out, "--max-seconds", "0.01"))
    assert status == 75
    assert f"max_seconds; jaxrl-par resume {out} goes on" in said
    assert summary(out)["reason"] == "max_seconds"
    assert run("resume", str(out))[0] == 75  # it is a setting of the run
    assert_goes_on(out, whole, "--max-seconds", "None")


def test_a_return_that_is_reached_ends_the_run(tmp_path: Path) -> None:
    out = tmp_path / "run"
    status, said, _ = run(*train(out, "--stop-at-return", "9"))
    assert status == 0
    assert f"stop_at_return; jaxrl-par resume {out} --stop-at-return None goes" in said
    found = summary(out)
    assert found["reason"] == "stop_at_return"
    assert found["evaluation"]["mean_return"] >= 9
    assert json.loads((out / "config.json").read_text())["eval_every"] == TOTAL // 20
    before = jp.load(out)
    assert before.env_steps < TOTAL


def test_a_run_that_is_done_can_be_made_longer(whole: Path, tmp_path: Path) -> None:
    out = Path(shutil.copytree(whole, tmp_path / "run"))
    status, said, _ = run("resume", str(out))
    assert status == 0
    assert "all are made: --total-steps adds to them" in said
    more = str(2 * TOTAL)
    status, said, _ = run("resume", str(out), "--total-steps", more, "--data", "1")
    assert status == 0
    assert f"(before: {TOTAL:,}; rates that fall over the run now fall towards" in said
    assert jp.load(out).env_steps >= 2 * TOTAL
    status, _, err = run("resume", str(out), "--total-steps", "9")
    assert (status, "must be at least the" in err) == (2, True)


def test_saving_evaluating_and_logging_every_update_ends(tmp_path: Path) -> None:
    """Five updates, each with an evaluation, a checkpoint and a log."""
    out, begin = tmp_path / "run", time.monotonic()
    words = "--total-steps 1280 --eval-every 256 --save-every 0 --log tensorboard"
    status, _, err = run(*train(out, *words.split()))
    assert status == 0, err
    assert time.monotonic() - begin < 120
    loaded = jp.load(out)
    assert [steps for steps, _ in loaded.evaluations] == [256 * n for n in range(1, 6)]
    assert list((out / "tensorboard").iterdir())


def test_two_processes_do_not_write_one_directory(tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = start(*train(out, "--total-steps", "1e9"))
    wait_for(out / "timing.jsonl")
    status, _, err = run("resume", str(out))
    assert (status, "is in use: a process trains in it" in err) == (2, True)
    process.kill()
    process.communicate(timeout=60)


def test_a_full_disk_ends_the_run_and_leaves_the_last_checkpoint(
    tmp_path: Path,
) -> None:
    """A real one, of two megabytes, where one may be mounted."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no file system may be mounted here")
    out = disk / "run"
    process = start(*train(out, "--save-every", "0", "--total-steps", "1e9"))
    try:
        wait_for(out / "timing.jsonl")
        while not any((out / "checkpoints").glob("0*")):
            time.sleep(0.02)
        path = disk / "ballast"
        with contextlib.suppress(OSError), open(path, "wb", buffering=0) as ballast:
            while True:
                ballast.write(bytes(4096))
        _, err = process.communicate(timeout=90)
        assert process.returncode == 2
        # Threads of orbax may write at the same time, into the same line.
        said = re.findall("jaxrl-par: err.*", err)
        assert len(said) == 1
        assert "No space left on device" in said[0] or "RESOURCE_EXHAUSTED" in said[0]
        text = (out / "metrics.jsonl").read_bytes()
        assert text.endswith(b"\n")
        update = int(jp.load(out).state.update)
        path.unlink()
        assert run("resume", str(out), "--max-seconds", "0.01")[0] == 75
        assert int(jp.load(out).state.update) > update
    finally:
        process.kill()
        process.wait()
        subprocess.run(["umount", str(disk)], check=True)
