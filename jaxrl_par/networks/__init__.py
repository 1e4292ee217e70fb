"""Networks, and how to bring your own.

Whatever takes a `network` accepts `MLP(...)`, `CNN(...)`, a module of another
library through `from_linen`, `from_nnx` or `from_equinox`, or any pair of functions
(`networks.base`). A module is called with observations as floats [N, ...]
(`networks.inputs.prepare`) and returns (outputs [N, D], value [N]).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jaxrl_par.networks.actor_critic import CNN, MLP
from jaxrl_par.networks.base import Factory, Network, build, check_network
from jaxrl_par.networks.choice import auto, choose
from jaxrl_par.types import Key

__all__ = [
    "CNN",
    "MLP",
    "Factory",
    "Network",
    "auto",
    "build",
    "check_network",
    "choose",
    "from_equinox",
    "from_linen",
    "from_nnx",
]


def from_linen(module: Any) -> Factory:
    """A network from a `flax.linen.Module`, called with a batch of observations."""
    from jaxrl_par.networks.adapters.linen import Linen

    return Linen(module)


def from_nnx(make: Callable[[Any], Any]) -> Factory:
    """A network from `make(rngs) -> flax.nnx.Module`, called with a batch."""
    from jaxrl_par.networks.adapters.nnx import NNX

    return NNX(make)


def from_equinox(make: Callable[[Key], Any]) -> Factory:
    """A network from `make(key) -> equinox.Module`, called with one observation.

    It returns (outputs [D], value []), and is vmapped.
    """
    from jaxrl_par.networks.adapters.equinox import Equinox

    return Equinox(make)
