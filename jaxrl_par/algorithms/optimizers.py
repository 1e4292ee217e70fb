"""Adam, as all algorithms here use it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from jaxrl_par import collectives
from jaxrl_par.collectives import Split, is_split, own_part, whole
from jaxrl_par.types import Array, Axes, PyTree

# Parameters up to which the optimiser works on one vector. A small network's dozen
# leaves compile and run faster so (PPO, 9,000 parameters: 1.03 to 1.09 times); of a
# larger one the copies to and from the vector cost more (SAC with layers of 256 units
# is 1.28 times faster without them, DQN on Breakout-MinAtar 1.4 times).
FLAT_PARAMS = 2**14

# loss(params, batch) -> (loss, (metrics, something of each sample))
Loss = Callable[[PyTree, PyTree], tuple[Array, tuple[dict[str, Array], PyTree]]]


class Taken(NamedTuple):
    """A gradient step that was taken."""

    params: PyTree
    opt_state: Any
    metrics: dict[str, Array]  # means over the samples of all devices
    each: PyTree  # of this device's samples
    gradient: PyTree  # as it was before it was clipped


@dataclasses.dataclass(frozen=True)
class Adam:
    """Kingma & Ba 2015, of gradients clipped to a norm (None: as they are).

    Where the moments are `Split`, each device takes its part of the step, and where
    the parameters are not they are brought together after it (Rajbhandari et al. 2020:
    ZeRO, stages 1 and 3).
    """

    eps: Array | float
    max_grad_norm: Array | float | None = None
    microbatch_size: int | None = None

    def init(self, params: PyTree) -> Any:
        """The state before the first step."""
        small = optax.tree.size(params) <= FLAT_PARAMS
        return self._directions.init(ravel_pytree(params)[0] if small else params)

    def step(
        self,
        loss: Loss,
        params: PyTree,
        opt_state: Any,
        batch: PyTree,
        learning_rate: PyTree,
        axes: Axes,
    ) -> Taken:
        """One step down a mean loss over the samples of all devices.

        `learning_rate` is a number, or a tree of one for each part of the parameters.
        """
        like = None if _is_vector(opt_state.mu) else opt_state.mu
        gradient, metrics, each = collectives.gradient_and_each(
            loss, params, batch, axes, self.microbatch_size, like
        )
        new = self.follow(gradient, params, opt_state, learning_rate)
        return Taken(*new, metrics, each, gradient)

    def follow(
        self, gradient: PyTree, params: PyTree, opt_state: Any, learning_rate: PyTree
    ) -> tuple[PyTree, Any]:
        """The part of a step that comes after its gradient: (params, opt_state)."""
        unravel: Any = lambda x: x  # noqa: E731
        if _is_vector(opt_state.mu):
            gradient, unravel = ravel_pytree(gradient)
        directions, opt_state = self._directions.update(self._clip(gradient), opt_state)

        def move(rate: Array | float, params: PyTree, directions: PyTree) -> PyTree:
            return jax.tree.map(
                lambda p, d: _moved(p, d, rate), params, directions, is_leaf=is_split
            )

        params = jax.tree.map(move, learning_rate, params, unravel(directions))
        return params, opt_state

    def _clip(self, gradient: PyTree) -> PyTree:
        if self.max_grad_norm is None:
            return gradient
        norm, most = collectives.norm(gradient), self.max_grad_norm
        return jax.tree.map(
            lambda g: jnp.where(norm < most, g, g / norm * most), gradient
        )

    @property
    def _directions(self) -> optax.GradientTransformation:
        return optax.scale_by_adam(eps=self.eps)


def _moved(param: Array | Split, direction: Array | Split, rate: Any) -> Any:
    """A parameter after a step of so much of a direction."""
    if isinstance(direction, Split) and not isinstance(param, Split):
        return whole(_moved(own_part(param, direction), direction, rate))
    return jax.tree.map(lambda p, d: p - rate * d, param, direction)


def _is_vector(moments: PyTree) -> bool:
    """Whether they are of all parameters, one after another."""
    return isinstance(moments, jax.Array) and moments.ndim == 1
