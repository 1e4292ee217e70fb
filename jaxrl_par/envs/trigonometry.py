"""Sine and cosine by polynomials, for steps made of little else."""

from __future__ import annotations

import math

import jax.numpy as jnp

from jaxrl_par.types import Array


def sin_cos(angle: Array) -> tuple[Array, Array]:
    """Sine and cosine of float32 angles in rad, any shape.

    Within 2e-7 for angles up to 1000 rad. On a CPU, jax 0.10.2, a step of Acrobot
    takes 121 ns with it instead of 312 (64 environments; with 1024: 210 and 290).
    Not for a step with one or two sines: XLA computes what is cheap again in every
    kernel that needs it, and CartPole with 1024 environments became slower (28 ns
    from 20). Source: Moshier 1989, Cephes, `sinf` and `cosf`.
    """
    quarter = jnp.round(angle * (2 / math.pi))
    # pi / 2 in three parts, the first two short enough for exact products.
    rest = angle - quarter * 1.5703125 - quarter * 4.837512969970703e-4
    rest = rest - quarter * 7.549789948768648e-8
    square = rest * rest
    sin = (-1.9515295891e-4 * square + 8.3321608736e-3) * square - 1.6666654611e-1
    sin = sin * square * rest + rest
    cos = (2.443315711809948e-5 * square - 1.388731625493765e-3) * square
    cos = (cos + 4.166664568298827e-2) * square * square - 0.5 * square + 1

    turn = quarter.astype(jnp.int32)
    odd = (turn & 1) == 1
    first, second = jnp.where(odd, cos, sin), jnp.where(odd, sin, cos)
    sin = jnp.where((turn & 2) == 2, -first, first)
    cos = jnp.where(((turn + 1) & 2) == 2, -second, second)
    return sin, cos
