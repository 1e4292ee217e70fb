"""A convolution that is fast on a CPU too."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl_par.types import Array

_SIZE = 3


class Conv(nn.Module):
    """3x3, without padding: [N, H, W, C] to [N, H - 2, W - 2, features].

    On a CPU it is one matrix product over patches, since XLA's convolution of few
    channels takes five to ten times as long to differentiate there (4 to 16 channels of
    10x10, 64 to 256 samples).
    """

    features: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        shape = (_SIZE, _SIZE, x.shape[-1], self.features)
        kernel = self.param("kernel", nn.initializers.zeros_init(), shape)
        bias = self.param("bias", nn.initializers.zeros_init(), (self.features,))
        y = jax.lax.platform_dependent(x, kernel, cpu=of_patches, default=convolve)
        return y + bias[None, None, None]


def convolve(x: Array, kernel: Array) -> Array:
    """XLA's own."""
    layout = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(
        x, kernel, (1, 1), "VALID", dimension_numbers=layout
    )


def of_patches(x: Array, kernel: Array) -> Array:
    """The same as a product with the patches [N, h, w, 9 C]."""
    height, width = (size - _SIZE + 1 for size in x.shape[1:3])
    parts = [
        x[:, i : i + height, j : j + width] for i in range(_SIZE) for j in range(_SIZE)
    ]
    patches = jnp.concatenate(parts, -1)
    return patches @ kernel.reshape(-1, kernel.shape[-1])
