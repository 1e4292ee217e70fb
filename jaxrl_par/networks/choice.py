"""The network for an environment of which nothing is said."""

from __future__ import annotations

from jaxrl_par import spaces
from jaxrl_par.networks import inputs
from jaxrl_par.networks.actor_critic import CNN, MLP
from jaxrl_par.networks.base import Network
from jaxrl_par.types import EnvSpec


def choose(spec: EnvSpec) -> MLP | CNN:
    """A `CNN` for an image [H, W, C] that is large enough for one, else an `MLP`."""
    space = inputs.network_obs_space(spec)
    if isinstance(space, spaces.Box) and len(space.shape) == 3:
        cnn = CNN()
        if min(space.shape[:2]) > 2 * len(cnn.channels):
            return cnn
    return MLP()


def auto(spec: EnvSpec) -> Network:
    """The pair of what `choose` gives: a factory."""
    return choose(spec)(spec)
