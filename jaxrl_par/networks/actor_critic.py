"""Actor-critic networks in Flax: multilayer perceptron and small CNN."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl_par import distributions, spaces
from jaxrl_par.networks import base, inputs
from jaxrl_par.networks.activations import ACTIVATIONS
from jaxrl_par.networks.initialize import orthogonal_tree
from jaxrl_par.types import Array, EnvSpec

# Units of a layer: more is a slip of the finger, of which XLA would abort.
MAX_WIDTH = 2**20


class _Torso(nn.Module):
    """Vectors or images [N, ...] to features [N, F]."""

    hidden: Sequence[int]
    channels: Sequence[int]
    activation: str

    @nn.compact
    def __call__(self, x: Array) -> Array:
        act = ACTIVATIONS[self.activation]
        for size in self.channels:
            x = act(nn.Conv(size, (3, 3), padding="VALID")(x))
        x = x.reshape(x.shape[0], -1)
        for size in self.hidden:
            x = act(nn.Dense(size)(x))
        return x


class Head(nn.Module):
    """A dense layer whose kernel lies [outputs, inputs].

    The gradient of a kernel with few outputs is a product of two tall matrices. On a
    CPU it is five times faster to compute this way round.
    """

    size: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        zeros = nn.initializers.zeros_init()
        kernel = self.param("kernel", zeros, (self.size, x.shape[-1]))
        bias = self.param("bias", zeros, (self.size,))
        return x @ kernel.T + bias[None]


class _ActorCritic(nn.Module):
    """Policy outputs [N, D] and value [N]."""

    torso: dict[str, Any]
    shared: bool
    num_outputs: int
    num_deviations: int  # outputs that are free parameters: log deviations
    initial_log_std: float

    @nn.compact
    def __call__(self, x: Array) -> tuple[Array, Array]:
        actor = _Torso(**self.torso, name="actor_torso")(x)
        critic = actor if self.shared else _Torso(**self.torso, name="critic_torso")(x)
        means = self.num_outputs - self.num_deviations
        outputs = Head(means, name="policy_head")(actor)
        if self.num_deviations:
            zeros = nn.initializers.zeros_init()
            log_std = self.param("log_std_shift", zeros, (self.num_deviations,))
            log_std = self.initial_log_std + log_std
            log_std = jnp.broadcast_to(log_std, (x.shape[0], self.num_deviations))
            outputs = jnp.concatenate([outputs, log_std], -1)
        return outputs, Head(1, name="value_head")(critic)[:, 0]


@dataclasses.dataclass(frozen=True)
class MLP:
    """A multilayer perceptron, a `base.Factory`. Observations are flattened.

    `shared` uses one body for actor and critic. A box's log deviations are free
    parameters that start at `initial_log_std`. Orthogonal init (gain sqrt 2, policy
    head 0.01, value head 1).
    """

    hidden: tuple[int, ...] = (64, 64)
    activation: str = "tanh"
    shared: bool = False
    initial_log_std: float = 0.0
    channels: tuple[int, ...] = dataclasses.field(default=(), init=False)

    def __post_init__(self) -> None:
        _check_sizes("hidden", self.hidden)
        _check_activation(self.activation)

    def __call__(self, spec: EnvSpec) -> base.Network:
        return _build(self, spec)


@dataclasses.dataclass(frozen=True)
class CNN:
    """A small CNN for images [H, W, C], a `base.Factory`.

    3x3 convolutions without padding, then dense layers. Other fields as in `MLP`.
    """

    channels: tuple[int, ...] = (16,)
    hidden: tuple[int, ...] = (128,)
    activation: str = "relu"
    shared: bool = True
    initial_log_std: float = 0.0

    def __post_init__(self) -> None:
        _check_sizes("channels", self.channels)
        _check_sizes("hidden", self.hidden)
        _check_activation(self.activation)

    def __call__(self, spec: EnvSpec) -> base.Network:
        space = inputs.network_obs_space(spec)
        if not isinstance(space, spaces.Box) or len(space.shape) != 3:
            raise ValueError(
                f"network CNN needs an image observation [H, W, C], not {space}"
            )
        height, width = space.shape[:2]
        if min(height, width) <= 2 * len(self.channels):
            raise ValueError(
                f"channels {self.channels}: {len(self.channels)} convolutions leave "
                f"nothing of a {height} x {width} image"
            )
        return _build(self, spec)


def _build(config: MLP | CNN, spec: EnvSpec) -> base.Network:
    space = inputs.network_obs_space(spec)
    box = isinstance(spec.action_space, spaces.Box)
    num_outputs = distributions.for_space(spec.action_space).num_outputs
    module = _ActorCritic(
        torso={
            "hidden": config.hidden,
            "channels": config.channels,
            "activation": config.activation,
        },
        shared=config.shared,
        num_outputs=num_outputs,
        num_deviations=num_outputs // 2 if box else 0,
        initial_log_std=config.initial_log_std,
    )
    prepare = inputs.prepare if config.channels else inputs.flatten

    def init(key: Array) -> Any:
        example = prepare(space, inputs.example(space))
        shapes = jax.eval_shape(module.init, key, example)
        return orthogonal_tree(key, shapes, _gain)

    def apply(params: Any, obs: Any) -> Any:
        return module.apply(params, prepare(space, obs))

    return base.Network(init, apply)


def _gain(path: tuple[str, ...]) -> float:
    return {"policy_head": 0.01, "value_head": 1.0}.get(path[-2], math.sqrt(2))


def _check_sizes(name: str, sizes: tuple[int, ...]) -> None:
    if any(not 1 <= size <= MAX_WIDTH for size in sizes):
        raise ValueError(f"{name} {sizes} must be sizes in [1, {MAX_WIDTH}]")


def _check_activation(name: str) -> None:
    if name not in ACTIVATIONS:
        raise ValueError(f"activation {name!r} must be one of {', '.join(ACTIVATIONS)}")
