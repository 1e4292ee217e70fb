"""What value-based and off-policy networks are made of: a body, and layers.

Parameters are zero but for kernels, which `initialize.orthogonal_tree` fills; where a
layer starts at another value, its parameter is the difference from it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl_par import checks, spaces
from jaxrl_par.networks import inputs
from jaxrl_par.networks.activations import ACTIVATIONS
from jaxrl_par.networks.actor_critic import MAX_WIDTH
from jaxrl_par.networks.convolution import Conv
from jaxrl_par.networks.initialize import orthogonal_tree
from jaxrl_par.types import Array, EnvSpec, Key, PyTree

_ZEROS = nn.initializers.zeros_init()
_IMAGE_CHANNELS = (16,)
# Deviation of a noisy layer's noise at the start; Fortunato et al. 2018, section 3.2.
_NOISE = 0.5


@dataclasses.dataclass(frozen=True)
class Body:
    """Layers from an observation to features: 3x3 convolutions, then dense layers.

    `channels` are the convolutions' (None: one of 16 for an image [H, W, C], none for
    all else, which is flattened). With `layer_norm` each layer is normalised before
    its activation (Ba et al. 2016).
    """

    hidden: tuple[int, ...] = (128, 128)
    channels: tuple[int, ...] | None = None
    activation: str = "relu"
    layer_norm: bool = False

    def __post_init__(self) -> None:
        for name in ("hidden", "channels"):
            sizes = getattr(self, name)
            if sizes is not None or name == "hidden":
                checks.sequence(name, sizes)
            for size in sizes or ():
                checks.positive_int(name, size, MAX_WIDTH + 1)
        checks.choice("activation", self.activation, list(ACTIVATIONS))
        checks.boolean("layer_norm", self.layer_norm)

    def channels_for(self, spec: EnvSpec) -> tuple[int, ...]:
        """The convolutions for an environment. Raises ValueError if none fit."""
        space = inputs.network_obs_space(spec)
        shape = space.shape if isinstance(space, spaces.Box) else ()
        smallest = min(shape[:2]) if len(shape) == 3 else 0
        if self.channels is None:
            return _IMAGE_CHANNELS if smallest > 2 * len(_IMAGE_CHANNELS) else ()
        if self.channels and smallest <= 2 * len(self.channels):
            raise ValueError(
                f"channels {self.channels} need an image observation [H, W, C] larger "
                f"than {2 * len(self.channels)} x {2 * len(self.channels)}, not {space}"
            )
        return self.channels


def prepare(body: Body, spec: EnvSpec, obs: PyTree) -> Array:
    """A batch of observations as this body's input."""
    space = inputs.network_obs_space(spec)
    change = inputs.prepare if body.channels_for(spec) else inputs.flatten
    return change(space, obs)


def example(body: Body, spec: EnvSpec) -> Array:
    """A placeholder of this body's input."""
    space = inputs.network_obs_space(spec)
    return prepare(body, spec, inputs.example(space))


def initialize(
    module: nn.Module, key: Key, *args: Any, heads: tuple[str, ...], gain: float = 1.0
) -> PyTree:
    """Parameters: orthogonal kernels of gain sqrt 2, and of `gain` in the heads."""
    shapes = jax.eval_shape(module.init, key, *args)

    def gain_of(path: tuple[str, ...]) -> float:
        return gain if any(name in heads for name in path) else math.sqrt(2)

    return orthogonal_tree(key, shapes, gain_of)


class Layers(nn.Module):
    """The layers of a `Body`: inputs [N, ...] to features [N, F].

    `noise` [N, `noise_size`] makes the dense layers noisy; None: at their means.
    `joined` [N, J] goes into the dense layers with what the convolutions give.
    """

    body: Body
    channels: Sequence[int]
    noisy: bool = False

    @nn.compact
    def __call__(
        self, x: Array, noise: Array | None = None, joined: Array | None = None
    ) -> Array:
        act = ACTIVATIONS[self.body.activation]
        normal = (lambda x: LayerNorm()(x)) if self.body.layer_norm else (lambda x: x)
        for size in self.channels:
            x = act(normal(Conv(size)(x)))
        x = x.reshape(x.shape[0], -1)
        if joined is not None:
            x = jnp.concatenate([x, joined], -1)
        for size in self.body.hidden:
            if self.noisy:
                own, noise = split_noise(noise, x.shape[-1] + size)
                x = NoisyDense(size)(x, own)
            else:
                x = nn.Dense(size)(x)
            x = act(normal(x))
        return x


class LayerNorm(nn.Module):
    """Layer normalisation over the last axis, with scale and offset."""

    @nn.compact
    def __call__(self, x: Array) -> Array:
        scale = 1.0 + self.param("scale_shift", _ZEROS, (x.shape[-1],))
        offset = self.param("offset", _ZEROS, (x.shape[-1],))
        x = x - x.mean(-1, keepdims=True)
        x = x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-6)
        rank = (1,) * (x.ndim - 1)
        return x * scale.reshape(*rank, -1) + offset.reshape(*rank, -1)


class NoisyDense(nn.Module):
    """A dense layer with learned noise, another for each sample.

    Factorised Gaussian noise, Fortunato et al. 2018, section 3.2: weights are
    mu + sigma f(e_in) f(e_out), with f(e) = sign(e) sqrt(|e|).
    """

    size: int

    @nn.compact
    def __call__(self, x: Array, noise: Array | None) -> Array:
        width = x.shape[-1]
        start = _NOISE / math.sqrt(width)
        kernel = self.param("kernel", _ZEROS, (width, self.size))
        bias = self.param("bias", _ZEROS, (self.size,))
        kernel_scale = self.param("kernel_scale_shift", _ZEROS, (width, self.size))
        bias_scale = self.param("bias_scale_shift", _ZEROS, (self.size,))
        y = x @ kernel + bias[None]
        if noise is None:
            return y
        noise = jnp.sign(noise) * jnp.sqrt(jnp.abs(noise))
        into, out = noise[:, :width], noise[:, width:]
        wild = (x * into) @ (kernel_scale + start) + (bias_scale + start)[None]
        return y + wild * out


def split_noise(noise: Array | None, size: int) -> tuple[Array | None, Array | None]:
    """The first `size` columns of the noise [N, ...], and the rest."""
    if noise is None:
        return None, None
    return noise[:, :size], noise[:, size:]
