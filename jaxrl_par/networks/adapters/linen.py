"""Flax Linen modules as networks."""

from __future__ import annotations

import dataclasses
from typing import Any

import flax.linen as nn

from jaxrl_par.networks import inputs
from jaxrl_par.networks.base import Network
from jaxrl_par.types import EnvSpec, Key, PyTree


@dataclasses.dataclass(frozen=True)
class Linen:
    """A factory from a module; equal modules are equal networks."""

    module: nn.Module

    def __call__(self, spec: EnvSpec) -> Network:
        space = inputs.network_obs_space(spec)

        def init(key: Key) -> PyTree:
            obs = inputs.prepare(space, inputs.example(space))
            variables = self.module.init(key, obs)
            others = sorted(set(variables) - {"params"})
            if others:
                raise ValueError(
                    f"the module has variables that are no parameters: "
                    f"{', '.join(others)}; a network has parameters only"
                )
            return variables

        def apply(params: PyTree, obs: PyTree) -> Any:
            return self.module.apply(params, inputs.prepare(space, obs))

        return Network(init, apply)
