"""Adam, as all algorithms here use it."""

from __future__ import annotations

from typing import Any

import jax
import optax

from jaxrl_par.types import Array, PyTree


def adam(
    eps: Array | float, max_grad_norm: Array | float | None = None
) -> optax.GradientTransformation:
    """Adam's directions, of gradients clipped to a norm (None: as they are).

    Flat: one vector instead of a dozen leaves compiles and runs faster.
    """
    directions = optax.scale_by_adam(eps=eps)
    if max_grad_norm is None:
        return optax.flatten(directions)
    return optax.flatten(
        optax.chain(optax.clip_by_global_norm(max_grad_norm), directions)
    )


def apply(
    optimizer: optax.GradientTransformation,
    gradient: PyTree,
    opt_state: Any,
    params: PyTree,
    learning_rate: PyTree,
) -> tuple[PyTree, Any]:
    """One step against a gradient: (params, opt_state).

    `learning_rate` is a number, or a tree of one for each part of the parameters.
    """

    def step(rate: Array | float, params: PyTree, directions: PyTree) -> PyTree:
        return jax.tree.map(lambda p, d: p - rate * d, params, directions)

    directions, opt_state = optimizer.update(gradient, opt_state)
    return jax.tree.map(step, learning_rate, params, directions), opt_state
