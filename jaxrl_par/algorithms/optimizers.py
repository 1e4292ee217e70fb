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
    learning_rate: Array | float,
) -> tuple[PyTree, Any]:
    """One step against a gradient: (params, opt_state)."""
    directions, opt_state = optimizer.update(gradient, opt_state)
    params = jax.tree.map(lambda p, d: p - learning_rate * d, params, directions)
    return params, opt_state
