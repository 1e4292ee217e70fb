"""Observations as a network's input: floats, with one leading batch axis [N, ...]."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl_par import spaces
from jaxrl_par.types import Array, EnvSpec, PyTree


def network_obs_space(spec: EnvSpec) -> spaces.Space:
    """The observation space without the action mask: what a network sees.

    Of a dictionary with one other part, that part.
    """
    space = spec.obs_space
    if isinstance(space, spaces.Dict) and spaces.ACTION_MASK in space.spaces:
        rest = tuple((k, v) for k, v in space.items if k != spaces.ACTION_MASK)
        return rest[0][1] if len(rest) == 1 else spaces.Dict(rest)
    return space


def split_mask(obs: PyTree) -> tuple[Array | None, PyTree]:
    """The action mask of an observation, or None, and the rest: what a network sees."""
    if not isinstance(obs, dict) or spaces.ACTION_MASK not in obs:
        return None, obs
    rest = {name: x for name, x in obs.items() if name != spaces.ACTION_MASK}
    mask = obs[spaces.ACTION_MASK]
    return mask, next(iter(rest.values())) if len(rest) == 1 else rest


def example(space: spaces.Space, size: int = 1) -> PyTree:
    """A batch of `size` placeholder observations."""
    return jax.tree.map(
        lambda x: jnp.broadcast_to(x[None], (size, *x.shape)), spaces.zeros(space)
    )


def prepare(space: spaces.Space, obs: PyTree) -> PyTree:
    """A batch of observations as floats; a dictionary stays one.

    Bytes are scaled to [0, 1], here and nowhere else; a choice becomes one-hot (of
    several, one after another); other numbers keep their value. Floats are taken as
    they are, whatever the space: a normaliser made them.
    """
    if isinstance(space, spaces.Dict):
        return {name: prepare(part, obs[name]) for name, part in space.items}
    if jnp.issubdtype(obs.dtype, jnp.floating):
        return obs.astype(jnp.float32)
    if isinstance(space, spaces.Discrete):
        return jax.nn.one_hot(obs - space.start, space.n)
    if isinstance(space, spaces.MultiDiscrete):
        parts = enumerate(space.nvec)
        return jnp.concatenate([jax.nn.one_hot(obs[:, i], n) for i, n in parts], -1)
    if obs.dtype == jnp.uint8:
        return obs.astype(jnp.float32) / 255.0
    return obs.astype(jnp.float32)


def flatten(space: spaces.Space, obs: PyTree) -> Array:
    """A batch of observations as vectors [N, F], a dictionary's parts joined."""
    leaves = jax.tree.leaves(prepare(space, obs))
    return jnp.concatenate([x.reshape(x.shape[0], -1) for x in leaves], -1)
