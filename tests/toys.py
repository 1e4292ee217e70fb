"""Small environments and an algorithm that the engine's tests share.

Arrays are time-major in rollouts, [T, B, ...], and [B, T, ...] in `TallyState.last`.
"""

from __future__ import annotations

import dataclasses
import math
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_par import collectives, distributions, spaces
from jaxrl_par.algorithms import ppo
from jaxrl_par.envs.batched import BatchedEnv
from jaxrl_par.train import step
from jaxrl_par.types import (
    Array,
    EnvSpec,
    PyTree,
    Rollout,
    StepResult,
    TrainState,
    pytree,
    static,
)

RECORDED = ("obs", "action", "reward", "terminated", "truncated", "first")


@pytree
class Fate:
    """Ends at random, pays at random. Observation: [tag of the episode, its step].

    So the true successor of (tag, t) is (tag, t + 1), and a tag tells episodes apart.
    """

    end: float = 0.2  # probability that a step terminates
    cut: float = 0.0  # probability that it truncates, where `cuts_itself`
    max_steps: int | None = static(default=None)
    cuts_itself: bool = static(default=False)

    @property
    def spec(self) -> EnvSpec:
        obs_space = spaces.Box(0.0, np.inf, (2,))
        return EnvSpec("fate", obs_space, spaces.Discrete(3), self.max_steps)

    def reset(self, key: Any) -> tuple[Array, Array]:
        obs = jnp.stack([jax.random.uniform(key), 0.0])
        return obs, obs

    def step(self, key: Any, state: Array, action: Array) -> tuple[Array, StepResult]:
        reward_key, end_key, cut_key = jax.random.split(key, 3)
        obs = state + jnp.array([0.0, 1.0])
        truncated = jax.random.bernoulli(cut_key, self.cut)
        return obs, StepResult(
            obs=obs,
            reward=jax.random.normal(reward_key),
            terminated=jax.random.bernoulli(end_key, self.end),
            truncated=truncated if self.cuts_itself else False,
        )


@pytree
class Steady:
    """Pays `pay` a step until the time limit. Observation: [share done, noise]."""

    pay: float = 1.0
    max_steps: int | None = static(default=300)

    @property
    def spec(self) -> EnvSpec:
        obs_space = spaces.Box(0.0, 1.0, (2,))
        return EnvSpec("steady", obs_space, spaces.Discrete(3), self.max_steps)

    def reset(self, key: Any) -> tuple[Array, Array]:
        return jnp.float32(0), jnp.stack([0.0, jax.random.uniform(key)])

    def step(self, key: Any, state: Array, action: Array) -> tuple[Array, StepResult]:
        state = state + 1
        obs = jnp.stack([state / 300, jax.random.uniform(key)])
        return state, StepResult(obs, jnp.float32(self.pay), jnp.bool_(False))


@pytree
class Nothing:
    """Observations and rewards of zero, two-step episodes."""

    spec = EnvSpec("nothing", spaces.Box(0.0, 1.0, (2,)), spaces.Discrete(3))

    def reset(self, key: Any) -> tuple[Array, Array]:
        return jnp.int32(0), jnp.zeros(2)

    def step(self, key: Any, state: Array, action: Array) -> tuple[Array, StepResult]:
        return 1 - state, StepResult(jnp.zeros(2), jnp.float32(0), state == 1)


@pytree
class TallyState:
    """What `Tally` learns and remembers."""

    params: Array  # () float32
    opt_state: Array  # () int32, updates made
    last: dict[str, PyTree]  # [B, T, ...] the last rollout
    spec: EnvSpec = static()


@pytree
class Tally:
    """An algorithm that acts at random, follows the mean reward, and keeps its rollout.

    Its memory counts the steps of the episode; its greedy action is that number, as
    far as the space goes. It compiles in a second, where PPO takes five.
    """

    rollout_length: int = static(default=4)
    rate: float = 0.1

    sharded = ("last",)

    def validate(self, spec: EnvSpec, num_envs: int) -> None:
        distributions.for_space(spec.action_space)

    def max_devices(self, num_envs: int) -> int:
        return math.gcd(num_envs, 8)

    def init(self, key: Any, spec: EnvSpec, num_envs: int) -> TallyState:
        shape = (num_envs, self.rollout_length)
        obs = jax.tree.map(
            lambda x: jnp.zeros(shape + x.shape, x.dtype), spaces.zeros(spec.obs_space)
        )
        action = spaces.zeros(spec.action_space)
        flag = jnp.zeros(shape, bool)
        last = {
            "obs": obs,
            "next_obs": obs,
            "action": jnp.zeros(shape + action.shape, action.dtype),
            "reward": jnp.zeros(shape),
            "terminated": flag,
            "truncated": flag,
            "first": flag,
            "memory": jnp.zeros(shape, jnp.int32),
        }
        weak = jnp.asarray(0)  # of weak type, as users write
        return TallyState(jax.random.normal(key), weak, last, spec)

    def initial_carry(self, spec: EnvSpec, num_envs: int) -> Array:
        return jnp.zeros(num_envs, jnp.int32)

    def noise(self, state: TallyState, key: Any, length: int) -> Array:
        return distributions.for_space(state.spec.action_space).noise(key, (length,))

    def act(
        self, state: TallyState, carry: Any, obs: PyTree, noise: Any, greedy: bool
    ) -> tuple[Any, Array, dict]:
        distribution = distributions.for_space(state.spec.action_space)
        outputs = jnp.zeros((*carry.shape, distribution.num_outputs))
        if greedy:
            sample = distribution.mode(outputs)
            if isinstance(state.spec.action_space, spaces.Discrete):
                sample = jnp.minimum(carry, state.spec.action_space.n - 1)
            return carry + 1, distribution.to_action(sample), {}
        sample = distribution.sample(outputs, noise)
        return carry + 1, distribution.to_action(sample), {"memory": carry}

    def update(
        self, state: TallyState, rollout: Any, key: Any, axes: tuple[str, ...]
    ) -> tuple[TallyState, dict[str, Array]]:
        grad, _ = collectives.gradient(
            lambda p, reward: (jnp.square(p - reward).mean(), {}),
            state.params,
            rollout.reward.reshape(-1),
            axes,
        )
        noise = 1e-3 * jax.random.normal(key)
        parts = {name: getattr(rollout, name) for name in RECORDED}
        parts |= rollout.extras | {"next_obs": rollout.next_obs()}
        last = jax.tree.map(lambda x: x.swapaxes(0, 1), parts)
        params = state.params - self.rate * grad + noise
        state = TallyState(params, state.opt_state + 1, last, state.spec)
        return state, {"params": params, "progress": rollout.progress}


@pytree
class RecorderState:
    """PPO's state, its split part apart, and the last rollout."""

    learned: ppo.PPOState  # running_return is None
    running_return: Array | None  # [B]
    last: dict[str, PyTree]  # [B, T, ...]

    @property
    def params(self) -> PyTree:
        return self.learned.params


@pytree
class Recorder:
    """PPO that keeps its last rollout."""

    inner: ppo.PPO

    sharded = ("running_return", "last")

    @property
    def rollout_length(self) -> int:
        return self.inner.rollout_length

    def validate(self, spec: EnvSpec, num_envs: int) -> None:
        self.inner.validate(spec, num_envs)

    def max_devices(self, num_envs: int) -> int:
        return self.inner.max_devices(num_envs)

    def init(self, key: Any, spec: EnvSpec, num_envs: int) -> RecorderState:
        last = Tally(self.rollout_length).init(jax.random.clone(key), spec, num_envs)
        parts = {name: last.last[name] for name in RECORDED}
        return _recorded(self.inner.init(key, spec, num_envs), parts)

    def initial_carry(self, spec: EnvSpec, num_envs: int) -> PyTree:
        return self.inner.initial_carry(spec, num_envs)

    def noise(self, state: RecorderState, key: Any, length: int) -> PyTree:
        return self.inner.noise(state.learned, key, length)

    def act(
        self, state: RecorderState, carry: PyTree, obs: PyTree, noise: Any, greedy: bool
    ) -> tuple[PyTree, Array, dict]:
        return self.inner.act(state.learned, carry, obs, noise, greedy)

    def update(
        self, state: RecorderState, rollout: Rollout, key: Any, axes: tuple[str, ...]
    ) -> tuple[RecorderState, dict[str, Array]]:
        before = dataclasses.replace(state.learned, running_return=state.running_return)
        learned, metrics = self.inner.update(before, rollout, key, axes)
        parts = {name: getattr(rollout, name) for name in RECORDED}
        last = jax.tree.map(lambda x: x.swapaxes(0, 1), parts)
        return _recorded(learned, last), metrics


def _recorded(learned: ppo.PPOState, last: dict[str, PyTree]) -> RecorderState:
    rest = dataclasses.replace(learned, running_return=None)
    return RecorderState(rest, learned.running_return, last)


# Compiles in half the time; for what runs for milliseconds.
quick_jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


@partial(quick_jit, static_argnames=("num_envs", "rows"))
def _trained(algorithm, env, key, updates, num_envs, rows):
    batched = BatchedEnv(env)
    state = step.init_state(algorithm, batched, num_envs, key)
    total = updates.astype(jnp.float32)
    return step.chunk(algorithm, batched, state, total, updates, rows, ())[:2]


def trained(
    algorithm: Any, env: Any, updates: int, num_envs: int, seed: int = 0
) -> tuple[TrainState, dict[str, np.ndarray]]:
    """The state and metrics [updates] that `train` gives, sooner compiled.

    Rates and numbers of the environment are arguments of one program.
    """
    key, _ = jax.random.split(jax.random.key(seed))
    count = jnp.int32(updates)
    state, table = _trained(algorithm, env, key, count, num_envs, 1000)
    return state, {k: np.asarray(v)[:updates] for k, v in table.items()}


def within(seconds: float, function: Callable[[], Any]) -> Any:
    """The function's result; fails if it takes longer, as when XLA's threads lock."""
    results: list[Any] = []

    def work() -> None:
        try:
            results.append((function(), None))
        except BaseException as error:
            results.append((None, error))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    assert results, f"not finished within {seconds} s"
    result, error = results[0]
    if error is not None:
        raise error
    return result


def assert_equal(one: PyTree, other: PyTree) -> None:
    """Both trees are equal to the bit."""
    jax.tree.map(
        lambda x, y: np.testing.assert_array_equal(host(x), host(y)), one, other
    )


def host(leaf: Any) -> np.ndarray:
    """A leaf as NumPy; of a key, its words."""
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf)
