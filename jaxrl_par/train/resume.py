"""Going on with a run, to the bit."""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxrl_par import checks
from jaxrl_par.envs.wrappers import Instances
from jaxrl_par.train import files
from jaxrl_par.train.callbacks import Callback
from jaxrl_par.train.config import TrainConfig
from jaxrl_par.train.describe import describe
from jaxrl_par.train.loop import Trainer, check_callbacks
from jaxrl_par.train.places import Lock, check_writable
from jaxrl_par.train.plan import find_devices
from jaxrl_par.train.run import Run, read_config, read_run
from jaxrl_par.train.run_directory import RunDirectory
from jaxrl_par.train.signals import SaveOnSignal
from jaxrl_par.types import Algorithm, Environment

# What may change when a run goes on: nothing that its past depends on.
CHANGEABLE = (
    *("total_steps", "eval_every", "eval_episodes", "stop_at_return", "max_seconds"),
    *("on_nonfinite", "max_rollbacks", "chunk_seconds", "save_every"),
    *("keep_checkpoints", "data", "model", "zero", "split", "min_split", "device"),
)


def resume(
    directory: str | Path,
    algorithm: Algorithm | None = None,
    env: Environment | Instances | None = None,
    *,
    callbacks: Sequence[Callback] = (),
    **changes: Any,
) -> Run:
    """Go on with the run that `directory` holds, from its newest whole checkpoint.

    On the CPU, with as many devices, what comes of it (state, metrics, evaluations)
    is equal to the bit to what a run that was never stopped gives; on another number
    of devices parameters agree within 1e-5 for a few updates, as between runs.

    `changes` are fields of `TrainConfig` that may change, as a larger `total_steps`:
    what follows a schedule then goes on as if the new total had been set at first.
    An algorithm or environment of your own must be passed. Raises ValueError, before
    anything is compiled or written, for what cannot work (see `load`).
    """
    check_callbacks(callbacks)
    trainer, kept = reopen(directory, algorithm, env, **changes)
    with SaveOnSignal() as on_signal:
        return trainer.run([*callbacks, on_signal], kept)


def reopen(
    directory: str | Path,
    algorithm: Algorithm | None = None,
    env: Environment | Instances | None = None,
    notes: Mapping[str, Any] | None = None,
    **changes: Any,
) -> tuple[Trainer, RunDirectory]:
    """The run's trainer, with its state restored, and its directory, locked.

    `notes` are put in `config.json` beside the settings.
    """
    for name in changes:
        checks.known("setting that may change:", name, CHANGEABLE)
    path = checks.path("directory", directory)
    read_config(path)
    check_writable("directory", path, path)
    lock = Lock(path)
    try:
        saved, rules, world = read_run(path, algorithm, env)
        config = dataclasses.replace(settings_of(path, saved), **changes)
        trainer = Trainer(rules, world, config, _devices(saved, config))
        trainer.processes = list(saved["processes"])
        description = trainer.full_description() | dict(notes or {})
        kept = RunDirectory(path, description, config, lock)
        trainer.restore(kept.checkpoints)
        _warn_of_changes(read_config(path), algorithm=rules, env=world)
    except BaseException:
        lock.release()
        raise
    return trainer, kept


def settings_of(path: Path, saved: Mapping[str, Any]) -> TrainConfig:
    """The settings in a run's `config.json`; ValueError if some are missing."""
    names = [field.name for field in dataclasses.fields(TrainConfig)]
    kinds = {"devices": list, "processes": list, "versions": dict}
    for name in (*names, *kinds):
        if name not in saved or not isinstance(saved[name], kinds.get(name, object)):
            raise ValueError(f"{path / 'config.json'} is damaged: it has no {name}")
    return TrainConfig(**{name: saved[name] for name in names})


def _warn_of_changes(saved: Mapping[str, Any], **parts: Any) -> None:
    """Name what differs of the algorithm and the environment from the run's."""
    for name, part in parts.items():
        before = saved[name]
        now = json.loads(json.dumps(files.finite(describe(part))))
        if before == now:
            continue
        old, new = before.get("fields", {}), now.get("fields", {})
        differ = [key for key in new if old.get(key) != new[key]]
        what = f"in {', '.join(differ)}" if differ else "as a whole"
        rule = "the run goes on with what was passed"
        warnings.warn(f"{name} differs from the run's {what}: {rule}", stacklevel=3)


def _devices(saved: dict[str, Any], config: TrainConfig) -> int | None:
    """As many parts of the data as before, if there are devices and none are asked."""
    before, model = len(saved["devices"]), saved.get("model", 1)
    other = (config.device, config.model) != (saved["device"], model)
    if other or before > len(find_devices(config.device)):
        return None
    return before // model
