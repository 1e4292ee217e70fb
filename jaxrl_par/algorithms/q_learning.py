"""Q-learning with a table (Watkins & Dayan 1992)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_par.algorithms import epsilon_greedy, tabular
from jaxrl_par.algorithms.tabular import TabularState, Transitions
from jaxrl_par.types import Array, Axes, EnvSpec, Key, Rollout, pytree, static


@pytree
class QLearning:
    """Q-learning: a table of action values, towards r + gamma max Q(successor).

    Observations are Discrete or MultiDiscrete, actions Discrete. All environments share
    one table, which starts at `initial_value`; what several that left the same entry
    do to it is in `tabular`. One environment with a rollout of one step is the loop of
    Sutton & Barto 2018, section 6.5; in a longer one all act by the table of before it.
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

    sharded = ()

    def validate(self, spec: EnvSpec, num_envs: int) -> None:
        """Raise ValueError for rates and spaces that it cannot train on."""
        tabular.validate(self, spec)

    def max_devices(self, num_envs: int) -> int:
        """Environments may lie on devices in any way."""
        return num_envs

    def init(self, key: Key, spec: EnvSpec, num_envs: int) -> TabularState:
        """The state before the first step."""
        return tabular.init(self, spec)

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
        """Learn from the steps of one rollout, in their order."""

        def learn(table: Array, now: Transitions) -> tuple[Array, Array]:
            following = table[now.successor].max(-1)
            target = tabular.targets(now, following, self.gamma)
            every = jnp.ones_like(now.terminated)
            return tabular.move(table, now, target, every, self.learning_rate, axes)

        steps = tabular.transitions(state.spec, rollout)
        table, errors = jax.lax.scan(learn, state.params, steps)
        return tabular.after(self, state, table, errors, rollout, axes)
