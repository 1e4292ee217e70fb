"""Environments by name."""

from __future__ import annotations

import dataclasses
import difflib
from typing import Any

from jaxrl_par.envs.acrobot import Acrobot
from jaxrl_par.envs.adapters import gymnax
from jaxrl_par.envs.cartpole import CartPole
from jaxrl_par.envs.cliff_walking import CliffWalking
from jaxrl_par.envs.mountain_car import MountainCar
from jaxrl_par.envs.mountain_car_continuous import MountainCarContinuous
from jaxrl_par.envs.pendulum import Pendulum
from jaxrl_par.envs.windy_gridworld import WindyGridworld
from jaxrl_par.types import Environment

OWN = {
    "CartPole-v1": CartPole,
    "Pendulum-v1": Pendulum,
    "Acrobot-v1": Acrobot,
    "MountainCar-v0": MountainCar,
    "MountainCarContinuous-v0": MountainCarContinuous,
    "CliffWalking-v0": CliffWalking,
    "WindyGridworld-v0": WindyGridworld,
}

# Adapters by prefix; importing one does not import its suite.
SUITES = {"gymnax": gymnax}

# Names that need no prefix although they are a suite's.
SHORT = dict.fromkeys(gymnax.SHORT_NAMES, "gymnax")


def make(name: str, **parameters: Any) -> Environment:
    """The environment `name`: "CartPole-v1", "Breakout-MinAtar", "gymnax:Catch-bsuite".

    `parameters` set its fields (`gravity=5.0`, `max_steps=1000`). Raises ValueError
    for an unknown name or parameter, with the nearest that exist, and ImportError
    for a suite that is not installed.
    """
    if name in OWN:
        return _make_own(name, parameters)
    if name in SHORT:
        return SUITES[SHORT[name]].make(name, **parameters)
    suite, colon, rest = name.partition(":")
    if colon and suite in SUITES:
        return SUITES[suite].make(rest, **parameters)
    if colon:
        raise ValueError(f"environment {name!r}: no suite {suite!r} in {list(SUITES)}")
    known = env_names()
    near = [n for n in known if n.endswith(f":{name}")]
    near = near or difflib.get_close_matches(name, known, cutoff=0.4)
    raise ValueError(f"no environment {name!r}; nearest: {', '.join(near or OWN)}")


def env_names() -> tuple[str, ...]:
    """Names that `make` takes. No suite is imported for it."""
    suites = [
        f"{prefix}:{name}"
        for prefix, adapter in SUITES.items()
        for name in adapter.NAMES
        if name not in SHORT
    ]
    return (*OWN, *SHORT, *suites)


def _make_own(name: str, parameters: dict[str, Any]) -> Environment:
    fields = [field.name for field in dataclasses.fields(OWN[name])]
    for key in parameters:
        if key not in fields:
            near = difflib.get_close_matches(key, fields, cutoff=0.4) or fields
            raise ValueError(f"{name} has no parameter {key!r}; nearest: {near}")
    return OWN[name](**parameters)
