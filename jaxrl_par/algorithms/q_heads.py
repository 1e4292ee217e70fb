"""Three ways to say what an action is worth: its value, or the law of its return.

A head reads a network's outputs [..., atoms], and gives values [...] and the loss
[N] of the outputs of the actions taken against those of the next ones.
"""

from __future__ import annotations

from typing import Any, Literal, Protocol

import jax
import jax.numpy as jnp

from jaxrl_par import checks, losses
from jaxrl_par.types import Array, pytree, static

Kind = Literal["value", "c51", "quantile"]
KINDS: tuple[Kind, ...] = ("value", "c51", "quantile")


class Head(Protocol):
    """What a value-based algorithm needs of a head."""

    @property
    def atoms(self) -> int:
        """Outputs of an action."""
        ...

    def values(self, outputs: Array) -> Array:
        """Values [...] of outputs [..., atoms]."""
        ...

    def loss(
        self, outputs: Array, next_outputs: Array, reward: Array, discount: Array
    ) -> tuple[Array, Array]:
        """Losses [N] and priorities [N] of outputs [N, atoms] of the actions taken.

        The target is reward + discount * what `next_outputs` [N, atoms] stand for.
        """
        ...


@pytree
class Expected:
    """The value itself; priorities are the absolute TD errors."""

    huber_delta: Any
    atoms: int = static(default=1)

    def values(self, outputs: Array) -> Array:
        return outputs[..., 0]

    def loss(
        self, outputs: Array, next_outputs: Array, reward: Array, discount: Array
    ) -> tuple[Array, Array]:
        error = reward + discount * next_outputs[:, 0] - outputs[:, 0]
        return losses.huber(error, self.huber_delta), jnp.abs(error)


@pytree
class C51:
    """Probabilities of `atoms` returns, evenly from `low` to `high`.

    Bellemare et al. 2017. Priorities are the losses, cross-entropies, as in Dopamine
    (Castro et al. 2018); in Hessel et al. 2018 they are less by the target's entropy.
    """

    low: Any
    high: Any
    atoms: int = static()

    @property
    def support(self) -> Array:
        return jnp.linspace(self.low, self.high, self.atoms)

    def values(self, outputs: Array) -> Array:
        return jax.nn.softmax(outputs) @ self.support

    def loss(
        self, outputs: Array, next_outputs: Array, reward: Array, discount: Array
    ) -> tuple[Array, Array]:
        targets = reward[:, None] + discount[:, None] * self.support[None]
        probs = losses.project(self.support, jax.nn.softmax(next_outputs), targets)
        loss = losses.cross_entropy(outputs, probs)
        return loss, loss


@pytree
class Quantiles:
    """The quantiles of the return at the middles of `atoms` equal shares.

    QR-DQN, Dabney et al. 2018; priorities are the losses.
    """

    huber_delta: Any
    atoms: int = static()

    def values(self, outputs: Array) -> Array:
        return outputs.mean(-1)

    def loss(
        self, outputs: Array, next_outputs: Array, reward: Array, discount: Array
    ) -> tuple[Array, Array]:
        targets = reward[:, None] + discount[:, None] * next_outputs
        loss = losses.quantile_huber(outputs, targets, self.huber_delta)
        return loss, loss


def make(kind: Kind, num_atoms: int, bounds: tuple[Any, Any], huber_delta: Any) -> Head:
    """The head of a name; `bounds` are the lowest and the highest return of C51."""
    if kind == "c51":
        return C51(*bounds, num_atoms)
    if kind == "quantile":
        return Quantiles(huber_delta, num_atoms)
    return Expected(huber_delta)


def check(kind: Any, num_atoms: int, bounds: tuple[Any, Any], huber_delta: Any) -> None:
    """Raise ValueError for what `make` could not use."""
    checks.choice("head", kind, KINDS)
    checks.positive_int("num_atoms", num_atoms)
    if huber_delta is not None:
        checks.positive("huber_delta", huber_delta)
    elif kind == "quantile":
        raise ValueError("huber_delta None: the head 'quantile' needs a number")
    checks.finite("v_min", bounds[0])
    checks.finite("v_max", bounds[1])
    if kind == "c51":
        checks.below("v_min", bounds[0], "v_max", bounds[1])
        checks.finite("v_max - v_min", bounds[1] - bounds[0])
        if num_atoms < 2:
            raise ValueError(f"num_atoms {num_atoms}: the head 'c51' needs at least 2")
