"""Deep Q-learning (Mnih et al. 2015), and what has been added to it since."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_par import checks, collectives
from jaxrl_par.algorithms import (
    counting,
    epsilon_greedy,
    off_policy,
    optimizers,
    q_heads,
)
from jaxrl_par.distributions import pick
from jaxrl_par.networks import base, inputs, q_network
from jaxrl_par.networks.body import Body
from jaxrl_par.replay import prioritized, ring
from jaxrl_par.types import Array, Axes, EnvSpec, Key, PyTree, Rollout, pytree, static


@pytree
class Learner:
    """What a gradient step changes."""

    params: PyTree
    opt_state: PyTree


@pytree
class DQNState:
    """What DQN learns and remembers."""

    learner: Learner
    target_params: PyTree
    replay: ring.Ring
    tree: Any  # prioritized.Tree, or None
    changes: Any  # prioritized.Changes, or None
    clock: off_policy.Clock
    since_target: Array  # () int32, steps since the target network was moved
    epsilon: Array  # () float32, of the next rollout
    spec: EnvSpec = static()

    @property
    def params(self) -> PyTree:
        """The network that acts and learns."""
        return self.learner.params


@pytree
class Batch:
    """What the loss needs of each sample."""

    steps: ring.Transitions  # [N, ...]
    next_outputs: Array  # [N, actions, atoms] of the target network
    noise: Array | None  # [N, noise_size] of the network


_RATES = (
    *("learning_rate", "gamma", "tau", "epsilon", "final_epsilon"),
    *("exploration_fraction", "max_grad_norm", "adam_eps", "huber_delta"),
    *("priority_exponent", "importance_exponent", "priority_eps", "v_min", "v_max"),
)
_SHARES = (
    *("gamma", "epsilon", "final_epsilon", "exploration_fraction"),
    *("priority_exponent", "importance_exponent"),
)


@pytree
class DQN:
    """Deep Q-learning. Rates are leaves, sizes are static.

    Rainbow (Hessel et al. 2018) is `double`, `dueling`, `n_step` 3, `prioritized`,
    `head` "c51" and `noisy`, with `epsilon` 0. All counts are of environment steps.

    `network` is a `Body`, or a pair (or factory) whose outputs are [N, actions], or
    [N, actions, num_atoms]. `head` is "value", "c51" (`num_atoms` returns from `v_min`
    to `v_max`) or "quantile" (`num_atoms` of them). `double` has the network choose
    the next action that the target network values (van Hasselt et al. 2016).

    `capacity` transitions are kept. Once `learning_starts` steps are made, a gradient
    step on `batch_size` of them is taken every `train_every` steps, and every
    `target_every` steps the target network moves by `tau` of its distance. `epsilon`
    falls linearly to `final_epsilon` over the first `exploration_fraction` of the run.

    `prioritized` draws by (|TD error| + `priority_eps`)^`priority_exponent` (of other
    heads than "value": the loss instead of the error), weighted with an exponent that
    rises from `importance_exponent` to 1 (Schaul et al. 2016).
    `anneal` lowers the learning rate linearly to zero. `huber_delta` bounds the slope
    of the loss (None: squared errors). `num_groups` is the number of strata of a
    minibatch, and the most devices that can share the environments.
    """

    network: Body | base.Factory | base.Network = static(default=Body())
    rollout_length: int = static(default=1)
    capacity: int = static(default=128_000)
    batch_size: int = static(default=128)
    learning_starts: int = static(default=1000)
    train_every: int = static(default=4)
    target_every: int = static(default=500)
    num_groups: int = static(default=8)
    learning_rate: float = 5e-4
    anneal: bool = static(default=False)
    gamma: float = 0.99
    tau: float = 1.0
    epsilon: float = 1.0
    final_epsilon: float = 0.05
    exploration_fraction: float = 0.1
    max_grad_norm: float | None = 10.0
    adam_eps: float = 1e-8
    huber_delta: float | None = 1.0
    double: bool = static(default=True)
    dueling: bool = static(default=False)
    noisy: bool = static(default=False)
    n_step: int = static(default=1)
    head: q_heads.Kind = static(default="value")
    num_atoms: int = static(default=51)
    v_min: float = -10.0
    v_max: float = 10.0
    prioritized: bool = static(default=False)
    priority_exponent: float = 0.5
    importance_exponent: float = 0.4
    priority_eps: float = 1e-6

    sharded = ("replay", "tree")

    def validate(self, spec: EnvSpec, num_envs: int) -> None:
        """Raise ValueError for sizes or spaces that DQN cannot train on."""
        off_policy.check_sizes(self, num_envs)
        checks.positive_int("target_every", self.target_every)
        for name in ("anneal", "double", "dueling", "noisy", "prioritized"):
            checks.boolean(name, getattr(self, name))
        for name in _RATES:
            checks.scalar(name, getattr(self, name))
        for name in ("learning_rate", "adam_eps", "tau", "priority_eps"):
            checks.positive(name, getattr(self, name))
        for name in (*_SHARES, "tau"):
            checks.between(name, getattr(self, name), 0.0, 1.0)
        if self.max_grad_norm is not None:
            checks.positive("max_grad_norm", self.max_grad_norm)
        q_heads.check(*self._head_settings)
        if self.prioritized:
            prioritized.check(num_envs, self.capacity, self.max_devices(num_envs))
        q_network.check(
            self.network, spec, self._head().atoms, self.dueling, self.noisy
        )

    def max_devices(self, num_envs: int) -> int:
        """The number of strata: the number of devices must divide it."""
        return off_policy.max_devices(self, num_envs)

    def init(self, key: Key, spec: EnvSpec, num_envs: int) -> DQNState:
        """Parameters, and an empty replay."""
        params = self._network(spec).init(key)
        replay = ring.empty(
            *(spec, num_envs, self.capacity, self.rollout_length), jnp.int32(0)
        )
        tree = changes = None
        if self.prioritized:
            groups = self.max_devices(num_envs)
            tree = prioritized.empty(num_envs, replay.slots, groups)
            most = self._most_steps(num_envs) * self.batch_size
            changes = prioritized.no_changes(most)
        return DQNState(
            learner=Learner(params, self._optimizer().init(params)),
            # Not the same buffers: the state is donated, and none may be twice.
            target_params=jax.tree.map(jnp.copy, params),
            replay=replay,
            tree=tree,
            changes=changes,
            clock=off_policy.start(),
            since_target=jnp.int32(0),
            epsilon=self._epsilon(0.0),
            spec=spec,
        )

    def initial_carry(self, spec: EnvSpec, num_envs: int) -> tuple[()]:
        """No memory."""
        return ()

    def noise(self, state: DQNState, key: Key, length: int) -> dict[str, Array]:
        """Randomness for `length` actions of one environment, [T, ...]."""
        if not self.noisy:
            return {"choice": epsilon_greedy.noise(key, length)}
        choice_key, weight_key = jax.random.split(key)
        shape = (length, self._network(state.spec).noise_size)
        return {
            "choice": epsilon_greedy.noise(choice_key, length),
            "weights": jax.random.normal(weight_key, shape),
        }

    def act(
        self, state: DQNState, carry: tuple[()], obs: PyTree, noise: Any, greedy: bool
    ) -> tuple[tuple[()], Array, dict[str, Array]]:
        """Epsilon-greedy actions [B], or the best if `greedy`."""
        mask, obs = inputs.split_mask(obs)
        weights = None if greedy else noise.get("weights")
        outputs = self._network(state.spec).apply(state.learner.params, obs, weights)
        values = self._head().values(outputs)
        if greedy:
            index = q_network.greedy(values, mask)
        else:
            index = epsilon_greedy.act(values, mask, noise["choice"], state.epsilon)
        return carry, index + q_network.actions(state.spec).start, {}

    def update(
        self, state: DQNState, rollout: Rollout, key: Key, axes: Axes
    ) -> tuple[DQNState, dict[str, Array]]:
        """Store a rollout, and take the gradient steps that are due."""
        index = rollout.action - q_network.actions(state.spec).start
        replay, clock, due = off_policy.remember(self, state, rollout, index, axes)
        state = dataclasses.replace(state, replay=replay, clock=clock)
        if self.prioritized:
            tree = prioritized.refresh(
                state.tree, replay, self.rollout_length, state.changes, axes
            )
            state = dataclasses.replace(state, tree=tree)
        learning_rate = self.learning_rate * (
            jnp.maximum(1.0 - rollout.progress, 0.0) if self.anneal else 1.0
        )
        count = off_policy.most_steps(self, rollout, axes)
        learner, metrics, (priority, leaf) = off_policy.learn(
            partial(self._gradient_step, state.spec, learning_rate, axes),
            state.learner,
            partial(self._batches, state, rollout.progress, axes),
            *(key, count, due, off_policy.at_once(self, replay, rollout, axes)),
        )
        if self.prioritized:
            changes = self._changes(state.changes, leaf, priority, due, axes)
            state = dataclasses.replace(state, changes=changes)
        epsilon = state.epsilon
        state = dataclasses.replace(
            state, learner=learner, epsilon=self._epsilon(rollout.next_progress)
        )
        state, moves = self._move_target(state, counting.steps_of(rollout, axes))
        return state, metrics | {
            "epsilon": epsilon,
            "learning_rate": jnp.float32(learning_rate),
            "target_updates": moves.astype(jnp.float32),
            **off_policy.replay_size(replay, axes),
        }

    def _batches(
        self, state: DQNState, progress: Array, axes: Axes, key: Key, count: int
    ) -> tuple[Batch, Array | None]:
        """This device's share of `count` minibatches [K, M], and all their leaves."""
        # A split costs as much as a draw.
        draw_key, noise_key = jax.random.split(key) if self.noisy else (key, None)
        steps, leaf = self._sample(state, draw_key, count, progress, axes)
        return self._with_targets(state, steps, noise_key, axes), leaf

    def _sample(
        self, state: DQNState, key: Key, count: int, progress: Array, axes: Axes
    ) -> tuple[ring.Transitions, Array | None]:
        """The steps of these minibatches, and all their leaves."""
        if not self.prioritized:
            return off_policy.draw(self, state.replay, key, count, axes), None
        shape = (count, self.batch_size)
        draws = prioritized.draw(state.tree, key, shape, axes)
        found = prioritized.fetch(
            *(state.tree, state.replay, draws.leaf, self.n_step, self.gamma), axes
        )
        stored = off_policy.stored(state.replay, axes)
        exponent = counting.linear(progress, self.importance_exponent, 1.0, 1.0)
        weight = prioritized.weights(draws.probability, stored, exponent)
        weight = found.weight * collectives.part(weight, 1, axes)
        return dataclasses.replace(found, weight=weight), draws.leaf

    def _with_targets(
        self,
        state: DQNState,
        steps: ring.Transitions,
        key: Key | None,
        axes: Axes,
    ) -> Batch:
        """Batches [K, M, ...], with the target network's outputs: all in one pass."""
        count, samples = steps.reward.shape
        own = other = None
        network = self._network(state.spec)
        if key is not None:
            shape = (2, count, self.batch_size, network.noise_size)
            own, other = collectives.part(jax.random.normal(key, shape), 2, axes)
            other = other.reshape(count * samples, -1)
        _, obs = inputs.split_mask(steps.next_obs)
        flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), obs)
        outputs = network.apply(state.target_params, flat, other)
        return Batch(steps, outputs.reshape(count, samples, *outputs.shape[1:]), own)

    def _gradient_step(
        self,
        spec: EnvSpec,
        learning_rate: Array | float,
        axes: Axes,
        learner: Learner,
        batch_and_leaf: tuple[Batch, Array | None],
    ) -> tuple[Learner, dict[str, Array], tuple[Array, Array | None]]:
        batch, leaf = batch_and_leaf
        target = self._target(spec, learner.params, batch)
        taken = self._optimizer().step(
            partial(self._loss, spec),
            *(learner.params, learner.opt_state, (batch, target), learning_rate, axes),
        )
        metrics = taken.metrics | {"grad_norm": collectives.norm(taken.gradient)}
        return Learner(taken.params, taken.opt_state), metrics, (taken.each, leaf)

    def _target(self, spec: EnvSpec, params: PyTree, batch: Batch) -> Array:
        """The target network's outputs [N, atoms] for the next action."""
        mask, obs = inputs.split_mask(batch.steps.next_obs)
        chooser = batch.next_outputs
        if self.double:
            chooser = self._network(spec).apply(params, obs, batch.noise)
        action = q_network.greedy(self._head().values(chooser), mask)
        return pick(batch.next_outputs, action[:, None], axis=1)

    def _loss(
        self, spec: EnvSpec, params: PyTree, batch_and_target: tuple[Batch, Array]
    ) -> tuple[Array, tuple[dict[str, Array], Array]]:
        """The weighted mean of the head's losses, and the priorities [N]."""
        (batch, target), head = batch_and_target, self._head()
        _, obs = inputs.split_mask(batch.steps.obs)
        outputs = self._network(spec).apply(params, obs, batch.noise)
        outputs = pick(outputs, batch.steps.action[:, None], axis=1)
        each, priority = head.loss(
            outputs, target, batch.steps.reward, batch.steps.discount
        )
        loss = (batch.steps.weight * each).mean()
        metrics = {"loss": loss, "q_value": head.values(outputs).mean()}
        return loss, (metrics, priority)

    def _changes(
        self,
        before: prioritized.Changes,
        leaf: Array | None,
        priority: Array,
        due: Array,
        axes: Axes,
    ) -> prioritized.Changes:
        """The priorities to be written before the next draw, of the steps taken."""
        assert leaf is not None
        priority = (priority + self.priority_eps) ** self.priority_exponent
        priority = collectives.gather(priority.T, axes).T  # [K, M]
        taken = (jnp.arange(len(leaf)) < due)[:, None]
        largest = jnp.where(taken, priority, 0.0).max()
        return prioritized.Changes(
            leaf=jnp.where(taken, leaf, -1).reshape(-1),
            priority=priority.reshape(-1),
            largest=jnp.maximum(before.largest, largest),
        )

    def _move_target(self, state: DQNState, steps: int) -> tuple[DQNState, Array]:
        """Move the target network as often as is due: (state, how often)."""
        moves, since = counting.crossings(state.since_target, steps, self.target_every)
        rate = jnp.where(moves > 0, 1.0 - (1.0 - self.tau) ** moves, 0.0)
        target = off_policy.move(state.target_params, state.learner.params, rate)
        state = dataclasses.replace(state, target_params=target, since_target=since)
        return state, moves

    def _most_steps(self, num_envs: int) -> int:
        """The most gradient steps of an update."""
        return counting.most_crossings(num_envs * self.rollout_length, self.train_every)

    def _epsilon(self, progress: Array | float) -> Array:
        return counting.linear(
            progress, self.epsilon, self.final_epsilon, self.exploration_fraction
        )

    @property
    def _head_settings(self) -> tuple[Any, ...]:
        bounds = (self.v_min, self.v_max)
        return self.head, self.num_atoms, bounds, self.huber_delta

    def _head(self) -> q_heads.Head:
        return q_heads.make(*self._head_settings)

    def _network(self, spec: EnvSpec) -> q_network.QNetwork:
        atoms = self._head().atoms
        return q_network.q_network(self.network, spec, atoms, self.dueling, self.noisy)

    def _optimizer(self) -> optimizers.Adam:
        return optimizers.Adam(self.adam_eps, self.max_grad_norm)
