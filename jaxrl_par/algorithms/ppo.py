"""Proximal policy optimisation (Schulman et al. 2017)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp

from jaxrl_par import (
    checks,
    collectives,
    distributions,
    losses,
    minibatches,
    normalize,
    outliers,
)
from jaxrl_par.algorithms import optimizers
from jaxrl_par.networks import auto, base, inputs
from jaxrl_par.returns import discounted_returns, sum_td_errors, td_errors
from jaxrl_par.types import Array, Axes, EnvSpec, Key, PyTree, Rollout, pytree, static

# policy_loss(log_ratio [N], advantage [N], clip_eps) -> losses [N]
PolicyLoss = Callable[[Array, Array, Any], Array]


@pytree
class PPOState:
    """What PPO learns and remembers."""

    params: PyTree
    opt_state: PyTree
    learning_rate_scale: Array  # () float32, moved by `adaptive_kl`
    obs_moments: PyTree  # a Moments for each leaf, or None
    return_moments: Any  # Moments of discounted returns, or None
    running_return: Any  # [B] discounted return of the episode under way, or None
    spec: EnvSpec = static()


@pytree
class Batch:
    """What the loss needs of each sample."""

    obs: PyTree  # [N, ...] normalised
    mask: Array | None  # [N, D] valid actions
    sample: Array  # [N, ...]
    log_prob: Array  # [N] of the acting policy
    value: Array  # [N] of the acting critic
    advantage: Array  # [N]
    target: Array  # [N]
    weight: Array | None = None  # [N] of mean 1 in a minibatch; before, whether kept


_NORMALIZERS = ("normalize_advantage", "normalize_obs", "normalize_reward")
_RATES = (
    *("learning_rate", "gamma", "gae_lambda", "clip_eps", "value_clip"),
    *("value_coef", "entropy_coef", "max_grad_norm", "adam_eps"),
    *("target_kl", "adaptive_kl", "outlier_bound", "outlier_spread"),
)


@pytree
class PPO:
    """Proximal policy optimisation, clipped. Rates are leaves, sizes are static.

    `network` is a factory or an (init, apply) pair (`networks.base`); by default a
    small CNN for images and an MLP for all else.
    `policy_loss(log_ratio, advantage, clip_eps)` gives the loss of each sample.
    `anneal` lowers the learning rate linearly to zero, a step an update. `value_clip`
    bounds how far a value moves from the acting critic's (None: not at all).
    `target_kl` skips the rest of an update's gradient steps once the approximate KL
    exceeds it; `adaptive_kl` moves the learning rate to keep the KL near it.
    `num_groups` is the number of strata of a minibatch, and the most devices that
    can share the environments. `outliers` says what is done with transitions whose
    reward, observation or TD error lies more than `outlier_bound` spreads from the
    median, a spread being at least `outlier_spread` (`outliers.Filter`).
    """

    network: base.Factory | base.Network = static(default=auto)
    policy_loss: PolicyLoss = static(default=losses.ppo_clip)
    rollout_length: int = static(default=128)
    num_epochs: int = static(default=4)
    num_minibatches: int = static(default=4)
    num_groups: int = static(default=8)
    learning_rate: float = 2.5e-4
    anneal: bool = static(default=True)
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip_eps: float = 0.2
    value_clip: float | None = None
    value_coef: float = 0.5
    entropy_coef: float = 0.01
    max_grad_norm: float = 0.5
    adam_eps: float = 1e-5
    target_kl: float | None = None
    adaptive_kl: float | None = None
    normalize_advantage: bool = static(default=True)
    normalize_obs: bool = static(default=False)
    normalize_reward: bool = static(default=False)
    squash: bool = static(default=False)
    microbatch_size: int | None = static(default=None)
    outliers: Literal["drop", "clip"] | None = static(default=None)
    outlier_bound: float = 10.0
    outlier_spread: float = 1.0

    sharded = ("running_return",)

    def validate(self, spec: EnvSpec, num_envs: int) -> None:
        """Raise ValueError for sizes or spaces that PPO cannot train on."""
        for name in ("rollout_length", "num_epochs", "num_minibatches", "num_groups"):
            checks.positive_int(name, getattr(self, name))
        checks.optional_positive_int("microbatch_size", self.microbatch_size)
        for name in ("anneal", "squash", *_NORMALIZERS):
            checks.boolean(name, getattr(self, name))
        for name in _RATES:
            checks.scalar(name, getattr(self, name))
        for name in ("learning_rate", "max_grad_norm", "adam_eps"):
            checks.positive(name, getattr(self, name))
        for name in ("gamma", "gae_lambda"):
            checks.between(name, getattr(self, name), 0.0, 1.0)
        for name in ("clip_eps", "value_coef", "entropy_coef"):
            checks.not_negative(name, getattr(self, name))
        for name in ("value_clip", "target_kl", "adaptive_kl"):
            if getattr(self, name) is not None:
                checks.positive(name, getattr(self, name))
        self._outliers().validate()
        self._distribution(spec)
        _check_policy_loss(self.policy_loss)
        base.check_network(self.network, spec)
        group_envs = num_envs // self.max_devices(num_envs)
        minibatches.blocks_per_group(
            self.rollout_length, group_envs, self.num_minibatches
        )

    def max_devices(self, num_envs: int) -> int:
        """The number of strata: the number of devices must divide it."""
        return minibatches.count_groups(num_envs, self.num_groups)

    def init(self, key: Key, spec: EnvSpec, num_envs: int) -> PPOState:
        """Parameters and statistics before the first step."""
        params = base.build(self.network, spec).init(key)
        return PPOState(
            params=params,
            opt_state=self._optimizer().init(params),
            learning_rate_scale=jnp.float32(1.0),
            obs_moments=self._zero_moments(spec),
            return_moments=normalize.Moments.zero() if self.normalize_reward else None,
            running_return=jnp.zeros(num_envs) if self.normalize_reward else None,
            spec=spec,
        )

    def initial_carry(self, spec: EnvSpec, num_envs: int) -> tuple[()]:
        """No memory."""
        return ()

    def noise(self, state: PPOState, key: Key, length: int) -> Array:
        """Randomness for `length` actions of one environment, [T, ...]."""
        return self._distribution(state.spec).noise(key, (length,))

    def act(
        self, state: PPOState, carry: tuple[()], obs: PyTree, noise: Any, greedy: bool
    ) -> tuple[tuple[()], Array, dict[str, Array]]:
        """Draw actions [B, ...], or take the likeliest if `greedy`."""
        distribution = self._distribution(state.spec)
        mask, obs = inputs.split_mask(obs)
        obs = self._normalize(state, obs)
        outputs, value = self._forward(state.spec, state.params, obs, mask)
        if greedy:
            return carry, distribution.to_action(distribution.mode(outputs)), {}
        sample = distribution.sample(outputs, noise)
        log_prob = distribution.log_prob(outputs, sample)
        extras = {"sample": sample, "log_prob": log_prob, "value": value}
        return carry, distribution.to_action(sample), extras

    def update(
        self, state: PPOState, rollout: Rollout, key: Key, axes: Axes
    ) -> tuple[PPOState, dict[str, Array]]:
        """Learn from one rollout in epochs of shuffled minibatches."""
        value_of = partial(self._value, state)
        rollout, kept, found = self._outliers().rollout(rollout, axes, value_of)
        statistics = self._statistics(state, rollout, axes)
        reward = rollout.reward
        if self.normalize_reward:
            reward = statistics["return_moments"].scale(reward)
        value = rollout.extras["value"]
        next_value = rollout.successor_values(value, value_of)
        delta = td_errors(reward, value, next_value, rollout.terminated, self.gamma)
        delta, kept, wild = self._outliers().td_errors(delta, kept, axes)
        ended = rollout.terminated | rollout.truncated
        advantage = sum_td_errors(delta, ended, self.gamma * self.gae_lambda)
        mask, obs = inputs.split_mask(rollout.obs)
        extras = outliers.blank(rollout.extras, kept)
        batch = Batch(
            obs=self._normalize(state, obs),
            mask=mask,
            advantage=advantage,
            target=advantage + extras["value"],
            weight=kept,
            **extras,
        )
        state, metrics = self._learn(state, batch, rollout.progress, key, axes)
        return dataclasses.replace(state, **statistics), metrics | found | wild

    def _statistics(
        self, state: PPOState, rollout: Rollout, axes: Axes
    ) -> dict[str, PyTree]:
        """The normalisers after this rollout, as fields of the state."""
        fields = {}
        if self.normalize_obs:
            _, obs = inputs.split_mask(rollout.obs)
            fields["obs_moments"] = normalize.merge(state.obs_moments, obs, axes)
        if self.normalize_reward:
            ended = rollout.terminated | rollout.truncated
            running, returns = discounted_returns(
                state.running_return, rollout.reward, ended, self.gamma
            )
            moments = state.return_moments.merge(returns.reshape(-1), axes)
            fields |= {"return_moments": moments, "running_return": running}
        return fields

    def _learn(
        self, state: PPOState, batch: Batch, progress: Array, key: Key, axes: Axes
    ) -> tuple[PPOState, dict[str, Array]]:
        """Epochs of gradient steps; metrics are means over the steps taken."""
        schedule = jnp.maximum(1.0 - progress, 0.0) if self.anneal else 1.0

        def gradient_step(
            carry: tuple[PPOState, Array], minibatch: Batch
        ) -> tuple[tuple[PPOState, Array], dict[str, Array]]:
            state, going = carry
            new, metrics = self._gradient_step(state, minibatch, schedule, axes)
            if self.target_kl is None:
                return (new, going), metrics
            state = jax.tree.map(partial(jnp.where, going), new, state)
            metrics = jax.tree.map(lambda x: jnp.where(going, x, 0.0), metrics)
            going &= metrics["approx_kl"] <= self.target_kl
            return (state, going), metrics

        def epoch(
            carry: tuple[PPOState, Array], rows: Array
        ) -> tuple[tuple[PPOState, Array], dict[str, Array]]:
            shuffled = minibatches.gather(batch, rows, sizes)
            weight = outliers.weights(shuffled.weight, axes)
            shuffled = dataclasses.replace(shuffled, weight=weight)
            if self.normalize_advantage:
                shuffled = _standardize_advantages(shuffled, axes)
            return jax.lax.scan(gradient_step, carry, shuffled)

        length, num_envs = batch.value.shape
        sizes = minibatches.sizes_of(
            length, num_envs, self.num_minibatches, self.num_groups, axes
        )
        rows = minibatches.shuffled_rows(key, sizes, self.num_epochs, axes)
        (state, _), metrics = jax.lax.scan(epoch, (state, jnp.bool_(True)), rows)
        steps = metrics.pop("gradient_steps").sum()
        metrics = {name: x.sum() / steps for name, x in metrics.items()}
        if self.adaptive_kl is not None:
            scale = _adapt(
                state.learning_rate_scale, metrics["approx_kl"], self.adaptive_kl
            )
            state = dataclasses.replace(state, learning_rate_scale=scale)
        return state, {**metrics, "gradient_steps": steps}

    def _gradient_step(
        self, state: PPOState, batch: Batch, schedule: Array | float, axes: Axes
    ) -> tuple[PPOState, dict[str, Array]]:
        learning_rate = self.learning_rate * schedule * state.learning_rate_scale
        taken = self._optimizer().step(
            partial(self._loss, state.spec),
            *(state.params, state.opt_state, batch, learning_rate, axes),
        )
        metrics = taken.metrics | {
            "learning_rate": jnp.float32(learning_rate),
            "grad_norm": collectives.norm(taken.gradient),
            "gradient_steps": jnp.float32(1.0),
        }
        state = dataclasses.replace(
            state, params=taken.params, opt_state=taken.opt_state
        )
        return state, metrics

    def _loss(
        self, spec: EnvSpec, params: PyTree, batch: Batch
    ) -> tuple[Array, tuple[dict[str, Array], tuple[()]]]:
        """Policy loss + value_coef * value loss - entropy_coef * entropy, means."""
        distribution = self._distribution(spec)
        outputs, value = self._forward(spec, params, batch.obs, batch.mask)
        mean = partial(outliers.mean, weight=batch.weight)
        log_ratio = distribution.log_prob(outputs, batch.sample) - batch.log_prob
        policy = mean(self.policy_loss(log_ratio, batch.advantage, self.clip_eps))
        critic = losses.value_loss(value, batch.value, batch.target, self.value_clip)
        critic = mean(critic)
        entropy = mean(distribution.entropy(outputs))
        loss = policy + self.value_coef * critic - self.entropy_coef * entropy
        metrics = {
            "loss": loss,
            "policy_loss": policy,
            "value_loss": critic,
            "entropy": entropy,
            "approx_kl": mean(losses.approx_kl(log_ratio)),
            "clip_fraction": mean(jnp.abs(jnp.expm1(log_ratio)) > self.clip_eps),
        }
        return loss, (metrics, ())

    def _forward(
        self, spec: EnvSpec, params: PyTree, obs: PyTree, mask: Array | None
    ) -> tuple[Array, Array]:
        outputs, value = base.build(self.network, spec).apply(params, obs)
        if mask is not None:
            outputs = distributions.mask_outputs(outputs, mask)
        return outputs, value

    def _value(self, state: PPOState, obs: PyTree) -> Array:
        obs = self._normalize(state, inputs.split_mask(obs)[1])
        return self._forward(state.spec, state.params, obs, None)[1]

    def _normalize(self, state: PPOState, obs: PyTree) -> PyTree:
        if not self.normalize_obs:
            return obs
        return normalize.normalize(state.obs_moments, obs)

    def _zero_moments(self, spec: EnvSpec) -> PyTree:
        space = inputs.network_obs_space(spec)
        return normalize.zero_moments(space) if self.normalize_obs else None

    def _outliers(self) -> outliers.Filter:
        return outliers.Filter(self.outliers, self.outlier_bound, self.outlier_spread)

    def _distribution(self, spec: EnvSpec) -> distributions.Distribution:
        return distributions.for_space(spec.action_space, self.squash)

    def _optimizer(self) -> optimizers.Adam:
        return optimizers.Adam(self.adam_eps, self.max_grad_norm, self.microbatch_size)


def _check_policy_loss(policy_loss: PolicyLoss) -> None:
    """Raise ValueError unless it gives a loss of each of five samples."""
    samples = jax.ShapeDtypeStruct((5,), jnp.float32)
    one = jax.ShapeDtypeStruct((), jnp.float32)
    rule = (
        f"policy_loss {policy_loss!r} must be a function (log_ratio [N], advantage "
        "[N], clip_eps) -> losses [N]"
    )
    try:
        found = jax.eval_shape(policy_loss, samples, samples, one)
    except Exception as error:
        raise ValueError(
            f"{rule}; it raises {type(error).__name__}: {error}"
        ) from error
    if getattr(found, "shape", None) != (5,):
        raise ValueError(f"{rule}; for N = 5 it gives {found}")


def _standardize_advantages(batch: Batch, axes: Axes) -> Batch:
    """Advantages [M, N] to mean 0 and deviation 1 within each minibatch."""
    mean, var = outliers.moments(batch.advantage, batch.weight, axes)
    advantage = losses.standardize(batch.advantage, mean[:, None], var[:, None])
    return dataclasses.replace(batch, advantage=advantage)


def _adapt(scale: Array, kl: Array, target: Array | float) -> Array:
    """Lower the rate where the KL is twice the target, raise it where half.

    Steps of 1.5, within a hundredth and a hundredfold of the base rate (rsl_rl).
    """
    scale = jnp.where(kl > 2 * target, scale / 1.5, scale)
    scale = jnp.where(kl < target / 2, scale * 1.5, scale)
    return jnp.clip(scale, 0.01, 100.0)
