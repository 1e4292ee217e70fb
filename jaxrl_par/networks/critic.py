"""Networks of actors and of action values, each with layers of its own.

Off-policy actor-critics learn one actor and several critics, whose parameters are
stacked on a leading axis.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl_par import spaces
from jaxrl_par.collectives import whole
from jaxrl_par.networks import base, inputs
from jaxrl_par.networks.actor_critic import Head
from jaxrl_par.networks.body import Body, Layers, example, initialize, prepare
from jaxrl_par.types import Array, EnvSpec, Key, PyTree

# Of the actor's head: at first the policy is the same for all observations.
_POLICY_GAIN = 0.01


class _Outputs(nn.Module):
    body: Body
    channels: tuple[int, ...]
    size: int

    @nn.compact
    def __call__(self, x: Array, joined: Array | None = None) -> Array:
        layers = Layers(self.body, self.channels, name="layers")
        return Head(self.size, name="head")(layers(x, joined=joined))


def actor(body: Body, spec: EnvSpec, num_outputs: int) -> base.Network:
    """A policy's network: `apply(params, obs) -> [N, num_outputs]`."""
    module = _Outputs(body, body.channels_for(spec), num_outputs)

    def init(key: Key) -> PyTree:
        placeholder = example(body, spec)
        return initialize(module, key, placeholder, heads=("head",), gain=_POLICY_GAIN)

    def apply(params: PyTree, obs: PyTree) -> Any:
        return module.apply(whole(params), _seen(body, spec, obs))

    return base.Network(init, apply)


class Critics(NamedTuple):
    """Several networks of action values; their parameters are [C, ...]."""

    init: Callable[[Key], PyTree]
    apply: Callable[[PyTree, PyTree, Array | None], Array]


def critics(body: Body, spec: EnvSpec, count: int) -> Critics:
    """`count` critics for an environment.

    Of a Box, `apply(params, obs, action) -> [C, N]` for actions [N, D] (any units);
    of a Discrete space, `apply(params, obs, None) -> [C, N, actions]`.
    """
    space = spec.action_space
    discrete = isinstance(space, spaces.Discrete)
    size = space.n if isinstance(space, spaces.Discrete) else 1
    module = _Outputs(body, body.channels_for(spec), size)

    def init(key: Key) -> PyTree:
        action = None if discrete else jnp.zeros((1, spaces.flat_size(space)))
        x = example(body, spec)

        def one(key: Key) -> PyTree:
            return initialize(module, key, x, action, heads=("head",))

        return jax.vmap(one)(jax.random.split(key, count))

    def apply(params: PyTree, obs: PyTree, action: Array | None) -> Array:
        x = _seen(body, spec, obs)
        found: Any = jax.vmap(lambda p: module.apply(p, x, action))(whole(params))
        return found if discrete else found[..., 0]

    return Critics(init, apply)


def _seen(body: Body, spec: EnvSpec, obs: PyTree) -> Array:
    """A batch of observations as the body's input; an action mask is none of it."""
    return prepare(body, spec, inputs.split_mask(obs)[1])


def check(network: Any, spec: EnvSpec) -> None:
    """Raise ValueError for a network that does not fit an environment."""
    if not isinstance(network, Body):
        raise ValueError(f"network {network!r} must be a Body: layers of all networks")
    if spaces.flat_size(inputs.network_obs_space(spec)) == 0:
        raise ValueError(f"network: the observation space {spec.obs_space} is empty")
    network.channels_for(spec)
