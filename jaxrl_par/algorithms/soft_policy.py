"""Stochastic policies and their critics, as soft actor-critic learns them.

Of a Box a squashed normal, whose values and entropies are estimated from one sample
(Haarnoja et al. 2018b); of a Discrete space a categorical, whose are exact
(Christodoulou 2019).
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from jaxrl_par import distributions, spaces
from jaxrl_par.algorithms import actor_critic
from jaxrl_par.networks import base, critic, inputs
from jaxrl_par.networks.body import Body
from jaxrl_par.types import Array, EnvSpec, Key, PyTree

# Share of the largest entropy that a policy of a Discrete space is to keep.
_SHARE = 0.5


class SoftPolicy(Protocol):
    """What soft actor-critic needs of a kind of actions."""

    @property
    def networks(self) -> tuple[base.Network, critic.Critics]:
        """Of the policy's outputs [N, D], and of action values."""
        ...

    def stored(self) -> Array:
        """A placeholder of an action as it is kept."""
        ...

    def noise(self, key: Key, shape: tuple[int, ...]) -> Array:
        """Randomness of actions of leading shape `shape`."""
        ...

    def act(
        self, outputs: Array, mask: Array | None, noise: Array, uniform: Array
    ) -> tuple[Array, Array]:
        """(action [B, ...] in the environment's units, as it is kept), by noise alone.

        `uniform` () bool: of a policy for which all actions are as likely.
        """
        ...

    def best(self, outputs: Array, mask: Array | None) -> Array:
        """The most likely actions [B, ...] in the environment's units."""
        ...

    def evaluate(
        self, actor: PyTree, critics: PyTree, obs: PyTree, noise: Array | None
    ) -> tuple[Array, Array]:
        """The policy at N observations: (its least action value [N], entropy [N]).

        `noise` [N, D] is of one sample (None where none is needed).
        """
        ...

    def values(self, critics: PyTree, obs: PyTree, action: Array) -> Array:
        """Values [C, N] of actions that were kept."""
        ...

    def entropies(self) -> tuple[float, float]:
        """The least and the most that a policy can have, in nats."""
        ...

    def target_entropy(self, obs: PyTree) -> Array | float:
        """The entropy that is to be kept where none is given; a number, or [N]."""
        ...


@dataclasses.dataclass(frozen=True)
class Squashed:
    """Of a bounded Box: a diagonal normal through tanh. Units [D] are kept."""

    body: Body
    spec: EnvSpec
    num_critics: int
    log_std: tuple[Any, Any]  # bounds

    @property
    def law(self) -> distributions.TanhNormal:
        return distributions.TanhNormal(actor_critic.bounded_box(self.spec))

    @property
    def networks(self) -> tuple[base.Network, critic.Critics]:
        return (
            critic.actor(self.body, self.spec, self.law.num_outputs),
            critic.critics(self.body, self.spec, self.num_critics),
        )

    def stored(self) -> Array:
        return jnp.zeros(spaces.flat_size(self.spec.action_space))

    def noise(self, key: Key, shape: tuple[int, ...]) -> Array:
        return self.law.noise(key, shape)

    def act(
        self, outputs: Array, mask: Array | None, noise: Array, uniform: Array
    ) -> tuple[Array, Array]:
        # Never inverted: the sample is squashed once, and what is kept is that.
        unit = jnp.tanh(self.law.sample(self._bounded(outputs), noise))
        unit = jnp.where(uniform, actor_critic.uniform_of(noise), unit)
        return actor_critic.to_action(self.law.box, unit), unit

    def best(self, outputs: Array, mask: Array | None) -> Array:
        return self.law.to_action(self.law.mode(outputs))

    def evaluate(
        self, actor: PyTree, critics: PyTree, obs: PyTree, noise: Array | None
    ) -> tuple[Array, Array]:
        assert noise is not None
        policy, values = self.networks
        outputs = self._bounded(policy.apply(actor, obs))
        sample = self.law.sample(outputs, noise)
        value = values.apply(critics, obs, jnp.tanh(sample)).min(0)
        return value, -self.law.log_prob(outputs, sample)

    def values(self, critics: PyTree, obs: PyTree, action: Array) -> Array:
        return self.networks[1].apply(critics, obs, action)

    def entropies(self) -> tuple[float, float]:
        return -math.inf, spaces.flat_size(self.spec.action_space) * math.log(2)

    def target_entropy(self, obs: PyTree) -> float:
        return -float(spaces.flat_size(self.spec.action_space))

    def _bounded(self, outputs: Array) -> Array:
        mean, log_std = jnp.split(outputs, 2, -1)
        return jnp.concatenate([mean, jnp.clip(log_std, *self.log_std)], -1)


@dataclasses.dataclass(frozen=True)
class Choice:
    """Of a Discrete space: a categorical over valid actions. Indices are kept."""

    body: Body
    spec: EnvSpec
    num_critics: int

    @property
    def law(self) -> distributions.Categorical:
        space = self.spec.action_space
        assert isinstance(space, spaces.Discrete)
        return distributions.Categorical(space.n, space.start)

    @property
    def networks(self) -> tuple[base.Network, critic.Critics]:
        return (
            critic.actor(self.body, self.spec, self.law.num_outputs),
            critic.critics(self.body, self.spec, self.num_critics),
        )

    def stored(self) -> Array:
        return jnp.int32(0)

    def noise(self, key: Key, shape: tuple[int, ...]) -> Array:
        return self.law.noise(key, shape)

    def act(
        self, outputs: Array, mask: Array | None, noise: Array, uniform: Array
    ) -> tuple[Array, Array]:
        outputs = jnp.where(uniform, 0.0, outputs)
        index = self.law.sample(_masked(outputs, mask), noise)
        return self.law.to_action(index), index

    def best(self, outputs: Array, mask: Array | None) -> Array:
        return self.law.to_action(self.law.mode(_masked(outputs, mask)))

    def evaluate(
        self, actor: PyTree, critics: PyTree, obs: PyTree, noise: Array | None
    ) -> tuple[Array, Array]:
        policy, values = self.networks
        outputs = _masked(policy.apply(actor, obs), inputs.split_mask(obs)[0])
        least = values.apply(critics, obs, None).min(0)
        value = (jax.nn.softmax(outputs) * least).sum(-1)
        return value, self.law.entropy(outputs)

    def values(self, critics: PyTree, obs: PyTree, action: Array) -> Array:
        found = self.networks[1].apply(critics, obs, None)
        return distributions.pick(found, action[None])

    def entropies(self) -> tuple[float, float]:
        return 0.0, math.log(self.law.n)

    def target_entropy(self, obs: PyTree) -> Array | float:
        mask = inputs.split_mask(obs)[0]
        if mask is None:
            return _SHARE * math.log(self.law.n)
        return _SHARE * jnp.log(jnp.maximum(mask.sum(-1), 1))


def _masked(outputs: Array, mask: Array | None) -> Array:
    return outputs if mask is None else distributions.mask_outputs(outputs, mask)


def for_space(
    body: Body, spec: EnvSpec, num_critics: int, log_std: tuple[Any, Any]
) -> SoftPolicy:
    """The policy for an environment. Raises ValueError for actions of another kind."""
    if isinstance(spec.action_space, spaces.Discrete):
        return Choice(body, spec, num_critics)
    actor_critic.bounded_box(spec)
    return Squashed(body, spec, num_critics, log_std)
