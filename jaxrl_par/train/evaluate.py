"""Evaluation: greedy episodes on keys and environments of their own.

Nothing of the training state changes. Every environment plays the same number of
episodes, so short ones are not counted more often; rewards are the environment's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_par import checks
from jaxrl_par.envs.batched import BatchedEnv, Draws, where
from jaxrl_par.envs.wrappers import Instances
from jaxrl_par.types import Algorithm, Array, Key, PyTree

# Environments that play at once, and steps of an episode where there is no limit.
MAX_ENVS = 128
MAX_STEPS = 10_000
# All results of an evaluation are kept: of so many, 128 MiB.
MAX_EPISODES = 2**24


class Evaluation(NamedTuple):
    """Results of an evaluation; arrays [episodes], in order of environment."""

    returns: np.ndarray  # float32
    lengths: np.ndarray  # int32
    unfinished: int  # episodes cut off for want of a time limit, not counted above

    @property
    def mean_return(self) -> float:
        return float(self.returns.mean()) if self.returns.size else float("nan")


@dataclasses.dataclass(frozen=True)
class Evaluator:
    """Plays `episodes` greedy episodes. One compile, however often it is called."""

    episodes: int = 100

    def __post_init__(self) -> None:
        checks.positive_int("eval_episodes", self.episodes, below=MAX_EPISODES)

    @property
    def num_envs(self) -> int:
        """The most environments, at most MAX_ENVS, with an equal quota of episodes."""
        most = min(self.episodes, MAX_ENVS)
        return next(n for n in range(most, 0, -1) if self.episodes % n == 0)

    def __call__(
        self, algorithm: Algorithm, env: BatchedEnv, state: PyTree, key: Key
    ) -> Evaluation:
        """Evaluate an algorithm's state; the same key gives the same result."""
        return _result(_play(algorithm, env, state, key, *self._sizes))

    def compile(
        self, algorithm: Algorithm, env: BatchedEnv, state: PyTree, key: Key
    ) -> Callable[[Algorithm, BatchedEnv, PyTree, Key], Evaluation]:
        """The same function, compiled now, for arguments like these."""
        play = _play.lower(algorithm, env, state, key, *self._sizes).compile()
        return lambda *args: _result(play(*args))

    @property
    def _sizes(self) -> tuple[int, int]:
        """Environments, and episodes of each."""
        return self.num_envs, self.episodes // self.num_envs


def _result(played: tuple[Array, Array, Array]) -> Evaluation:
    returns, lengths, counts = jax.device_get(played)
    finished = np.arange(len(returns))[:, None] < counts
    return Evaluation(
        returns=returns.T[finished.T],
        lengths=lengths.T[finished.T],
        unfinished=int((~finished).sum()),
    )


@partial(jax.jit, static_argnames=("num_envs", "quota"))
def _play(
    algorithm: Algorithm,
    env: BatchedEnv,
    state: PyTree,
    key: Key,
    num_envs: int,
    quota: int,
) -> tuple[Array, Array, Array]:
    """Returns [quota, E], lengths [quota, E] and finished episodes [E]."""
    env = _for_evaluation(env, num_envs, quota)
    start_key, step_key = jax.random.split(key)
    start_keys = jax.random.split(start_key, (1 + quota, num_envs))
    pool = env.prepare(start_keys, quota).pool
    env_state, timestep = env.start(jax.tree.map(lambda x: x[0], pool))
    fresh_memory = algorithm.initial_carry(env.spec, num_envs)
    limit = min((env.spec.max_steps or MAX_STEPS) * quota, 2**31 - 1)  # fits int32
    slots = jnp.arange(quota)[:, None]

    def step(carry: tuple) -> tuple:
        t, env_state, obs, memory, returns, lengths = carry
        memory, action, _ = algorithm.act(state, memory, obs, None, greedy=True)
        keys = jax.random.split(jax.random.fold_in(step_key, t), num_envs)
        current = slots == env_state.episodes[None]  # [quota, E]; none after the last
        env_state, new = env.step(env_state, action, Draws(keys, (), pool))
        returns = returns + jnp.where(current, new.reward[None], 0.0)
        return (
            t + 1,
            env_state,
            new.obs,
            where(new.first, fresh_memory, memory),
            returns,
            lengths + current,
        )

    start = (
        jnp.int32(0),
        env_state,
        timestep.obs,
        fresh_memory,
        jnp.zeros((quota, num_envs)),
        jnp.zeros((quota, num_envs), jnp.int32),
    )
    end = jax.lax.while_loop(
        lambda c: (c[0] < limit) & (c[1].episodes < quota).any(), step, start
    )
    _, env_state, _, _, returns, lengths = end
    return returns, lengths, jnp.minimum(env_state.episodes, quota)


def _for_evaluation(env: BatchedEnv, num_envs: int, quota: int) -> BatchedEnv:
    """A pool with one start an episode; of several physics, the first ones in turn."""
    inner = env.env
    if isinstance(inner, Instances):
        inner = Instances(
            jax.tree.map(
                lambda leaf: leaf[jnp.arange(num_envs) % leaf.shape[0]], inner.env
            )
        )
    return BatchedEnv(inner, reset="pool", pool_size=quota)
