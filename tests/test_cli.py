"""The command line: what it accepts, refuses, prints and leaves behind."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import TRAIN, run_here
from PIL import Image

import jaxrl_par as jp
from jaxrl_par.cli import main
from jaxrl_par.cli.train import read
from jaxrl_par.networks.actor_critic import CNN, MLP
from jaxrl_par.presets import PRESETS


@pytest.fixture(scope="module", autouse=True)
def preset() -> Iterator[None]:
    """A small preset, whatever the package's is, so that runs are short."""
    algorithm = jp.PPO(MLP(), rollout_length=32, num_epochs=2, learning_rate=2e-3)
    small = jp.Preset(algorithm, {"num_envs": 8, "total_steps": 8192}, "test")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PRESETS, ("ppo", "CartPole-v1"), small)
        yield


@pytest.fixture(scope="module")
def trained(preset: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A short run's directory and what the command printed."""
    home = tmp_path_factory.mktemp("cli")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        done = run_here(
            *TRAIN, "--total-steps", "4_096", "--eval-every", "2e3", "--seed", "3",
            "--eval-episodes", "4", "--lr", "1e-3", "--env.gravity", "5",
            "--out", "run",
        )  # fmt: skip
    assert done[0] == 0, done
    return home / "run", done[1]


def run_apart(
    *argv: str, **environment: str
) -> tuple[subprocess.CompletedProcess[str], float]:
    """A command in a process of its own, as a user has it; and its CPU seconds."""
    kept = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, *argv],
        env=kept | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return done, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.parametrize(("algorithm", "env"), list(PRESETS))
def test_without_flags_the_preset_is_used_exactly(algorithm: str, env: str) -> None:
    choices = read([algorithm, env])
    expected = PRESETS[algorithm, env]
    assert choices.algorithm == expected.algorithm
    assert choices.config == jp.TrainConfig(**expected.settings)
    assert choices.env == jp.make(env)
    assert choices.changed == {}
    assert "preset" in choices.source


def test_without_a_preset_the_defaults_are_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(PRESETS, ("ppo", "CartPole-v1"))
    choices = read(["ppo", "CartPole-v1"])
    assert choices.algorithm == jp.PPO()
    assert choices.config == jp.TrainConfig()
    assert "no preset" in choices.source


def test_flags_change_what_they_name_and_nothing_else() -> None:
    words = (
        "--total-steps 1e5 --num-envs=12 --lr 1e-5 --no-anneal --value-clip 0.3 "
        "--env.gravity 5 --env.max-steps None --hidden 32 16 --activation relu"
    )
    choices = read(["ppo", "CartPole-v1", *words.split()])
    assert choices.changed == {
        "total_steps": 100_000,
        "num_envs": 12,
        "learning_rate": 1e-5,
        "anneal": False,
        "value_clip": 0.3,
        "hidden": (32, 16),
        "activation": "relu",
        "env.gravity": 5.0,
        "env.max_steps": None,
    }
    assert choices.config.total_steps == 100_000
    assert choices.config.num_envs == 12
    assert choices.algorithm.learning_rate == 1e-5
    assert choices.algorithm.network == MLP(hidden=(32, 16), activation="relu")
    assert choices.env == jp.make("CartPole-v1", gravity=5.0, max_steps=None)


def test_another_network_starts_from_its_own_defaults() -> None:
    choices = read(["ppo", "CartPole-v1", "--network", "cnn", "--hidden", "64"])
    assert choices.algorithm.network == CNN(hidden=(64,))
    assert choices.changed == {"network": "cnn", "hidden": (64,)}
    assert read(["ppo", "CartPole-v1", "--network=mlp"]).changed == {}


def test_train_says_what_runs_and_what_came_of_it(trained: tuple[Path, str]) -> None:
    _, out = trained
    for words in (
        "preset for ppo on CartPole-v1", "env.gravity 5.0", "cpu", "compiled  in",
        "steps/s", "return", "greedy episodes", "left",
    ):  # fmt: skip
        assert words in out
    assert out.splitlines()[-1].split() == ["run", "run"]


def test_the_settings_written_are_those_used(trained: tuple[Path, str]) -> None:
    directory, _ = trained
    config = json.loads((directory / "config.json").read_text())
    assert config["total_steps"] == 4096
    assert config["seed"] == 3
    assert config["algorithm"]["fields"]["learning_rate"] == 1e-3
    assert config["env"]["fields"]["gravity"] == 5.0
    assert config["versions"]["jax"]
    assert config["devices"]
    assert len(config["commit"].rstrip("+")) == 40
    choices = read(["ppo", "CartPole-v1", "--lr", "1e-3", "--env.gravity", "5"])
    run = jp.load(directory)
    assert run.algorithm == choices.algorithm
    assert run.env == choices.env


def test_train_leaves_a_whole_directory(trained: tuple[Path, str]) -> None:
    directory, _ = trained
    found = {str(p.relative_to(directory)) for p in directory.rglob("*") if p.is_file()}
    states = {name for name in found if name.startswith("checkpoints/")}
    assert found - states == {
        "config.json",
        "metrics.jsonl",
        "timing.jsonl",
        "evaluations.jsonl",
        "summary.json",
        "curves.png",
    }
    assert any(name.endswith("/manifest.json") for name in states)
    with Image.open(directory / "curves.png") as picture:
        assert picture.width > 300
    run = jp.load(directory)
    assert run.env_steps >= 4096
    assert len(run.metrics["update"]) == int(run.state.update)
    assert [steps >= 2000 for steps, _ in run.evaluations] == [True] * 2
    summary = json.loads((directory / "summary.json").read_text())
    assert run.evaluation is not None
    assert summary["evaluation"]["mean_return"] == run.evaluation.mean_return


def test_eval_plays_what_the_run_would(trained: tuple[Path, str]) -> None:
    directory, _ = trained
    status, out, _ = run_here("eval", str(directory), "--episodes", "6", "--seed", "2")
    assert status == 0
    expected = jp.load(directory).evaluate(6, 2)
    assert f"{expected.mean_return:.2f} ± {expected.returns.std():.2f} over 6" in out


def test_eval_takes_the_best_state_if_it_is_asked_for(
    trained: tuple[Path, str], tmp_path: Path
) -> None:
    directory = Path(shutil.copytree(trained[0], tmp_path / "run"))
    evaluations = jp.load(directory).evaluations
    best = max(evaluations, key=lambda pair: pair[1].mean_return)[0]
    words = ("eval", str(directory), "--episodes", "2", "--checkpoint")
    assert f"after {best:,} steps" in run_here(*words, "best")[1]
    last = evaluations[-1][0]
    assert f"after {last:,} steps" in run_here(*words, "newest")[1]


def test_eval_draws_an_episode(trained: tuple[Path, str], tmp_path: Path) -> None:
    path = tmp_path / "made" / "run.gif"
    status, out, _ = run_here(
        "eval", str(trained[0]), "--episodes", "1", "--render", str(path)
    )
    assert status == 0
    assert str(path) in out
    with Image.open(path) as picture:
        assert getattr(picture, "n_frames", 1) > 5


def test_plot_draws(trained: tuple[Path, str], tmp_path: Path) -> None:
    status, out, _ = run_here(
        "plot", str(trained[0]), "--out", str(tmp_path / "curves.svg")
    )
    assert status == 0
    assert "CartPole-v1: PPO" in out
    assert "<svg" in (tmp_path / "curves.svg").read_text()


def test_list_names_everything() -> None:
    status, out, _ = run_here("list")
    assert status == 0
    for name in ("ppo", *jp.env_names(), *(f"{a} {e}" for a, e in PRESETS)):
        assert name in out
    assert run_here("list", "environments")[1].split() == list(jp.env_names())


def test_doctor_reports(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    for words in ("python", "CPU cores", "jax ", "gymnax", "compiled", "cpu:0"):
        assert words in out


def test_help_and_version() -> None:
    assert "train" in run_here("--help")[1]
    assert "ALGORITHM" in run_here("train", "--help")[1]
    status, out, _ = run_here(*TRAIN, "--help")
    assert status == 0
    for flag in ("--num-envs", "--lr", "--hidden", "--env.gravity", "--out"):
        assert flag in out
    assert jp.__version__ in run_here("--version")[1]


def test_an_interrupted_command_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("jaxrl_par.cli.train.read", interrupt)
    assert run_here(*TRAIN) == (130, "", "jaxrl-par: interrupted\n")


def test_a_missing_gpu_is_refused_with_the_cure(tmp_path: Path) -> None:
    done, seconds = run_apart(
        "-m", "jaxrl_par", *TRAIN, "--device", "gpu", "--out", str(tmp_path / "x"),
        JAX_PLATFORMS="cpu",
    )  # fmt: skip
    assert done.returncode == 2
    for word in ("no gpu backend", "only cpu", "jaxrl_par[cuda12]"):
        assert word in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") <= 2
    assert not (tmp_path / "x").exists()
    assert seconds < 20


def test_help_imports_nothing_that_it_does_not_need() -> None:
    heavy = ("matplotlib", "PIL", "gymnax", "pandas", "tyro", "gymnasium")
    code = (
        "import sys; from jaxrl_par.cli import main; main(['--help']); "
        f"print([m for m in {heavy} if m in sys.modules])"
    )
    done, _ = run_apart("-c", code)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("samples", "data", "devices"), [(100, None, 1), (100, 2, 2), (100_000, None, 2)]
)
def test_the_backend_starts_as_the_size_asks(
    samples: int, data: int | None, devices: int
) -> None:
    code = (
        "import os, jax; from jaxrl_par.cli.startup import prepare_backend\n"
        "os.sched_getaffinity = lambda pid: {0, 1}\n"
        f"prepare_backend({samples}, {data}, 'auto')\n"
        "print(len(jax.local_devices()))\n"
        "prepare_backend(100, None, 'auto')\n"  # the backend runs: nothing happens
        "print(len(jax.local_devices()))\n"
    )
    done, _ = run_apart("-c", code, JAX_PLATFORMS="cpu")
    assert done.stdout.split() == [str(devices)] * 2


def test_there_is_a_row_for_each_update(trained: tuple[Path, str]) -> None:
    lines = (trained[0] / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["update"] for row in rows] == list(range(1, len(rows) + 1))
    timing = (trained[0] / "timing.jsonl").read_text().splitlines()
    last = json.loads(timing[-1])
    assert last["seconds"] > 0
    assert last["update"] == len(rows)
