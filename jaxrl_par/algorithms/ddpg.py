"""Deep deterministic policy gradients (Lillicrap et al. 2016)."""

from __future__ import annotations

import dataclasses
from typing import Any

from jaxrl_par.algorithms.td3 import TD3, TD3State
from jaxrl_par.networks.body import Body
from jaxrl_par.types import Array, Axes, EnvSpec, Key, PyTree, Rollout, pytree, static


@pytree
class DDPG:
    """DDPG, for a bounded Box: TD3 without what was added to it.

    One critic; the policy and the targets move with every gradient step; the value of
    the target policy's own action is learned. The exploration noise is an
    Ornstein-Uhlenbeck process. Fields as in `TD3`.
    """

    network: Body = static(default=Body((256, 256)))
    rollout_length: int = static(default=1)
    capacity: int = static(default=256_000)
    batch_size: int = static(default=256)
    learning_starts: int = static(default=1000)
    train_every: int = static(default=1)
    num_groups: int = static(default=8)
    learning_rate: float = 1e-4
    critic_learning_rate: float | None = 1e-3
    adam_eps: float = 1e-8
    gamma: float = 0.99
    tau: float = 0.001
    n_step: int = static(default=1)
    # Lillicrap et al. 2016, section 7: theta 0.15 and sigma 0.2 a step, which is a
    # correlation of 1 - 0.15 and a deviation of 0.2 / sqrt(1 - 0.85^2).
    exploration_noise: float = 0.38
    noise_correlation: float = 0.85

    sharded = TD3.sharded

    def validate(self, spec: EnvSpec, num_envs: int) -> None:
        """Raise ValueError for sizes or spaces that DDPG cannot train on."""
        self._rule().validate(spec, num_envs)

    def max_devices(self, num_envs: int) -> int:
        """The number of strata: the number of devices must divide it."""
        return self._rule().max_devices(num_envs)

    def init(self, key: Key, spec: EnvSpec, num_envs: int) -> TD3State:
        """Parameters, and an empty replay."""
        return self._rule().init(key, spec, num_envs)

    def initial_carry(self, spec: EnvSpec, num_envs: int) -> Array:
        """The last exploration noise, [B, D]."""
        return self._rule().initial_carry(spec, num_envs)

    def noise(self, state: TD3State, key: Key, length: int) -> Array:
        """Randomness for `length` actions of one environment, [T, D]."""
        return self._rule().noise(state, key, length)

    def act(
        self, state: TD3State, carry: Array, obs: PyTree, noise: Any, greedy: bool
    ) -> tuple[Array, Array, dict[str, Array]]:
        """The policy's actions [B, ...], with noise (at first: random) or without."""
        return self._rule().act(state, carry, obs, noise, greedy)

    def update(
        self, state: TD3State, rollout: Rollout, key: Key, axes: Axes
    ) -> tuple[TD3State, dict[str, Array]]:
        """Store a rollout, and take the gradient steps that are due."""
        return self._rule().update(state, rollout, key, axes)

    def _rule(self) -> TD3:
        fields = (field.name for field in dataclasses.fields(self))
        shared = {name: getattr(self, name) for name in fields}
        return TD3(**shared, num_critics=1, policy_delay=1, target_noise=0.0)
