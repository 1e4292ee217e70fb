"""Soft actor-critic (Haarnoja et al. 2018a, 2018b; Christodoulou 2019)."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_par import checks, collectives
from jaxrl_par.algorithms import actor_critic, off_policy, optimizers, soft_policy
from jaxrl_par.networks import inputs
from jaxrl_par.networks.body import Body
from jaxrl_par.replay import ring
from jaxrl_par.types import Array, Axes, EnvSpec, Key, PyTree, Rollout, pytree, static


@pytree
class Params:
    """All that is learned by gradients; or a rate for each."""

    actor: PyTree
    critics: PyTree  # [C, ...]
    log_temperature: Any  # () float32; None if it is fixed


@pytree
class Learner:
    """What a gradient step changes."""

    params: Params
    target_critics: PyTree
    opt_state: PyTree


@pytree
class SACState:
    """What SAC learns and remembers."""

    learner: Learner
    replay: ring.Ring
    clock: off_policy.Clock
    spec: EnvSpec = static()

    @property
    def params(self) -> Params:
        """The networks that act and learn."""
        return self.learner.params


@pytree
class Batch:
    """What a gradient step needs of each sample."""

    steps: ring.Transitions  # [N, ...]
    noise: Array | None  # [N, 2, D] of the next action, and of the action


_RATES = (
    *("learning_rate", "critic_learning_rate", "temperature_learning_rate"),
    *("gamma", "tau", "adam_eps", "temperature", "target_entropy"),
    *("min_log_std", "max_log_std", "noise_correlation"),
)


@pytree
class SAC:
    """Soft actor-critic, for a bounded Box or a Discrete space. Rates are leaves.

    `network` is the `Body` of the actor and of each of `num_critics` critics, of which
    the least value counts. All are learned with `learning_rate`, unless the critics and
    the temperature have their own.

    The entropy is kept at `target_entropy` nats by the temperature, which begins at
    `temperature` (`auto_temperature` False: it stays there). None: minus the number of
    dimensions of a Box, where the density is of actions in [-1, 1] (Haarnoja et al.
    2018b, appendix D); half the logarithm of the number of (valid) actions of a
    Discrete space. A Box's log deviations are kept within `min_log_std` and
    `max_log_std`.

    `capacity` transitions are kept. Once `learning_starts` steps are made, a gradient
    step on `batch_size` of them is taken every `train_every` steps, each of which moves
    the target critics by `tau` of their distance. All counts are of environment steps.
    Before, actions are uniformly random, of a Box with the exploration's correlation
    (from the middle on, in each episode). `n_step` rewards are summed up; the entropies
    on the way are not (they are of another policy).

    `noise_correlation` is that of a Box's exploration from one step to the next: above
    0 it persists, as where much has to be done to be rewarded at all (Eberhard et al.
    2023). `num_groups` is the number of strata of a minibatch, and the most devices
    that can share the environments.
    """

    network: Body = static(default=Body((256, 256)))
    num_critics: int = static(default=2)
    rollout_length: int = static(default=1)
    capacity: int = static(default=256_000)
    batch_size: int = static(default=256)
    learning_starts: int = static(default=1000)
    train_every: int = static(default=1)
    num_groups: int = static(default=8)
    learning_rate: float = 3e-4
    critic_learning_rate: float | None = None
    temperature_learning_rate: float | None = None
    adam_eps: float = 1e-8
    gamma: float = 0.99
    tau: float = 0.005
    n_step: int = static(default=1)
    temperature: float = 1.0
    auto_temperature: bool = static(default=True)
    target_entropy: float | None = None
    min_log_std: float = -20.0
    max_log_std: float = 2.0
    noise_correlation: float = 0.0

    sharded = ("replay",)

    def validate(self, spec: EnvSpec, num_envs: int) -> None:
        """Raise ValueError for sizes or spaces that SAC cannot train on."""
        self._policy(spec)
        actor_critic.check(self, spec, num_envs, _RATES)
        checks.positive_int("num_critics", self.num_critics)
        checks.boolean("auto_temperature", self.auto_temperature)
        check = checks.positive if self.auto_temperature else checks.not_negative
        check("temperature", self.temperature)
        for name in ("min_log_std", "max_log_std"):
            checks.between(name, getattr(self, name), -20.0, 10.0)
        checks.below("min_log_std", self.min_log_std, "max_log_std", self.max_log_std)
        if self.target_entropy is not None:
            checks.finite("target_entropy", self.target_entropy)
            lowest, highest = self._policy(spec).entropies()
            checks.between("target_entropy", self.target_entropy, lowest, highest)

    def max_devices(self, num_envs: int) -> int:
        """The number of strata: the number of devices must divide it."""
        return off_policy.max_devices(self, num_envs)

    def init(self, key: Key, spec: EnvSpec, num_envs: int) -> SACState:
        """Parameters, and an empty replay."""
        policy = self._policy(spec)
        actor, critics = policy.networks
        actor_key, critic_key = jax.random.split(key)
        log_temperature = None
        if self.auto_temperature:
            log_temperature = jnp.log(jnp.float32(self.temperature))
        params: PyTree = Params(
            actor.init(actor_key), critics.init(critic_key), log_temperature
        )
        return SACState(
            learner=Learner(
                params=params,
                # Not the same buffers: the state is donated, and none may be twice.
                target_critics=jax.tree.map(jnp.copy, params.critics),
                opt_state=optimizers.Adam(self.adam_eps).init(params),
            ),
            replay=ring.empty(
                *(spec, num_envs, self.capacity, self.rollout_length), policy.stored()
            ),
            clock=off_policy.start(),
            spec=spec,
        )

    def initial_carry(self, spec: EnvSpec, num_envs: int) -> Any:
        """The last exploration noise of a Box, [B, D]."""
        stored = self._policy(spec).stored()
        return jnp.zeros((num_envs, *stored.shape)) if stored.ndim else ()

    def noise(self, state: SACState, key: Key, length: int) -> Array:
        """Randomness for `length` actions of one environment, [T, ...]."""
        return self._policy(state.spec).noise(key, (length,))

    def act(
        self, state: SACState, carry: Any, obs: PyTree, noise: Any, greedy: bool
    ) -> tuple[Any, Array, dict[str, Array]]:
        """Actions [B, ...] of the policy (at first: random), or its most likely."""
        policy = self._policy(state.spec)
        outputs = policy.networks[0].apply(state.params.actor, obs)
        mask = inputs.split_mask(obs)[0]
        if greedy:
            return carry, policy.best(outputs, mask), {}
        if isinstance(carry, jax.Array):
            carry = noise = actor_critic.correlate(carry, noise, self.noise_correlation)
        uniform = actor_critic.warming_up(state.clock, self.learning_starts)
        action, stored = policy.act(outputs, mask, noise, uniform)
        return carry, action, {"stored": stored}

    def update(
        self, state: SACState, rollout: Rollout, key: Key, axes: Axes
    ) -> tuple[SACState, dict[str, Array]]:
        """Store a rollout, and take the gradient steps that are due."""
        stored = rollout.extras["stored"]
        replay, clock, due = off_policy.remember(self, state, rollout, stored, axes)

        def batches(key: Key, count: int) -> Batch:
            draw_key, noise_key = jax.random.split(key)
            return Batch(
                steps=off_policy.draw(self, replay, draw_key, count, axes),
                noise=self._learning_noise(state.spec, noise_key, count, axes),
            )

        step = partial(self._gradient_step, state.spec, axes)
        together = off_policy.at_once(self, replay, rollout, axes)
        count = off_policy.most_steps(self, rollout, axes)
        learner, metrics, _ = off_policy.learn(
            *(step, state.learner, batches, key), count, due, together
        )
        state = SACState(learner, replay, clock, state.spec)
        return state, metrics | off_policy.replay_size(replay, axes)

    def _gradient_step(
        self, spec: EnvSpec, axes: Axes, learner: Learner, batch: Batch
    ) -> tuple[Learner, dict[str, Array], tuple[()]]:
        """One step of all parameters together, each as the others were before."""
        params = learner.params
        target = self._target(spec, learner, batch)
        taken = optimizers.Adam(self.adam_eps).step(
            partial(self._loss, spec),
            *(params, learner.opt_state, (batch, target)),
            *(self._learning_rates(), axes),
        )
        target_critics = off_policy.move(
            learner.target_critics, taken.params.critics, self.tau
        )
        metrics = taken.metrics | {
            "actor_grad_norm": collectives.norm(taken.gradient.actor),
            "critic_grad_norm": collectives.norm(taken.gradient.critics),
        }
        return Learner(taken.params, target_critics, taken.opt_state), metrics, ()

    def _target(self, spec: EnvSpec, learner: Learner, batch: Batch) -> Array:
        """Soft values [N] to be learned; Haarnoja et al. 2018b, eq. 3 and 5."""
        steps, params = batch.steps, learner.params
        noise = None if batch.noise is None else batch.noise[:, 0]
        value, entropy = self._policy(spec).evaluate(
            params.actor, learner.target_critics, steps.next_obs, noise
        )
        soft = value + self._temperature(params) * entropy
        return steps.reward + steps.discount * soft

    def _loss(
        self, spec: EnvSpec, params: Params, batch_and_target: tuple[Batch, Array]
    ) -> tuple[Array, tuple[dict[str, Array], tuple[()]]]:
        """The sum of three losses, of which each is of parameters of its own.

        Haarnoja et al. 2018b, eq. 5 (critics), 7 (actor) and 18 (temperature).
        """
        (batch, target), policy = batch_and_target, self._policy(spec)
        steps, weight = batch.steps, batch.steps.weight
        values = policy.values(params.critics, steps.obs, steps.action)
        critic_loss = actor_critic.critic_loss(values, target, weight)
        noise = None if batch.noise is None else batch.noise[:, 1]
        fixed = jax.lax.stop_gradient((params.critics, self._temperature(params)))
        value, entropy = policy.evaluate(params.actor, fixed[0], steps.obs, noise)
        actor_loss = -(weight * (value + fixed[1] * entropy)).mean()
        loss = critic_loss + actor_loss
        if self.auto_temperature:
            wanted = self.target_entropy
            if wanted is None:
                wanted = policy.target_entropy(steps.obs)
            excess = weight * (jax.lax.stop_gradient(entropy) - wanted)
            loss += self._temperature(params) * excess.mean()
        metrics = {
            "critic_loss": critic_loss,
            "actor_loss": actor_loss,
            "q_value": values.mean(),
            "entropy": entropy.mean(),
            "temperature": jnp.float32(fixed[1]),
        }
        return loss, (metrics, ())

    def _temperature(self, params: Params) -> Array | float:
        if self.auto_temperature:
            return jnp.exp(params.log_temperature)
        return self.temperature

    def _learning_rates(self) -> Params:
        critic, temperature = self.critic_learning_rate, self.temperature_learning_rate
        return Params(
            actor=self.learning_rate,
            critics=self.learning_rate if critic is None else critic,
            log_temperature=(
                None
                if not self.auto_temperature
                else self.learning_rate
                if temperature is None
                else temperature
            ),
        )

    def _learning_noise(
        self, spec: EnvSpec, key: Key, count: int, axes: Axes
    ) -> Array | None:
        """Noise of this device's share of the minibatches, [K, M, 2, D]."""
        size = self._policy(spec).stored().shape
        shape = (count, self.batch_size, 2, *size)
        return actor_critic.normal(key, shape, axes) if size else None

    def _policy(self, spec: EnvSpec) -> soft_policy.SoftPolicy:
        bounds = (self.min_log_std, self.max_log_std)
        return soft_policy.for_space(self.network, spec, self.num_critics, bounds)
