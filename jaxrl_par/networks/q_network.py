"""Networks of action values: what DQN and its kin learn.

`apply(params, obs, noise) -> [N, actions, atoms]`: of each action a value (one atom),
or the parameters of a distribution of returns.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl_par import spaces
from jaxrl_par.collectives import whole
from jaxrl_par.networks import base, inputs
from jaxrl_par.networks.actor_critic import Head
from jaxrl_par.networks.body import (
    Body,
    Layers,
    NoisyDense,
    example,
    initialize,
    prepare,
)
from jaxrl_par.types import Array, EnvSpec, Key, PyTree

_HEAD = "q_head"


class QNetwork(NamedTuple):
    """A network of action values; its noise is [N, noise_size], or None for none."""

    init: Callable[[Key], PyTree]
    apply: Callable[[PyTree, PyTree, Array | None], Array]
    noise_size: int


class _Values(nn.Module):
    body: Body
    channels: tuple[int, ...]
    actions: int
    atoms: int
    dueling: bool
    noisy: bool

    @nn.compact
    def __call__(self, x: Array, noise: Array | None = None) -> Array:
        layers = Layers(self.body, self.channels, self.noisy, name="layers")
        outputs = (self.actions + self.dueling) * self.atoms
        if self.noisy:
            features = layers(x, noise)
            own = None if noise is None else noise[:, -(features.shape[-1] + outputs) :]
            values = NoisyDense(outputs, name=_HEAD)(features, own)
        else:
            values = Head(outputs, name=_HEAD)(layers(x))
        values = values.reshape(x.shape[0], -1, self.atoms)
        if not self.dueling:
            return values
        state, advantage = values[:, :1], values[:, 1:]
        return state + advantage - advantage.mean(1, keepdims=True)


def q_network(
    network: Body | base.Factory | base.Network,
    spec: EnvSpec,
    atoms: int = 1,
    dueling: bool = False,
    noisy: bool = False,
) -> QNetwork:
    """The network for an environment of discrete actions.

    `network` is a `Body`, or a pair (or a factory of one) whose `apply(params, obs)`
    gives values [N, actions], or [N, actions, atoms]. `dueling` splits a value into the
    state's and the action's advantage (Wang et al. 2016, eq. 9); `noisy` puts learned
    noise on all dense layers (Fortunato et al. 2018).
    """
    if not isinstance(network, Body):
        pair = base.build(network, spec)
        size = actions(spec).n

        def values(params: PyTree, obs: PyTree, noise: Array | None) -> Array:
            found = pair.apply(params, obs)
            return found.reshape(found.shape[0], size, atoms)

        return QNetwork(pair.init, values, 0)
    module = _Values(
        body=network,
        channels=network.channels_for(spec),
        actions=actions(spec).n,
        atoms=atoms,
        dueling=dueling,
        noisy=noisy,
    )

    def init(key: Key) -> PyTree:
        return initialize(module, key, example(network, spec), heads=(_HEAD,))

    def apply(params: PyTree, obs: PyTree, noise: Array | None) -> Array:
        x = prepare(network, spec, obs)
        values: Any = module.apply(whole(params), x, noise)
        return values

    return QNetwork(init, apply, _noise_size(module, spec) if noisy else 0)


def actions(spec: EnvSpec) -> spaces.Discrete:
    """Actions to choose from. Raises ValueError for any but a Discrete space."""
    space = spec.action_space
    if not isinstance(space, spaces.Discrete):
        raise ValueError(f"action space {space} must be Discrete")
    return space


def _noise_size(module: _Values, spec: EnvSpec) -> int:
    """Inputs and outputs of all noisy layers."""
    key = jax.eval_shape(jax.random.key, 0)
    placeholder = jax.eval_shape(lambda: example(module.body, spec))
    shapes = jax.eval_shape(module.init, key, placeholder)
    paths = jax.tree_util.tree_leaves_with_path(shapes)
    return sum(
        sum(leaf.shape)
        for path, leaf in paths
        if getattr(path[-1], "key", "") == "kernel_scale_shift"
    )


def check(network: Any, spec: EnvSpec, atoms: int, dueling: bool, noisy: bool) -> None:
    """Raise ValueError for a network that does not fit an environment."""
    count = actions(spec).n
    base.check_hashable(network)
    if spaces.flat_size(inputs.network_obs_space(spec)) == 0:
        raise ValueError(f"network: the observation space {spec.obs_space} is empty")
    if not isinstance(network, Body) and (dueling or noisy):
        rule = "needs `network` to be a Body: another decides of its layers itself"
        raise ValueError(f"{'dueling' if dueling else 'noisy'} True {rule}")
    if isinstance(network, Body):
        network.channels_for(spec)
        return
    pair = base.build(network, spec)
    params = base.param_shapes(pair)
    space = inputs.network_obs_space(spec)
    for size in (1, 5):
        obs = jax.eval_shape(lambda size=size: inputs.example(space, size))
        found = base.shapes_of("apply(params, obs)", pair.apply, params, obs)
        wanted = [(size, count), (size, count, 1)]
        if atoms > 1:
            wanted = [(size, count, atoms)]
        if getattr(found, "shape", None) not in wanted or found.dtype != jnp.float32:
            raise ValueError(
                f"network: for a batch of {size}, apply must return action values, "
                f"float32 of shape {list(wanted[0])}; it returns {base.show(found)}"
            )


def greedy(values: Array, mask: Array | None) -> Array:
    """The best action [N] int32 of values [N, actions], of those the mask allows."""
    if mask is not None:
        values = jnp.where(mask.astype(bool), values, -math.inf)
    return jnp.argmax(values, -1).astype(jnp.int32)
