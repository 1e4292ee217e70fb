"""A whole algorithm in fifty lines: REINFORCE with a linear policy."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_par import collectives, distributions
from jaxrl_par.networks import inputs
from jaxrl_par.returns import gae
from jaxrl_par.types import EnvSpec, pytree, static


@pytree
class ReinforceState:
    weights: Any  # [F, D]
    returns: Any  # [B] undiscounted return of the episode under way
    updates: Any  # () int32
    spec: EnvSpec = static()


@pytree
class Reinforce:
    """The policy gradient of discounted sums of rewards (Williams 1992)."""

    rate: float = 0.05
    gamma: float = 0.9
    rollout_length: int = static(default=6)

    sharded = ("returns",)

    def validate(self, spec, num_envs):
        distributions.for_space(spec.action_space)

    def max_devices(self, num_envs):
        return num_envs

    def init(self, key, spec, num_envs):
        size = distributions.for_space(spec.action_space).num_outputs
        example = inputs.flatten(spec.obs_space, inputs.example(spec.obs_space))
        weights = 0.01 * jax.random.normal(key, (example.shape[1], size))
        return ReinforceState(weights, jnp.zeros(num_envs), 0, spec)

    def initial_carry(self, spec, num_envs):
        return ()

    def noise(self, state, key, length):
        return distributions.for_space(state.spec.action_space).noise(key, (length,))

    def act(self, state, carry, obs, noise, greedy):
        policy = distributions.for_space(state.spec.action_space)
        outputs = inputs.flatten(state.spec.obs_space, obs) @ state.weights
        sample = policy.mode(outputs) if greedy else policy.sample(outputs, noise)
        return carry, policy.to_action(sample), {"sample": sample}

    def update(self, state, rollout, key, axes):
        policy = distributions.for_space(state.spec.action_space)
        zeros, ends = jnp.zeros_like(rollout.reward), rollout.truncated
        sums = gae(
            rollout.reward, zeros, zeros, rollout.terminated, ends, self.gamma, 1.0
        )
        batch = (rollout.obs, rollout.extras["sample"], sums)
        batch = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch)

        def loss(weights, batch):
            obs, sample, sums = batch
            outputs = inputs.flatten(state.spec.obs_space, obs) @ weights
            loss = -(policy.log_prob(outputs, sample) * sums).mean()
            return loss, {"loss": loss}

        gradient, metrics = collectives.gradient(loss, state.weights, batch, axes)
        weights = state.weights - self.rate * gradient
        returns = state.returns + rollout.reward.sum(0)
        updates = state.updates + 1
        return ReinforceState(weights, returns, updates, state.spec), metrics
