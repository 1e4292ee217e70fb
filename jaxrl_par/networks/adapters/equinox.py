"""Equinox modules as networks. Needs the package `equinox`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax

from jaxrl_par.networks import inputs
from jaxrl_par.networks.base import Network
from jaxrl_par.types import EnvSpec, Key, PyTree


@dataclasses.dataclass(frozen=True)
class Equinox:
    """A factory from a function that makes a module; equal if the function is.

    The module is written for one observation, as is usual there.
    """

    make: Callable[[Key], Callable[[Any], Any]]

    def __call__(self, spec: EnvSpec) -> Network:
        space = inputs.network_obs_space(spec)

        def init(key: Key) -> PyTree:
            return eqx.filter(self.make(key), eqx.is_array)

        def apply(params: PyTree, obs: PyTree) -> Any:
            key = jax.eval_shape(jax.random.key, 0)
            shapes = eqx.filter_eval_shape(self.make, key)
            is_shape = lambda x: isinstance(x, jax.ShapeDtypeStruct)  # noqa: E731
            module = eqx.combine(params, eqx.filter(shapes, is_shape, inverse=True))
            return jax.vmap(module)(inputs.prepare(space, obs))

        return Network(init, apply)
