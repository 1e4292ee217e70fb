"""Parallelised Q-network (Gallici et al. 2024): Q(lambda) without replay or target."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_par import checks, collectives, minibatches
from jaxrl_par.algorithms import counting, epsilon_greedy, optimizers
from jaxrl_par.distributions import pick
from jaxrl_par.networks import base, inputs, q_network
from jaxrl_par.networks.body import Body
from jaxrl_par.returns import lambda_returns
from jaxrl_par.types import Array, Axes, EnvSpec, Key, PyTree, Rollout, pytree, static


@pytree
class PQNState:
    """What PQN learns and remembers."""

    params: PyTree
    opt_state: PyTree
    epsilon: Array  # () float32, of the rollout to come
    spec: EnvSpec = static()


@pytree
class Batch:
    """What the loss needs of each sample."""

    obs: PyTree  # [N, ...] without the mask
    index: Array  # [N] int32, of the action taken
    target: Array  # [N]


_SIZES = ("rollout_length", "num_epochs", "num_minibatches", "num_groups")
_SHARES = ("gamma", "lambda_", "epsilon", "final_epsilon", "exploration_fraction")
_POSITIVE = ("learning_rate", "max_grad_norm", "adam_eps")


@pytree
class PQN:
    """Parallelised Q-network. Rates are leaves, sizes are static.

    `network` is a `Body`, or a factory or pair whose `apply(params, obs)` gives action
    values (`q_network`). Without a target network it needs `layer_norm` to be stable.
    `anneal` lowers the learning rate linearly to zero, a step an update. Actions are
    random with a probability that goes from `epsilon` to `final_epsilon` over the
    first `exploration_fraction` of the run, and are constant within a rollout.
    `num_groups` is the number of strata of a minibatch, and the most devices that
    can share the environments.

    As published but for Adam instead of RAdam.
    """

    network: Body | base.Factory | base.Network = static(default=Body(layer_norm=True))
    rollout_length: int = static(default=32)
    num_epochs: int = static(default=2)
    num_minibatches: int = static(default=16)
    num_groups: int = static(default=8)
    learning_rate: float = 5e-4
    anneal: bool = static(default=True)
    gamma: float = 0.99
    lambda_: float = 0.65
    epsilon: float = 1.0
    final_epsilon: float = 0.05
    exploration_fraction: float = 0.1
    max_grad_norm: float = 10.0
    adam_eps: float = 1e-8

    sharded = ()

    def validate(self, spec: EnvSpec, num_envs: int) -> None:
        """Raise ValueError for sizes or spaces that PQN cannot train on."""
        for name in _SIZES:
            checks.positive_int(name, getattr(self, name))
        checks.boolean("anneal", self.anneal)
        for name in (*_SHARES, *_POSITIVE):
            checks.scalar(name, getattr(self, name))
        for name in _SHARES:
            checks.between(name, getattr(self, name), 0.0, 1.0)
        for name in _POSITIVE:
            checks.positive(name, getattr(self, name))
        q_network.check(self.network, spec, atoms=1, dueling=False, noisy=False)
        group_envs = num_envs // self.max_devices(num_envs)
        minibatches.blocks_per_group(
            self.rollout_length, group_envs, self.num_minibatches
        )

    def max_devices(self, num_envs: int) -> int:
        """The number of strata: the number of devices must divide it."""
        return minibatches.count_groups(num_envs, self.num_groups)

    def init(self, key: Key, spec: EnvSpec, num_envs: int) -> PQNState:
        """Parameters before the first step."""
        params = q_network.q_network(self.network, spec).init(key)
        return PQNState(
            params=params,
            opt_state=self._optimizer().init(params),
            epsilon=self._epsilon(0.0),
            spec=spec,
        )

    def initial_carry(self, spec: EnvSpec, num_envs: int) -> tuple[()]:
        """No memory."""
        return ()

    def noise(self, state: PQNState, key: Key, length: int) -> Array:
        """Randomness for `length` actions of one environment, [T, 2]."""
        return epsilon_greedy.noise(key, length)

    def act(
        self, state: PQNState, carry: tuple[()], obs: PyTree, noise: Any, greedy: bool
    ) -> tuple[tuple[()], Array, dict[str, Array]]:
        """Epsilon-greedy actions [B] int32, or the best if `greedy`."""
        mask, obs = inputs.split_mask(obs)
        values = self._values(state.spec, state.params, obs)
        first = q_network.actions(state.spec).start
        if greedy:
            return carry, first + q_network.greedy(values, mask), {}
        index = epsilon_greedy.act(values, mask, noise, state.epsilon)
        return carry, first + index, {"value": _best(values, mask)}

    def update(
        self, state: PQNState, rollout: Rollout, key: Key, axes: Axes
    ) -> tuple[PQNState, dict[str, Array]]:
        """Learn from one rollout in epochs of shuffled minibatches."""
        next_value = rollout.successor_values(
            rollout.extras["value"], partial(self._value, state)
        )
        ends = rollout.terminated, rollout.truncated
        batch = Batch(
            obs=inputs.split_mask(rollout.obs)[1],
            index=rollout.action - q_network.actions(state.spec).start,
            target=lambda_returns(
                rollout.reward, next_value, *ends, self.gamma, self.lambda_
            ),
        )
        rate = jnp.float32(self.learning_rate)
        if self.anneal:
            rate *= jnp.maximum(1.0 - rollout.progress, 0.0)
        found = {"epsilon": state.epsilon, "learning_rate": rate}
        state, metrics = self._learn(state, batch, rate, key, axes)
        epsilon = self._epsilon(rollout.next_progress)
        return dataclasses.replace(state, epsilon=epsilon), metrics | found

    def _learn(
        self, state: PQNState, batch: Batch, rate: Array, key: Key, axes: Axes
    ) -> tuple[PQNState, dict[str, Array]]:
        """Epochs of gradient steps; metrics are means over them."""

        def gradient_step(
            state: PQNState, minibatch: Batch
        ) -> tuple[PQNState, dict[str, Array]]:
            taken = self._optimizer().step(
                partial(self._loss, state.spec),
                *(state.params, state.opt_state, minibatch, rate, axes),
            )
            norm = collectives.norm(taken.gradient)
            state = dataclasses.replace(
                state, params=taken.params, opt_state=taken.opt_state
            )
            return state, taken.metrics | {"grad_norm": norm}

        def epoch(state: PQNState, rows: Array) -> tuple[PQNState, dict[str, Array]]:
            shuffled = minibatches.gather(batch, rows, sizes)
            return jax.lax.scan(gradient_step, state, shuffled)

        length, num_envs = batch.target.shape
        sizes = minibatches.sizes_of(
            length, num_envs, self.num_minibatches, self.num_groups, axes
        )
        rows = minibatches.shuffled_rows(key, sizes, self.num_epochs, axes)
        state, metrics = jax.lax.scan(epoch, state, rows)
        steps = jnp.float32(self.num_epochs * self.num_minibatches)
        metrics = {name: x.mean() for name, x in metrics.items()}
        return state, metrics | {"gradient_steps": steps}

    def _loss(
        self, spec: EnvSpec, params: PyTree, batch: Batch
    ) -> tuple[Array, tuple[dict[str, Array], tuple[()]]]:
        """Half the mean squared error of the taken actions' values."""
        values = self._values(spec, params, batch.obs)
        value = pick(values, batch.index)
        loss = 0.5 * jnp.square(value - batch.target).mean()
        return loss, ({"loss": loss, "q_value": value.mean()}, ())

    def _value(self, state: PQNState, obs: PyTree) -> Array:
        mask, obs = inputs.split_mask(obs)
        return _best(self._values(state.spec, state.params, obs), mask)

    def _values(self, spec: EnvSpec, params: PyTree, obs: PyTree) -> Array:
        """Of all actions, [N, actions]."""
        return q_network.q_network(self.network, spec).apply(params, obs, None)[..., 0]

    def _epsilon(self, progress: Array | float) -> Array:
        return counting.linear(
            progress, self.epsilon, self.final_epsilon, self.exploration_fraction
        )

    def _optimizer(self) -> optimizers.Adam:
        return optimizers.Adam(self.adam_eps, self.max_grad_norm)


def _best(values: Array, mask: Array | None) -> Array:
    """The value [N] of the best action that the mask allows."""
    return pick(values, q_network.greedy(values, mask))
