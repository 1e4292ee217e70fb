"""What the command line refuses: at once, in one message, leaving nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import TRAIN, run_here

from jaxrl_par.cli import main

REFUSED = [
    (["--num-envs", "0"], ["num_envs", "0"]),
    (["--num-envs", "-4"], ["num_envs", "-4"]),
    (["--num-envs", "1.5"], ["--num-envs", "1.5", "int"]),
    (["--total-steps", "1e5.5"], ["--total-steps", "1e5.5", "int"]),
    (["--lr", "abc"], ["--lr", "abc", "float"]),
    (["--lr", "nan"], ["--lr", "nan", "finite"]),
    (["--lr", "-1"], ["learning_rate", "-1"]),
    (["--gamma", "1.5"], ["gamma", "1.5"]),
    (["--max-grad-norm", "inf"], ["--max-grad-norm", "finite"]),
    (["--num-env", "3"], ["--num-env", "--num-envs"]),
    (["--channels", "3"], ["--channels"]),
    (["--num-minibatches", "7"], ["num_minibatches 7"]),
    (["--data", "7", "--num-envs", "8"], ["data 7"]),
    (["--data", "99"], ["data 99"]),
    (["--device", "abacus"], ["--device", "abacus", "gpu"]),
    (["--hidden", "0"], ["hidden", "0"]),
    (["--activation", "tan"], ["--activation", "tanh"]),
    (["--network", "cnn"], ["CNN", "image"]),
    (["--network", "nn"], ["--network", "cnn"]),
    (["--seed", "-1"], ["seed", "-1"]),
    (["--env.gravty", "3"], ["--env.gravty", "--env.gravity"]),
    (["--env.gravity", "nan"], ["--env.gravity", "finite"]),
    (["--env.max-steps", "0"], ["max_steps 0"]),
    (["--env.half-length", "0"], ["--env.half-length 0.0", "finite"]),
    (["--out", "/proc/run"], ["/proc", "cannot be written"]),
    (["--out", "x" * 300], ["out 'xxx", "too long"]),
    (["--env.max-steps", "1e10"], ["max_steps 10000000000", "less than 2,147,483,648"]),
    (["--num-envs", "1e9", "--num-minibatches", "3"], ["num_minibatches 3"]),
    (["--num-envs", "1e12"], ["num_envs 1000000000000", "less than"]),
    (["--num-envs", "1e9"], ["num_envs * rollout_length", "less than"]),
    (["--total-steps", "1e19"], ["total_steps", "less than"]),
    (["--total-steps", "1e14"], ["total_steps 100000000000000", "2^31 updates"]),
    (["--eval-episodes", "1e12"], ["eval_episodes", "less than"]),
    (["--hidden", "1e12"], ["hidden", "1048576"]),
    (["--lr", "1e39"], ["learning_rate 1e+39", "as float32 too"]),
]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        *(([*TRAIN, *more], words) for more, words in REFUSED),
        (["train"], ["usage"]),
        (["train", "ppo"], ["algorithm", "environment"]),
        (["train", "--seed", "0"], ["algorithm", "environment"]),
        (["train", "pp", "CartPole-v1"], ["'pp'", "ppo"]),
        (["train", "ppo", "CartPol-v1"], ["CartPol-v1", "CartPole-v1"]),
        (["train", "ppo", "nosuite:ant"], ["nosuite", "gymnax"]),
        (["trian"], ["trian", "train"]),
        ([], ["usage"]),
        (["eval"], ["RUN"]),
        (["eval", "nowhere"], ["nowhere", "no directory"]),
        (["eval", "."], ["config.json"]),
        (["eval", ".", "--episodes", "0"], ["episodes 0"]),
        (["eval", ".", "--seed", "1e20"], ["seed 1000", "[0, 2^32)"]),
        (["eval", ".", "--render", "run.mp4"], ["run.mp4", ".gif"]),
        (["plot"], ["run directory"]),
        (["plot", "nowhere"], ["nowhere"]),
        (["plot", ".", "--out", "curves.xyz"], ["curves.xyz", ".png"]),
        (["--version", "x"], ["--version", "'x'"]),
        (["list", "preset"], ["preset", "presets"]),
        (["train", "ppo", "gymnax:Nope"], ["'Nope'", "Catch-bsuite"]),
        (["doctor", "me"], ["usage", "'me'"]),
    ],
    ids=" ".join,
)
def test_mistakes_give_status_2_one_message_and_no_files(
    argv: list[str],
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    status, out, err = run_here(*argv)
    assert status == 2
    said = " ".join((err or out).split())
    for word in words:
        assert word in said
    assert "Traceback" not in out + err
    assert err.count("error") <= 1
    assert list(tmp_path.iterdir()) == []


def test_a_traceback_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXRL_PAR_TRACEBACK", "1")
    with pytest.raises(ValueError, match="num_envs 0"):
        main([*TRAIN, "--num-envs", "0"])


def test_a_directory_that_is_not_empty_is_refused_untouched(tmp_path: Path) -> None:
    (tmp_path / "kept.txt").write_text("kept")
    status, _, err = run_here(*TRAIN, "--out", str(tmp_path))
    assert status == 2
    assert str(tmp_path) in err
    assert [path.name for path in tmp_path.iterdir()] == ["kept.txt"]
