"""`jaxrl-par train ALGORITHM ENVIRONMENT [flags]`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import jax
import numpy as np
import tyro

from jaxrl_par import checks, networks
from jaxrl_par.cli import flags, help_texts, session
from jaxrl_par.cli.startup import prepare_backend
from jaxrl_par.envs.registry import make
from jaxrl_par.networks.activations import ACTIVATIONS
from jaxrl_par.presets import ALGORITHMS, NETWORKS, PRESETS, Preset
from jaxrl_par.train.config import TrainConfig
from jaxrl_par.train.loop import Trainer
from jaxrl_par.train.places import default_directory
from jaxrl_par.train.plan import PLATFORMS
from jaxrl_par.train.run_directory import RunDirectory
from jaxrl_par.types import Environment, Key, PyTree

_ALIASES = {"learning_rate": "--lr"}

_USAGE = """usage: jaxrl-par train ALGORITHM ENVIRONMENT [flags]

Train an agent, and write a run directory. Flags start from the preset for the
algorithm and the environment, where there is one.

  jaxrl-par train ppo CartPole-v1 --seed 0
  jaxrl-par train ppo CartPole-v1 --help      the flags, with their defaults
  jaxrl-par list                              algorithms, environments, presets"""


@dataclasses.dataclass(frozen=True)
class Choices:
    """What the command line asks for."""

    names: tuple[str, str]  # algorithm, environment
    algorithm: Any
    env: Environment
    config: TrainConfig
    out: Path | None
    log: tuple[str, ...]  # names of loggers
    source: str  # where the settings come from
    changed: dict[str, Any]  # flags that differ from there
    physics: dict[str, Any]  # parameters of the environment that do


def run(argv: Sequence[str]) -> int:
    """Train; returns the exit status."""
    if not argv or {"-h", "--help"} & set(argv[:2]):
        print(_USAGE)
        return 0 if argv else 2
    choices = read(argv)
    config = choices.config
    samples = config.num_envs * choices.algorithm.rollout_length
    prepare_backend(samples, config.data, config.device, config.model)
    check_physics(choices.env, choices.physics)
    trainer = Trainer(choices.algorithm, choices.env, config)
    out = choices.out or default_directory(*choices.names, config.seed)
    description = trainer.full_description() | {"log": choices.log}
    directory = RunDirectory(out, description, config)
    title = f"{choices.names[0]} on {choices.names[1]}, seed {config.seed}"
    return session.go(title, _facts(choices, trainer), trainer, directory, choices.log)


def read(argv: Sequence[str]) -> Choices:
    """The choices that the arguments make.

    Raises ValueError for unknown names and impossible values; exits with status 2,
    having said why, for flags that are unknown or of the wrong type.
    """
    if len(argv) < 2 or argv[0].startswith("-") or argv[1].startswith("-"):
        raise ValueError(
            "train takes an algorithm and an environment, then flags: "
            "jaxrl-par train ppo CartPole-v1 --seed 0"
        )
    names = (argv[0], argv[1])
    checks.known("algorithm", names[0], ALGORITHMS)
    start, source = _starting_point(*names)
    env = make(names[1])
    given = getattr(start.algorithm, "network", None)  # a table has none
    usual = networks.choose(env.spec) if given is networks.auto else given
    network = _network(usual, argv)
    kind = _flags(start, network, env)
    parsed = flags.parse(kind, argv[2:], f"jaxrl-par train {' '.join(names)}", source)
    physics = _changes(parsed.env, kind().env)
    changed = _all_changes(parsed, kind())
    algorithm = dataclasses.replace(start.algorithm, **vars(parsed.algorithm))
    if network is not None:
        if not isinstance(usual, type(network)):
            changed = {"network": parsed.network} | changed
        network = dataclasses.replace(network, **vars(parsed.layers))
        if network != usual:
            algorithm = dataclasses.replace(algorithm, network=network)
    return Choices(
        names=names,
        algorithm=algorithm,
        env=make(names[1], **physics) if physics else env,
        config=TrainConfig(**vars(parsed.run)),
        out=parsed.out,
        log=parsed.log,
        source=source,
        changed=changed,
        physics=physics,
    )


def check_physics(env: Environment, changed: dict[str, Any]) -> None:
    """Raise ValueError if with `changed` parameters a first step is not finite."""
    if not changed:
        return

    def play(keys: Key) -> PyTree:
        state, obs = env.reset(keys[0])
        action = env.spec.action_space.sample(keys[1])
        _, result = env.step(keys[2], state, action)
        return obs, result.obs, result.reward

    values = jax.vmap(play)(jax.random.split(jax.random.key(0), (16, 3)))
    if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(values)):
        flags = [f"--env.{k.replace('_', '-')} {v}" for k, v in changed.items()]
        raise ValueError(f"{', '.join(flags)}: a first step must give finite numbers")


def _starting_point(algorithm: str, env: str) -> tuple[Preset, str]:
    """The preset, or the algorithm's defaults; and a line that says which."""
    if (algorithm, env) in PRESETS:
        found = PRESETS[algorithm, env]
        return found, f"preset for {algorithm} on {env}"
    line = f"{algorithm}'s defaults (there is no preset for {env})"
    return Preset(ALGORITHMS[algorithm]()), line


def _network(preset: Any, argv: Sequence[str]) -> Any:
    """The network whose layers the other flags change: the preset's, or --network."""
    if type(preset) not in NETWORKS.values():
        return preset
    for i, word in enumerate(argv):
        flag, equals, value = word.partition("=")
        if flag == "--network":
            name = value if equals else " ".join(argv[i + 1 : i + 2])
            kind = NETWORKS.get(name, type(preset))  # the parser refuses the unknown
            return preset if isinstance(preset, kind) else kind()
    return preset


def _flags(start: Preset, network: Any, env: Environment) -> type:
    """All flags, as a dataclass of groups whose defaults are the preset's."""
    config = TrainConfig(**start.settings)
    physics = getattr(env, "params", env)  # an adapter's are a leaf of their own
    groups = {
        "run": flags.group("Run", config, help_texts.RUN, {"device": PLATFORMS}),
        "algorithm": flags.group(
            "Rates", start.algorithm, help_texts.ALGORITHM, aliases=_ALIASES
        ),
    }
    if network is not None:
        groups["layers"] = flags.group(
            "Layers", network, help_texts.NETWORK, {"activation": tuple(ACTIVATIONS)}
        )
    flat = tyro.conf.arg(name="")
    out = tyro.conf.arg(help="the run's directory, fresh (None: a new one in runs/)")
    fields = [
        ("out", Annotated[Path | None, out], None),
        ("log", session.Log, ()),
        *_network_flag(network),
        *((key, Annotated[kind, flat], kind()) for key, kind in groups.items()),
        ("env", kind := flags.group("Physics", physics, {}), kind()),
    ]
    return dataclasses.make_dataclass("Train", fields, frozen=True)


def _network_flag(network: Any) -> list[tuple[str, Any, str]]:
    """A choice among kinds of network, where the algorithm leaves one."""
    names = [name for name, kind in NETWORKS.items() if type(network) is kind]
    if not names:
        return []
    kinds = Literal[tuple(NETWORKS)]  # pyright: ignore[reportInvalidTypeForm] (names)
    flag = Annotated[kinds, tyro.conf.arg(help="the kind of network")]
    return [("network", flag, names[0])]


def _changes(new: Any, old: Any) -> dict[str, Any]:
    """The fields of a group that differ from its defaults."""
    return {k: v for k, v in vars(new).items() if v != getattr(old, k)}


def _all_changes(new: Any, old: Any) -> dict[str, Any]:
    """The flags that differ from their defaults, by name."""
    changes = {}
    for field in dataclasses.fields(new):
        value, default = getattr(new, field.name), getattr(old, field.name)
        if dataclasses.is_dataclass(value):
            prefix = "env." if field.name == "env" else ""
            changes |= {prefix + k: v for k, v in _changes(value, default).items()}
        elif value != default and field.name != "out":
            changes[field.name] = value
    return changes


def _facts(choices: Choices, trainer: Trainer) -> dict[str, str]:
    """What is said before the run starts."""
    words = {k: " ".join(v) if k == "log" else v for k, v in choices.changed.items()}
    changed = ", ".join(f"{k} {v}" for k, v in words.items())
    rollout = f"{choices.config.num_envs} x {choices.algorithm.rollout_length}"
    layout = trainer.layout
    device = layout.describe()
    if layout.model > 1 or layout.zero:
        names = trainer.algorithm.sharded
        own, total = layout.learned_bytes(trainer.executable.shapes, names)
        device += f"; {own:,} of the {total:,} bytes that learn on each"
    return {
        "settings": choices.source + (f"; changed: {changed}" if changed else ""),
        "device": device,
        "plan": f"{trainer.total_updates:,} updates of {rollout} steps, "
        f"{trainer.total_steps:,} in all",
    }
