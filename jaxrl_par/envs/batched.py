"""The one batching wrapper: vmap, time limit, auto-reset, episode statistics.

Randomness is drawn in bulk before a rollout (`prepare`) from each environment's own
key, so that nothing depends on how environments are laid over devices.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import jax
import jax.numpy as jnp

from jaxrl_par.envs.wrappers import Instances
from jaxrl_par.types import (
    Array,
    EnvSpec,
    Key,
    PyTree,
    StepResult,
    TimeStep,
    pytree,
    static,
    strong,
)

ResetMode = Literal["pool", "exact"]


@pytree
class EnvState:
    """States of B environments under way."""

    inner: PyTree  # [B, ...]
    elapsed: Array  # [B] int32, steps since the episode began
    episodes: Array  # [B] int32, episodes ended since `prepare`


@pytree
class Draws:
    """Randomness for T steps, drawn before them."""

    step_keys: Key  # [T, B]
    reset_keys: Any  # [T, B], or () with a pool
    pool: Any  # start states and observations [P, B, ...], or () without


@pytree
class BatchedEnv:
    """B copies of `env` stepped together, each reset when its episode ends.

    `reset` is "exact" (a new start state is computed at every step, and used where
    an episode ended) or "pool": each environment gets `pool_size` independent start
    states a rollout and uses them in order, over again once all are used.
    Each start state has the distribution of `env.reset` either way.
    """

    env: Any  # Environment or Instances
    reset: ResetMode = static(default="pool")
    pool_size: int = static(default=8)

    def __post_init__(self) -> None:
        if self.reset not in ("pool", "exact"):
            raise ValueError(f"reset {self.reset!r} must be 'pool' or 'exact'")
        if self.pool_size < 1:
            raise ValueError(f"pool_size {self.pool_size} must be at least 1")

    @property
    def spec(self) -> EnvSpec:
        return self.env.spec

    def full_spec(self) -> EnvSpec:
        """The spec, with what has to be traced to be known."""
        return dataclasses.replace(self.spec, truncates=self._truncates_itself())

    def init(self, keys: Key) -> tuple[EnvState, TimeStep]:
        """Start B episodes from keys [B]."""
        return self.start(strong(self._reset(keys)))

    def start(self, fresh: tuple[PyTree, PyTree]) -> tuple[EnvState, TimeStep]:
        """Start B episodes from start states and observations [B, ...]."""
        inner, obs = fresh
        num_envs = jax.tree.leaves(obs)[0].shape[0]
        off = jnp.zeros(num_envs, bool)
        timestep = TimeStep(
            obs=obs,
            # Not the same buffers: the state is donated, and none may be twice.
            next_obs=jax.tree.map(jnp.copy, obs),
            reward=jnp.zeros(num_envs, jnp.float32),
            terminated=off,
            truncated=off,
            first=~off,
        )
        zeros = jnp.zeros(num_envs, jnp.int32)
        return EnvState(inner, zeros, zeros), timestep

    def num_keys(self, length: int) -> int:
        """Keys of each environment that `prepare` uses for `length` steps."""
        return 2 if self.reset == "exact" else 1 + min(self.pool_size, length)

    def prepare(self, keys: Key, length: int) -> Draws:
        """Draw the randomness of `length` steps from keys [num_keys(length), B]."""
        step_keys = _step_keys(keys[0], length)
        if self.reset == "exact":
            return Draws(step_keys, _step_keys(keys[1], length), ())
        return Draws(step_keys, (), self._start_states(keys[1:]))

    def step(
        self, state: EnvState, action: PyTree, draws: Draws
    ) -> tuple[EnvState, TimeStep]:
        """Step B environments; `draws` holds this step's keys, and the pool.

        The reward, flags and `next_obs` are of the step taken; `obs` is what to act
        on next, the first of a new episode wherever one ended.
        """
        inner, result = self._step(draws.step_keys, state.inner, action)
        elapsed = state.elapsed + 1
        terminated = jnp.asarray(result.terminated, bool)
        cut = jnp.asarray(result.truncated, bool)
        if self.spec.max_steps is not None:
            cut = cut | (elapsed >= self.spec.max_steps)
        truncated = jnp.broadcast_to(cut, terminated.shape) & ~terminated
        ended = terminated | truncated
        fresh_inner, fresh_obs = self._fresh(state, draws)
        timestep = TimeStep(
            obs=where(ended, fresh_obs, result.obs),
            next_obs=result.obs,
            reward=result.reward.astype(jnp.float32),
            terminated=terminated,
            truncated=truncated,
            first=ended,
        )
        return EnvState(
            inner=where(ended, fresh_inner, inner),
            elapsed=jnp.where(ended, 0, elapsed),
            episodes=state.episodes + ended,
        ), timestep

    def max_cuts(self, length: int) -> int:
        """Most truncations that one environment can have in `length` steps.

        Few when only the time limit truncates; every step when the environment
        may truncate on its own.
        """
        if self._truncates_itself():
            return length
        limit = self.spec.max_steps
        return 0 if limit is None else min(length, -(-length // limit))

    def _truncates_itself(self) -> bool:
        flags = []

        def probe(key: Key) -> None:
            reset_key, action_key, step_key = jax.random.split(key, 3)
            state, _ = self.env.reset(reset_key)
            action = self.spec.action_space.sample(action_key)
            _, result = self.env.step(step_key, state, action)
            flags.append(result.truncated is not False)

        single = jax.eval_shape(lambda: jax.random.key(0))
        if isinstance(self.env, Instances):
            first = jax.tree.map(lambda leaf: leaf[0], self.env.env)
            return BatchedEnv(first)._truncates_itself()
        jax.eval_shape(probe, single)
        return flags[-1]

    def _start_states(self, keys: Key) -> tuple[PyTree, PyTree]:
        """Start states for keys [P, B], with leading axes [P, B]."""
        if isinstance(self.env, Instances):
            return strong(jax.vmap(self._reset)(keys))
        # One flat vmap: two nested ones of a small draw compile three times longer.
        fresh = strong(self._reset(keys.reshape(-1)))
        return jax.tree.map(lambda x: x.reshape(*keys.shape, *x.shape[1:]), fresh)

    def _reset(self, keys: Key) -> tuple[PyTree, PyTree]:
        if isinstance(self.env, Instances):
            return jax.vmap(lambda env, key: env.reset(key))(self.env.env, keys)
        return jax.vmap(self.env.reset)(keys)

    def _step(
        self, keys: Key, state: PyTree, action: PyTree
    ) -> tuple[PyTree, StepResult]:
        if isinstance(self.env, Instances):
            return jax.vmap(lambda env, *args: env.step(*args))(
                self.env.env, keys, state, action
            )
        return jax.vmap(self.env.step)(keys, state, action)

    def _fresh(self, state: EnvState, draws: Draws) -> tuple[PyTree, PyTree]:
        if self.reset == "exact":
            return strong(self._reset(draws.reset_keys))
        size = jax.tree.leaves(draws.pool)[0].shape[0]
        slot = (state.episodes + 1) % size
        env = jnp.arange(state.episodes.shape[0])
        return jax.tree.map(lambda start: start[slot, env], draws.pool)


def _step_keys(keys: Key, length: int) -> Key:
    """Keys [length, B] from keys [B].

    Not by split, whose result would have to be transposed: JAX's key-reuse check
    takes transposed keys for used ones. One flat vmap: nested ones compile longer.
    """
    num_envs = keys.shape[0]
    flat = jnp.broadcast_to(keys, (length, num_envs)).reshape(-1)
    step = jnp.repeat(jnp.arange(length), num_envs)
    return jax.vmap(jax.random.fold_in)(flat, step).reshape(length, num_envs)


def where(mask: Array, new: PyTree, old: PyTree) -> PyTree:
    """Per environment: `new` where `mask` [B] is set, else `old` ([B, ...])."""

    def choose(x: Array, y: Array) -> Array:
        return jnp.where(mask.reshape(mask.shape + (1,) * (y.ndim - 1)), x, y)

    return jax.tree.map(choose, new, old)
