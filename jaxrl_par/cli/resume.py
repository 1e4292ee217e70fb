"""`jaxrl-par resume RUN [flags]`."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro

from jaxrl_par.cli import flags, help_texts, session
from jaxrl_par.cli.startup import prepare_backend
from jaxrl_par.train.config import TrainConfig
from jaxrl_par.train.loop import Trainer
from jaxrl_par.train.plan import PLATFORMS
from jaxrl_par.train.provenance import versions
from jaxrl_par.train.resume import CHANGEABLE, reopen, settings_of
from jaxrl_par.train.run import read_config

_USAGE = """usage: jaxrl-par resume RUN [flags]

Go on with a run from its newest whole checkpoint, to the bit: on the CPU, with as
many devices, it ends as if it had never been stopped. Flags start from the run's.

  jaxrl-par resume runs/mine
  jaxrl-par resume runs/mine --total-steps 2e6    rates that fall over the run follow
                                                  the new total from there on
  jaxrl-par resume runs/mine --help               the flags, with the run's values"""


def run(argv: Sequence[str]) -> int:
    """Resume; returns the exit status."""
    if not argv or argv[0] in ("-h", "--help"):
        names = ", ".join(f"--{name.replace('_', '-')}" for name in CHANGEABLE)
        print(f"{_USAGE}\n\n{textwrap.fill(f'What may change: {names}, --log.', 80)}")
        return 0 if argv else 2
    if argv[0].startswith("-"):
        raise ValueError(
            "resume takes a run directory, then flags: jaxrl-par resume runs/mine"
        )
    path = Path(argv[0])
    saved = read_config(path)
    before = settings_of(path, saved)
    kind = _flags(before, tuple(saved.get("log", ())))
    parsed = flags.parse(
        kind, argv[1:], f"jaxrl-par resume {path}", "Flags start from the run's."
    )
    changes = {
        name: value
        for name, value in vars(parsed.run).items()
        if value != getattr(before, name)
    }
    config = dataclasses.replace(before, **changes)
    try:
        rollout_length = int(saved["algorithm"]["fields"]["rollout_length"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path / 'config.json'} is damaged: {error!r}") from None
    samples = config.num_envs * rollout_length
    prepare_backend(samples, config.data, config.device, config.model)
    trainer, directory = reopen(path, notes={"log": parsed.log}, **changes)
    title = f"{trainer.env.spec.name}, from {path}, at {trainer.env_steps:,} steps"
    facts = _facts(saved, changes, trainer)
    return session.go(title, facts, trainer, directory, parsed.log)


def _flags(before: TrainConfig, log: tuple[str, ...]) -> type:
    """What may change, as a dataclass whose defaults are the run's."""
    choices = {"device": PLATFORMS}
    group = flags.group("Run", before, help_texts.RUN, choices, only=CHANGEABLE)
    flat = tyro.conf.arg(name="")
    fields = [("run", Annotated[group, flat], group()), ("log", session.Log, log)]
    return dataclasses.make_dataclass("Resume", fields, frozen=True)


def _facts(
    saved: Mapping[str, Any], changes: Mapping[str, Any], trainer: Trainer
) -> dict[str, str]:
    """What is said before the run goes on: what differs from before, above all."""
    facts = {"device": trainer.layout.describe()}
    before, now = len(saved["devices"]), len(trainer.layout.devices)
    if before != now:
        facts["device"] += f" (before: {before}; equal within rounding, not to the bit)"
    found = versions()
    moved = [k for k, v in saved["versions"].items() if v != found.get(k)]
    if moved:
        facts["versions"] = f"others than before, of {', '.join(moved)}"
    if changes:
        named = [
            f"{k} {v:,}" if type(v) is int else f"{k} {v}" for k, v in changes.items()
        ]
        facts["changed"] = ", ".join(named)
    facts["plan"] = f"{trainer.total_steps:,} steps in all"
    if "total_steps" in changes:
        rule = "rates that fall over the run now fall towards this total"
        facts["plan"] += f" (before: {saved['total_steps']:,}; {rule})"
    if trainer.update == trainer.total_updates:
        facts["plan"] += "; all are made: --total-steps adds to them"
    return facts
