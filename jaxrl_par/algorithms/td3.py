"""Twin delayed deep deterministic policy gradients (Fujimoto et al. 2018)."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_par import checks, collectives, spaces
from jaxrl_par.algorithms import actor_critic, counting, off_policy, optimizers
from jaxrl_par.networks import base, critic
from jaxrl_par.networks.body import Body
from jaxrl_par.replay import ring
from jaxrl_par.types import Array, Axes, EnvSpec, Key, PyTree, Rollout, pytree, static


@pytree
class Params:
    """The networks; or what belongs to each."""

    actor: PyTree
    critics: PyTree  # [C, ...]


@pytree
class Learner:
    """What a gradient step changes."""

    params: Params
    target: Params
    opt_state: Params
    since_policy: Array  # () int32, gradient steps since the policy's last
    policy_metrics: dict[str, Array]  # of the policy's last step


@pytree
class TD3State:
    """What TD3 learns and remembers."""

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
    noise: Array  # [N, D] of the next action


_RATES = (
    *("learning_rate", "critic_learning_rate", "adam_eps", "gamma", "tau"),
    *("exploration_noise", "noise_correlation", "target_noise", "target_noise_clip"),
)


@pytree
class TD3:
    """TD3, for a bounded Box. Rates are leaves, sizes are static.

    `network` is the `Body` of the actor and of each of `num_critics` critics, of which
    the least value counts. The critics are learned with `learning_rate` too, unless
    they have their own.

    `capacity` transitions are kept. Once `learning_starts` steps are made, a gradient
    step on `batch_size` of them is taken every `train_every` environment steps. Before,
    actions are uniformly random, with the exploration's correlation (from the middle of
    the box on, in each episode). Every `policy_delay` gradient steps the policy takes
    one too, and all target networks move by `tau` of their distance. `n_step` rewards
    are summed up.

    Noise is of actions scaled to [-1, 1]: `exploration_noise` is the deviation of
    that in the environment, where one step's correlates with the next one's by
    `noise_correlation` (above 0: an Ornstein-Uhlenbeck process); `target_noise`, cut at
    `target_noise_clip`, is that of the action whose value is learned. `num_groups` is
    the number of strata of a minibatch, and the most devices that can share the
    environments.
    """

    network: Body = static(default=Body((256, 256)))
    num_critics: int = static(default=2)
    rollout_length: int = static(default=1)
    capacity: int = static(default=256_000)
    batch_size: int = static(default=256)
    learning_starts: int = static(default=1000)
    train_every: int = static(default=1)
    policy_delay: int = static(default=2)
    num_groups: int = static(default=8)
    learning_rate: float = 3e-4
    critic_learning_rate: float | None = None
    adam_eps: float = 1e-8
    gamma: float = 0.99
    tau: float = 0.005
    n_step: int = static(default=1)
    exploration_noise: float = 0.1
    noise_correlation: float = 0.0
    target_noise: float = 0.2
    target_noise_clip: float = 0.5

    sharded = ("replay",)

    def validate(self, spec: EnvSpec, num_envs: int) -> None:
        """Raise ValueError for sizes or spaces that TD3 cannot train on."""
        actor_critic.bounded_box(spec)
        actor_critic.check(self, spec, num_envs, _RATES)
        for name in ("num_critics", "policy_delay"):
            checks.positive_int(name, getattr(self, name))
        for name in ("exploration_noise", "target_noise", "target_noise_clip"):
            checks.not_negative(name, getattr(self, name))

    def max_devices(self, num_envs: int) -> int:
        """The number of strata: the number of devices must divide it."""
        return off_policy.max_devices(self, num_envs)

    def init(self, key: Key, spec: EnvSpec, num_envs: int) -> TD3State:
        """Parameters, and an empty replay."""
        actor, critics = self._networks(spec)
        actor_key, critic_key = jax.random.split(key)
        params = Params(actor.init(actor_key), critics.init(critic_key))
        optimizer = optimizers.Adam(self.adam_eps)
        unit = jnp.zeros(spaces.flat_size(spec.action_space))
        return TD3State(
            learner=Learner(
                params=params,
                # Not the same buffers: the state is donated, and none may be twice.
                target=jax.tree.map(jnp.copy, params),
                opt_state=Params(
                    optimizer.init(params.actor), optimizer.init(params.critics)
                ),
                since_policy=jnp.int32(0),
                policy_metrics={
                    name: jnp.float32(0) for name in ("actor_loss", "actor_grad_norm")
                },
            ),
            replay=ring.empty(
                *(spec, num_envs, self.capacity, self.rollout_length), unit
            ),
            clock=off_policy.start(),
            spec=spec,
        )

    def initial_carry(self, spec: EnvSpec, num_envs: int) -> Array:
        """The last exploration noise, [B, D]."""
        return jnp.zeros((num_envs, spaces.flat_size(spec.action_space)))

    def noise(self, state: TD3State, key: Key, length: int) -> Array:
        """Randomness for `length` actions of one environment, [T, D]."""
        shape = (length, spaces.flat_size(state.spec.action_space))
        return jax.random.normal(key, shape)

    def act(
        self, state: TD3State, carry: Array, obs: PyTree, noise: Any, greedy: bool
    ) -> tuple[Array, Array, dict[str, Array]]:
        """The policy's actions [B, ...], with noise (at first: random) or without."""
        unit = self._policy(state.spec, state.params.actor, obs)
        extras = {}
        if not greedy:
            carry = actor_critic.correlate(carry, noise, self.noise_correlation)
            unit = jnp.clip(unit + self.exploration_noise * carry, -1.0, 1.0)
            uniform = actor_critic.warming_up(state.clock, self.learning_starts)
            unit = jnp.where(uniform, actor_critic.uniform_of(carry), unit)
            extras = {"unit": unit}
        box = actor_critic.bounded_box(state.spec)
        return carry, actor_critic.to_action(box, unit), extras

    def update(
        self, state: TD3State, rollout: Rollout, key: Key, axes: Axes
    ) -> tuple[TD3State, dict[str, Array]]:
        """Store a rollout, and take the gradient steps that are due."""
        unit = rollout.extras["unit"]
        replay, clock, due = off_policy.remember(self, state, rollout, unit, axes)

        def batches(key: Key, count: int) -> Batch:
            draw_key, noise_key = jax.random.split(key)
            shape = (count, self.batch_size, unit.shape[-1])
            return Batch(
                steps=off_policy.draw(self, replay, draw_key, count, axes),
                noise=actor_critic.normal(noise_key, shape, axes),
            )

        step = partial(self._gradient_step, state.spec, axes)
        together = off_policy.at_once(self, replay, rollout, axes)
        count = off_policy.most_steps(self, rollout, axes)
        learner, metrics, _ = off_policy.learn(
            *(step, state.learner, batches, key), count, due, together
        )
        metrics["policy_updates"] = metrics.pop("policy_updates_sum")
        state = TD3State(learner, replay, clock, state.spec)
        return state, metrics | off_policy.replay_size(replay, axes)

    def _gradient_step(
        self, spec: EnvSpec, axes: Axes, learner: Learner, batch: Batch
    ) -> tuple[Learner, dict[str, Array], tuple[()]]:
        """A step of the critics; and where it is due, then one of the policy."""
        target = self._target(spec, learner.target, batch)
        rate = self.critic_learning_rate
        taken = optimizers.Adam(self.adam_eps).step(
            partial(self._critic_loss, spec),
            *(learner.params.critics, learner.opt_state.critics, (batch, target)),
            *(self.learning_rate if rate is None else rate, axes),
        )
        due, since = counting.crossings(learner.since_policy, 1, self.policy_delay)
        learner = Learner(
            params=Params(learner.params.actor, taken.params),
            target=learner.target,
            opt_state=Params(learner.opt_state.actor, taken.opt_state),
            since_policy=since,
            policy_metrics=learner.policy_metrics,
        )
        # A loop of no step or one: a `cond` would copy all that it may change.
        learner = jax.lax.fori_loop(
            *(0, due),
            lambda _, learner: self._policy_step(spec, axes, batch.steps, learner),
            learner,
        )
        metrics = taken.metrics | {
            "critic_grad_norm": collectives.norm(taken.gradient),
            "policy_updates": due.astype(jnp.float32),
        }
        return learner, metrics | learner.policy_metrics, ()

    def _policy_step(
        self, spec: EnvSpec, axes: Axes, steps: ring.Transitions, learner: Learner
    ) -> Learner:
        """A step of the policy, and of the target networks."""
        params = learner.params
        taken = optimizers.Adam(self.adam_eps).step(
            partial(self._policy_loss, spec, params.critics),
            *(params.actor, learner.opt_state.actor, steps, self.learning_rate, axes),
        )
        params = Params(taken.params, params.critics)
        norm = collectives.norm(taken.gradient)
        return Learner(
            params=params,
            target=off_policy.move(learner.target, params, self.tau),
            opt_state=Params(taken.opt_state, learner.opt_state.critics),
            since_policy=learner.since_policy,
            policy_metrics=taken.metrics | {"actor_grad_norm": norm},
        )

    def _target(self, spec: EnvSpec, target: Params, batch: Batch) -> Array:
        """Values [N] to be learned, of actions near the policy's; algorithm 1."""
        steps, clip = batch.steps, self.target_noise_clip
        unit = self._policy(spec, target.actor, steps.next_obs)
        noise = jnp.clip(self.target_noise * batch.noise, -clip, clip)
        unit = jnp.clip(unit + noise, -1.0, 1.0)
        values = self._networks(spec)[1].apply(target.critics, steps.next_obs, unit)
        return steps.reward + steps.discount * values.min(0)

    def _critic_loss(
        self, spec: EnvSpec, critics: PyTree, batch_and_target: tuple[Batch, Array]
    ) -> tuple[Array, tuple[dict[str, Array], tuple[()]]]:
        batch, target = batch_and_target
        steps = batch.steps
        values = self._networks(spec)[1].apply(critics, steps.obs, steps.action)
        loss = actor_critic.critic_loss(values, target, steps.weight)
        return loss, ({"critic_loss": loss, "q_value": values.mean()}, ())

    def _policy_loss(
        self, spec: EnvSpec, critics: PyTree, actor: PyTree, steps: ring.Transitions
    ) -> tuple[Array, tuple[dict[str, Array], tuple[()]]]:
        """Minus the first critic's value of the policy's actions."""
        first = jax.tree.map(lambda x: x[:1], critics)
        unit = self._policy(spec, actor, steps.obs)
        values = self._networks(spec)[1].apply(first, steps.obs, unit)
        loss = -(steps.weight * values[0]).mean()
        return loss, ({"actor_loss": loss}, ())

    def _policy(self, spec: EnvSpec, actor: PyTree, obs: PyTree) -> Array:
        """Its actions [N, D], scaled to [-1, 1]."""
        return jnp.tanh(self._networks(spec)[0].apply(actor, obs))

    def _networks(self, spec: EnvSpec) -> tuple[base.Network, critic.Critics]:
        size = spaces.flat_size(spec.action_space)
        return (
            critic.actor(self.network, spec, size),
            critic.critics(self.network, spec, self.num_critics),
        )
