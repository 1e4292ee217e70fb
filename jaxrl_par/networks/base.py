"""What a network is: a pair of pure functions.

`init(key) -> params` and `apply(params, obs) -> (outputs, value)`, where `obs` has
one leading batch axis [N, ...], `outputs` [N, D] parametrise the policy (D is
`distributions.for_space(action_space).num_outputs`), and `value` is [N]. A *factory*
makes the pair from an `EnvSpec`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_par import spaces
from jaxrl_par.types import Array, EnvSpec, Key, PyTree


class Network(NamedTuple):
    """A network as two pure functions."""

    init: Callable[[Key], PyTree]
    apply: Callable[[PyTree, PyTree], Any]


Factory = Callable[[EnvSpec], Network]


def build(network: Factory | Network, spec: EnvSpec) -> Network:
    """The pair for an environment, from a factory or a pair."""
    if isinstance(network, tuple):
        return Network(*network)
    return Network(*network(spec))


def network_obs_space(spec: EnvSpec) -> spaces.Space:
    """The observation space without the action mask: what a network sees."""
    space = spec.obs_space
    if isinstance(space, spaces.Dict) and spaces.ACTION_MASK in space.spaces:
        rest = {k: v for k, v in space.items if k != spaces.ACTION_MASK}
        return next(iter(rest.values())) if len(rest) == 1 else spaces.Dict(rest)
    return space


def to_float(space: spaces.Space, obs: Array) -> Array:
    """One observation array as network input, float32.

    Bytes are scaled to [0, 1], here and nowhere else; a Discrete observation
    becomes one-hot; other numbers keep their value.
    """
    if isinstance(space, spaces.Discrete) and jnp.issubdtype(obs.dtype, jnp.integer):
        return jax.nn.one_hot(obs - space.start, space.n)
    if obs.dtype == jnp.uint8:
        return obs.astype(jnp.float32) / 255.0
    return obs.astype(jnp.float32)


def flatten(space: spaces.Space, obs: PyTree) -> Array:
    """A batch of observations [N, ...] as vectors [N, F] (dictionaries joined)."""
    if isinstance(space, spaces.Dict):
        return jnp.concatenate([flatten(s, obs[k]) for k, s in space.items], -1)
    x = to_float(space, obs)
    return x.reshape(x.shape[0], -1)
