"""A hundred planted faults, and what becomes of each: none is silent.

The table is `FAULTS`: what is done to a run's directory, and what is promised. Faults
in numbers, loggers, disks and signals are at the end. README.md has the kinds.

    previous   the checkpoint is named in a warning, and the one before it used
    refused    one error names the file, before anything is compiled or touched
    harmless   nothing that counts was in it: the run goes on to the bit
    anew       a warning says that the run starts anew; it ends equal to the bit
"""

from __future__ import annotations

import contextlib
import json
import pickle
import shutil
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toys

import jaxrl_par as jp
from jaxrl_par.train import checkpoint, files
from jaxrl_par.train.checkpoint import Snapshot

FATE = toys.Fate(max_steps=6)
TALLY = toys.Tally()
SETTINGS = {
    "num_envs": 4, "total_steps": 16 * 20, "eval_every": 16 * 7, "eval_episodes": 4,
    "chunk_seconds": 1e-6, "save_every": 0,
}  # fmt: skip
MARKER = Path("executed")  # what the pickle makes, where the test runs


class Mark:
    """Unpickling it would create a file."""

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (str(MARKER), "w")


CONTENTS: dict[str, Callable[[bytes], bytes | None]] = {
    "a byte less": lambda data: data[:-1],
    "half of it": lambda data: data[: len(data) // 2],
    "nothing in it": lambda data: b"",
    "one bit changed": lambda data: data[:-1] + bytes([data[-1] ^ 1]),
    "more at its end": lambda data: data + b"x",
    "a pickle": lambda data: pickle.dumps(Mark()),
    "not there": lambda data: None,
}
# Files of a checkpoint; orbax gives some names by chance.
PARTS = {
    "manifest.json": "manifest.json",
    "orbax metadata": "state/_METADATA",
    "orbax index": "state/manifest.ocdbt",
    "commit mark": "state/commit_success.txt",
    "checkpoint metadata": "state/_CHECKPOINT_METADATA",
    "process index": "state/ocdbt.process_0/manifest.ocdbt",
    "root": "state/d/*",
    "arrays": "state/ocdbt.process_0/d/*",
}


def newest(run: Path) -> Path:
    return max((run / "checkpoints").iterdir())


def spoil(pattern: str, change: Callable[[bytes], bytes | None], run: Path) -> None:
    """Change the largest of the files that fit a pattern."""
    path = max(run.glob(pattern), key=lambda path: path.stat().st_size)
    data = change(path.read_bytes())
    if data is None:
        path.unlink()
    else:
        path.write_bytes(data)


def part(pattern: str, change: Callable[[bytes], bytes | None], run: Path) -> None:
    spoil(str(newest(run).relative_to(run) / pattern), change, run)


def replace(write: Callable[[Path], Any], run: Path) -> None:
    """Put something in the place of the newest checkpoint."""
    path = newest(run)
    shutil.rmtree(path)
    write(path)


def foreign(state: Any, run: Path) -> None:
    """A whole checkpoint of something else."""
    facts = {"update": int(newest(run).name), "seconds": 1.0, "rollbacks": 0}
    checkpoint.save(newest(run), Snapshot.of(state), facts)


def edit(name: str, changes: dict[str, Any], run: Path) -> None:
    """Change fields of a JSON file."""
    path = run / name
    path.write_text(json.dumps(json.loads(path.read_text()) | changes) + "\n")


def newer(run: Path) -> None:
    """A checkpoint as a later version would write it."""
    edit(f"checkpoints/{newest(run).name}/manifest.json", {"format": 3}, run)


def every(pattern: str, change: Callable[[bytes], bytes | None], run: Path) -> None:
    """Change a file of each checkpoint: of the newest two, and of the best."""
    for path in (run / "checkpoints").iterdir():
        spoil(str(path.relative_to(run) / pattern), change, run)


def line(name: str, number: int, text: str | None, run: Path) -> None:
    """Change a line of a file of rows, or take it out."""
    lines = (run / name).read_text().splitlines()
    lines[number : number + 1] = [] if text is None else [text]
    (run / name).write_text("\n".join(lines) + "\n")


def torn(name: str, run: Path) -> None:
    with open(run / name, "a") as file:
        file.write('{"update": 21, "env_st')


def wider() -> Any:
    run = jp.train(toys.Tally(), toys.Steady(), num_envs=4, total_steps=16)
    return run.state


FAULTS: dict[str, tuple[Callable[[Path], Any], str, str]] = {
    **{
        f"checkpoint: {name}: {how}": (partial(part, pattern, change), "previous", "")
        for name, pattern in PARTS.items()
        for how, change in CONTENTS.items()
    },
    "checkpoint: a file": (
        partial(replace, lambda path: path.write_bytes(b"x")), "previous", "",
    ),
    "checkpoint: a pickle": (
        partial(replace, lambda path: path.write_bytes(pickle.dumps(Mark()))),
        "previous", "",
    ),
    "checkpoint: an empty directory": (partial(replace, Path.mkdir), "previous", ""),
    "checkpoint: a link to nowhere": (
        partial(replace, lambda path: path.symlink_to("nowhere")), "previous", "",
    ),
    "checkpoint: not there": (partial(replace, lambda path: None), "harmless", ""),
    "checkpoint: a foreign file in it": (
        lambda run: (newest(run) / "state" / "more").write_bytes(b"x"), "previous", "",
    ),
    "checkpoint: a newer format": (newer, "previous", "format 3 must be 2"),
    "checkpoint: renamed": (
        lambda run: newest(run).rename(run / "checkpoints" / "0000000031"),
        "previous", "is of update 20",
    ),
    "checkpoint: another environment's": (
        lambda run: foreign(wider(), run),
        "refused", r"leaf .*env.inner is float32\(4,\), expected float32\(4, 2\)",
    ),
    "checkpoint: no training state": (
        partial(foreign, {"x": np.float32(1)}),
        "refused", "leaf .* is only in the state",
    ),
    "checkpoint: one half written beside it": (
        lambda run: (run / "checkpoints" / ".0000000021.partial").mkdir(),
        "harmless", "",
    ),
    "all checkpoints: no manifest": (
        partial(every, "manifest.json", CONTENTS["not there"]),
        "refused", "no checkpoint in .* can be used: .*00020/man.*; .*00019/man",
    ),
    "all checkpoints: arrays cut": (
        partial(every, PARTS["arrays"], CONTENTS["half of it"]),
        "refused", "no checkpoint in .* can be used: .*size or SHA-256 differs",
    ),
    "all checkpoints: gone, as before the first": (
        lambda run: shutil.rmtree(run / "checkpoints"), "anew", "",
    ),
    **{
        f"config.json: {how}": (
            partial(spoil, "config.json", CONTENTS[how]), "refused", "config.json",
        )
        for how in ("half of it", "nothing in it", "a pickle", "not there",
                    "more at its end")
    },
    "config.json: a newer format": (
        partial(edit, "config.json", {"format": 3}), "refused", "format 3 must be 2",
    ),
    "config.json: no seed": (
        partial(spoil, "config.json", lambda data: data.replace(b'"seed"', b'"sead"')),
        "refused",
        "config.json is damaged: it has no seed",
    ),
    "config.json: another size": (
        partial(edit, "config.json", {"num_envs": 8}), "refused",
        r"leaf .* is .*\(4.*, expected .*\(8",
    ),
    "config.json: text for a number": (
        partial(edit, "config.json", {"total_steps": "many"}), "refused",
        "total_steps 'many' must be a whole number",
    ),
    **{
        f"metrics.jsonl: {how}": (
            partial(spoil, "metrics.jsonl", CONTENTS[how]), "refused", "metrics.jsonl",
        )
        for how in ("half of it", "nothing in it", "a pickle", "not there")
    },
    "config.json: no list of processes": (
        partial(edit, "config.json", {"processes": 3}), "refused", "it has no process",
    ),
    "metrics.jsonl: a line that is not whole at its end": (
        partial(torn, "metrics.jsonl"), "harmless", "",
    ),
    "metrics.jsonl: no JSON in a line": (
        partial(line, "metrics.jsonl", 4, "{"), "refused", "damaged: line 5",
    ),
    "metrics.jsonl: a line twice": (
        partial(line, "metrics.jsonl", 4, '{"update": 4, "episode_count": 0}'),
        "refused", "must have one row for each of the 20 updates",
    ),
    "metrics.jsonl: a line missing": (
        partial(line, "metrics.jsonl", 4, None),
        "refused", "must have one row for each of the 20 updates .*, and has 19",
    ),
    "evaluations.jsonl: a line that is not whole at its end": (
        partial(torn, "evaluations.jsonl"), "harmless", "",
    ),
    "evaluations.jsonl: no JSON in a line": (
        partial(line, "evaluations.jsonl", 0, "x"), "refused", "damaged: line 1",
    ),
    "metrics.jsonl: a blank line at its end": (
        partial(spoil, "metrics.jsonl", lambda data: data + b"\n"), "harmless", "",
    ),
    "timing.jsonl: no JSON in a line": (
        partial(line, "timing.jsonl", 0, "x"), "refused", "timing.jsonl is damaged",
    ),
    "timing.jsonl: a line that is not whole at its end": (
        partial(torn, "timing.jsonl"), "harmless", "",
    ),
    **{
        f"summary.json: {how}": (
            partial(spoil, "summary.json", CONTENTS[how]), "harmless", "",
        )
        for how in ("half of it", "nothing in it", "a pickle", "not there")
    },
    "curves.png: not there": (
        partial(spoil, "curves.png", CONTENTS["not there"]), "harmless", "",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, jp.Run]:
    """Twenty updates, with checkpoints of the last two."""
    out = tmp_path_factory.mktemp("whole") / "run"
    return out, jp.train(TALLY, FATE, out=out, **SETTINGS)


@pytest.fixture
def run(whole: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy to be spoilt; and where the pickle would leave its mark."""
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(whole[0], tmp_path / "run"))


def snapshot(directory: Path) -> dict[str, bytes]:
    found = (path for path in directory.rglob("*") if path.is_file())
    return {str(path): path.read_bytes() for path in found}


def test_there_are_so_many() -> None:
    others = sum(len(x) for x in (WRITES, CALLBACKS))
    assert len(FAULTS) + others >= 100


# Of what orbax was still reading when it failed.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_a_directory(whole: Any, run: Path, name: str) -> None:
    plant, promise, words = FAULTS[name]
    plant(run)
    before = snapshot(run)
    if promise == "refused":
        with pytest.raises(ValueError, match=words):
            jp.resume(run, TALLY, FATE)
        assert snapshot(run) == before
    elif promise == "previous":
        with pytest.warns(UserWarning, match=f"cannot be .*{words}.*00019 is used"):
            loaded = jp.load(run, TALLY, FATE)
        assert int(loaded.state.update) == 19
        assert snapshot(run) == before
    else:
        anew = pytest.warns(UserWarning, match="holds no checkpoint: the run starts an")
        with anew if promise == "anew" else contextlib.nullcontext():
            resumed = jp.resume(run, TALLY, FATE)
        toys.assert_equal(resumed.state, whole[1].state)
        for file in ("metrics.jsonl", "evaluations.jsonl"):
            assert (run / file).read_bytes() == (whole[0] / file).read_bytes()
        assert json.loads((run / "summary.json").read_text())["updates"] == 20
    assert not MARKER.exists()


def full(*_: Any, **__: Any) -> Any:
    raise OSError(28, "No space left on device")


# Where a disk can be full, or not be written to, while a run is under way.
WRITES = {
    "rows": (files, "append"),
    "arrays": (checkpoint, "_write_arrays"),
    "digests": (checkpoint, "_digest"),
    "manifest and summary": (files, "write_json"),
    "flushing": (files, "flush"),
    "renaming": (checkpoint, "_publish"),
}


@pytest.mark.parametrize("name", WRITES)
def test_a_full_disk_ends_the_run_and_leaves_what_was_there(
    whole: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(progress: jp.Progress) -> None:
        if progress.update == 12:
            monkeypatch.setattr(*WRITES[name], full)

    out = tmp_path / "run"
    with pytest.raises(OSError, match="No space left"):
        jp.train(TALLY, FATE, out=out, callbacks=[fill], **SETTINGS)
    monkeypatch.undo()
    loaded = jp.load(out, TALLY, FATE)
    assert 11 <= int(loaded.state.update) <= 12
    resumed = jp.resume(out, TALLY, FATE)
    toys.assert_equal(resumed.state, whole[1].state)
    for file in ("metrics.jsonl", "evaluations.jsonl"):
        assert (out / file).read_bytes() == (whole[0] / file).read_bytes()


def fail(error: BaseException, progress: jp.Progress) -> None:
    if progress.update == 12:
        raise error


CALLBACKS = {
    "a callback raises": ValueError("mine"),
    "a callback exits": SystemExit(1),
    "a callback is interrupted": KeyboardInterrupt(),
}


@pytest.mark.parametrize(
    ("number", "error"),
    [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)],
)
def test_a_signal_to_a_program_saves_before_it_ends_it(
    whole: Any,
    number: int,
    error: type[BaseException],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    if number == signal.SIGINT:  # which a process in the background may ignore
        old = signal.signal(number, signal.default_int_handler)
        request.addfinalizer(lambda: signal.signal(number, old))

    def send(progress: jp.Progress) -> None:
        if progress.update == 12 and not progress.finished:  # once: twice is at once
            signal.raise_signal(number)

    out, settings = tmp_path / "run", SETTINGS | {"save_every": 1e6}
    before = signal.getsignal(number)
    with pytest.raises(error):
        jp.train(TALLY, FATE, out=out, callbacks=[send], **settings)
    assert signal.getsignal(number) is before
    loaded = jp.load(out, TALLY, FATE)
    assert int(loaded.state.update) == len(loaded.metrics["update"]) == 12
    assert loaded.reason == signal.Signals(number).name
    toys.assert_equal(jp.resume(out, TALLY, FATE).state, whole[1].state)


@pytest.mark.parametrize("name", CALLBACKS)
def test_a_callback_that_fails_costs_no_training(
    whole: Any, name: str, tmp_path: Path
) -> None:
    error = CALLBACKS[name]
    out, settings = tmp_path / "run", SETTINGS | {"save_every": 1e6}
    with pytest.raises(type(error)):
        jp.train(TALLY, FATE, out=out, callbacks=[partial(fail, error)], **settings)
    assert int(jp.load(out, TALLY, FATE).state.update) == 12
    toys.assert_equal(jp.resume(out, TALLY, FATE).state, whole[1].state)
