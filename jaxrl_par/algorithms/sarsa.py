"""SARSA and expected SARSA with a table (Rummery & Niranjan 1994)."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_par import checks
from jaxrl_par.algorithms import epsilon_greedy, tabular
from jaxrl_par.algorithms.tabular import TabularState, Transitions
from jaxrl_par.types import Array, Axes, EnvSpec, Key, Rollout, pytree, static


@pytree
class SARSA:
    """SARSA: a table of action values, towards r + gamma Q(successor, next action).

    The next action is the one that is taken: an update waits for it, a step long, in
    the state's `pending`. Where an episode is cut there is none, and the policy's mean
    over the successor's values stands for it. `expected` uses that mean everywhere
    (expected SARSA, van Seijen et al. 2009, eq. 5), and waits for nothing.

    Observations are Discrete or MultiDiscrete, actions Discrete. All environments share
    one table, which starts at `initial_value`; what several that left the same entry
    do to it is in `tabular`. One environment with a rollout of one step is the loop of
    Sutton & Barto 2018, section 6.4; in a longer one all act by the table of before it.
    Actions are random with probability `epsilon`, which goes linearly to
    `final_epsilon` (None: it stays) over the first `exploration_fraction` of a run.
    """

    rollout_length: int = static(default=1)
    learning_rate: float = 0.5
    gamma: float = 1.0
    epsilon: float = 0.1
    final_epsilon: float | None = None
    exploration_fraction: float = 1.0
    initial_value: float = 0.0
    expected: bool = static(default=False)

    sharded = ("pending",)

    def validate(self, spec: EnvSpec, num_envs: int) -> None:
        """Raise ValueError for rates and spaces that it cannot train on."""
        checks.boolean("expected", self.expected)
        tabular.validate(self, spec)

    def max_devices(self, num_envs: int) -> int:
        """Environments may lie on devices in any way."""
        return num_envs

    def init(self, key: Key, spec: EnvSpec, num_envs: int) -> TabularState:
        """The state before the first step."""
        state = tabular.init(self, spec)
        if self.expected:
            return state
        pending = Transitions.zeros(num_envs)
        return dataclasses.replace(state, pending=pending)

    def initial_carry(self, spec: EnvSpec, num_envs: int) -> tuple[()]:
        """No memory."""
        return ()

    def noise(self, state: TabularState, key: Key, length: int) -> Array:
        """Randomness for `length` actions of one environment, [T, 2]."""
        return epsilon_greedy.noise(key, length)

    def act(
        self,
        state: TabularState,
        carry: tuple[()],
        obs: Array,
        noise: Any,
        greedy: bool,
    ) -> tuple[tuple[()], Array, dict[str, Array]]:
        """Epsilon-greedy actions [B], or the best if `greedy`."""
        return carry, tabular.act(state, obs, noise, greedy), {}

    def update(
        self, state: TabularState, rollout: Rollout, key: Key, axes: Axes
    ) -> tuple[TabularState, dict[str, Array]]:
        """Learn from the steps of one rollout, in their order.

        Each completes the one before it, and then, if it needs no next action, itself.
        """
        steps = tabular.transitions(state.spec, rollout)
        ended = rollout.terminated | rollout.truncated
        complete = jnp.ones_like(ended) if self.expected else ended
        before, follows = self._predecessors(state, steps, rollout.first)
        move = partial(tabular.move, learning_rate=self.learning_rate, axes=axes)

        def learn(table: Array, step: tuple) -> tuple[Array, Array]:
            now, complete, before, follows = step
            errors = jnp.zeros(2)
            if not self.expected:
                following = table[now.state, now.action]
                target = tabular.targets(before, following, self.gamma)
                table, errors = move(table, before, target, follows)
            following = tabular.expected_value(table[now.successor], state.epsilon)
            target = tabular.targets(now, following, self.gamma)
            table, more = move(table, now, target, complete)
            return table, errors + more

        table, errors = jax.lax.scan(
            learn, state.params, (steps, complete, before, follows)
        )
        if not self.expected:
            last = jax.tree.map(lambda x: x[-1], steps)
            state = dataclasses.replace(state, pending=last)
        return tabular.after(self, state, table, errors, rollout, axes)

    def _predecessors(
        self, state: TabularState, steps: Transitions, first: Array
    ) -> tuple[Transitions | None, Array | None]:
        """The step before each, [T, B], and whether there is one that it completes."""
        if self.expected:
            return None, None
        before = jax.tree.map(
            lambda last, x: jnp.concatenate([last[None], x[:-1]]), state.pending, steps
        )
        # After an update that was skipped, what is pending leads to another state.
        return before, ~first & (before.successor == steps.state)
