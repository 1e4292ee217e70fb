"""Adam, as all algorithms here use it."""

from __future__ import annotations

from typing import Any

import jax
import optax

from jaxrl_par.types import Array, PyTree

# Parameters up to which the optimiser works on one vector. A small network's dozen
# leaves compile and run faster so (PPO, 9,000 parameters: 1.03 to 1.09 times); of a
# larger one the copies to and from the vector cost more (SAC with layers of 256 units
# is 1.28 times faster without them, DQN on Breakout-MinAtar 1.4 times).
FLAT_PARAMS = 2**14


def adam(
    eps: Array | float, max_grad_norm: Array | float | None = None
) -> optax.GradientTransformation:
    """Adam's directions, of gradients clipped to a norm (None: as they are)."""
    directions = optax.scale_by_adam(eps=eps)
    if max_grad_norm is not None:
        directions = optax.chain(optax.clip_by_global_norm(max_grad_norm), directions)
    flat = optax.flatten(directions)

    def fitting(tree: PyTree) -> optax.GradientTransformation:
        return flat if optax.tree.size(tree) <= FLAT_PARAMS else directions

    def init(params: PyTree) -> Any:
        return fitting(params).init(params)

    def update(updates: PyTree, state: Any, params: PyTree = None) -> Any:
        return fitting(updates).update(updates, state, params)

    return optax.GradientTransformation(init, update)


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
