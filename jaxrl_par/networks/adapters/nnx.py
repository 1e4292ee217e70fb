"""Flax NNX modules as networks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from flax import nnx

from jaxrl_par.networks import inputs
from jaxrl_par.networks.base import Network
from jaxrl_par.types import EnvSpec, Key, PyTree


@dataclasses.dataclass(frozen=True)
class NNX:
    """A factory from a function that makes a module; equal if the function is."""

    make: Callable[[nnx.Rngs], nnx.Module]

    def __call__(self, spec: EnvSpec) -> Network:
        space = inputs.network_obs_space(spec)

        def init(key: Key) -> PyTree:
            _, params, others = nnx.split(self.make(nnx.Rngs(key)), nnx.Param, ...)
            names = [".".join(map(str, path)) for path, _ in nnx.to_flat_state(others)]
            if names:
                raise ValueError(
                    f"the module has variables that are no parameters: "
                    f"{', '.join(names)}; a network has parameters only"
                )
            return nnx.to_pure_dict(params)

        def apply(params: PyTree, obs: PyTree) -> Any:
            graph, state = nnx.split(nnx.eval_shape(lambda: self.make(nnx.Rngs(0))))
            nnx.replace_by_pure_dict(state, params)
            module: Any = nnx.merge(graph, state)
            return module(inputs.prepare(space, obs))

        return Network(init, apply)
