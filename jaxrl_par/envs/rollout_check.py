"""The part of `check_env` that runs an environment: short random episodes."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_par.spaces import ACTION_MASK, Box, Dict, Discrete, MultiDiscrete, Space
from jaxrl_par.types import Array, EnvSpec, Key, PyTree, is_key, strong

_NUM_ENVS, _NUM_STEPS, _NUM_STARTS = 8, 100, 128

# Compiling takes most of the time, and nothing here runs for long.
_COMPILER = {"xla_backend_optimization_level": 0}


def rollout_problems(env: Any, spec: EnvSpec, key: Key, quiet: bool) -> list[str]:
    """Problems seen in up to 100 random steps of 8 environments.

    `quiet` hides an exception, which then follows from problems already known.
    """
    start_key, step_key = jax.random.split(key)
    length = min(_NUM_STEPS, spec.max_steps or _NUM_STEPS)
    reset = jax.jit(
        jax.vmap(lambda key: strong(env.reset(key))), compiler_options=_COMPILER
    )
    step = jax.jit(
        lambda *args: _batch_step(env, spec, *args), compiler_options=_COMPILER
    )
    rows = []
    method = "reset"
    try:
        pool = reset(jax.random.split(start_key, _NUM_STARTS))
        method = "step"
        state, obs = jax.tree.map(lambda leaf: leaf[:_NUM_ENVS], pool)
        for t in range(length):
            state, obs, row = step(np.int32(t), step_key, pool, state, obs)
            rows.append(jax.device_get(row))
    except Exception as error:
        line = (str(error).strip().splitlines() or [""])[0][:200]
        text = f"{method}: cannot be vmapped, {type(error).__name__}: {line}; it is "
        text += "written for one environment, and jax.vmap must be able to batch it"
        return [] if quiet else [text]
    record = jax.tree.map(lambda *rows: np.stack(rows), *rows)
    first_obs = jax.tree.map(lambda leaf: np.asarray(leaf)[None], pool[1])
    starts = [np.asarray(leaf) for leaf in _numbers(*pool)]

    problems = _value_problems(spec.obs_space, first_obs, "reset: obs")
    problems += _value_problems(spec.obs_space, record["obs"], "step: obs")
    if not np.isfinite(record["reward"]).all():
        problems.append("step: reward is not finite; it must be")
    flags = record["terminated"], record["truncated"]
    if flags[0].shape == flags[1].shape and np.logical_and(*flags).any():
        rule = "an episode ends in one way: truncated & ~terminated"
        problems.append(f"step: terminated and truncated are both set; {rule}")
    if not (problems or quiet):
        _warn_of_auto_reset(type(env).__name__, record, starts)
    return problems


def _batch_step(
    env: Any,
    spec: EnvSpec,
    t: Array,
    key: Key,
    pool: PyTree,
    state: PyTree,
    obs: PyTree,
) -> tuple[PyTree, PyTree, dict[str, PyTree]]:
    """One random step of all, followed by a new start where it ended an episode."""
    keys = jax.random.split(jax.random.fold_in(key, t), _NUM_ENVS)
    slots = (t * _NUM_ENVS + jnp.arange(_NUM_ENVS)) % _NUM_STARTS
    fresh = jax.tree.map(lambda leaf: leaf[slots], pool)

    def one(key: Key, fresh: tuple, state: PyTree, obs: PyTree) -> tuple:
        action_key, step_key = jax.random.split(key)
        action = _random_action(spec, action_key, obs)
        after, result = strong(env.step(step_key, state, action))
        ended = jnp.logical_or(result.terminated, result.truncated)
        row = {
            "obs": result.obs,
            "reward": result.reward,
            "terminated": result.terminated,
            "truncated": result.truncated,
            "before": _numbers(state, obs),
            "after": _numbers(after, result.obs),
        }
        follow = jax.tree.map(
            lambda new, old: jnp.where(ended, new, old), fresh, (after, result.obs)
        )
        return *follow, row

    return jax.vmap(one)(keys, fresh, state, obs)


def _numbers(state: PyTree, obs: PyTree) -> list[Array]:
    return [leaf for leaf in jax.tree.leaves((state, obs)) if not is_key(leaf)]


def _random_action(spec: EnvSpec, key: Key, obs: PyTree) -> PyTree:
    space = spec.action_space
    masked = isinstance(spec.obs_space, Dict) and ACTION_MASK in spec.obs_space.spaces
    if masked and isinstance(space, Discrete):
        scores = jnp.where(obs[ACTION_MASK], 0.0, -jnp.inf)
        choice = jax.random.categorical(key, scores)
        return space.start + choice.astype(jnp.int32)
    return space.sample(key)


def _value_problems(space: Space, value: PyTree, name: str) -> list[str]:
    """Values, [T, B, ...], that are not finite or not within the space."""
    if isinstance(space, Dict):
        parts = [
            _value_problems(part, value[k], f"{name}[{k!r}]") for k, part in space.items
        ]
        return [problem for part in parts for problem in part]
    if value.shape[2:] != space.shape:  # known already
        return []
    if not np.isfinite(value).all():
        return [f"{name} is not finite; it must be"]
    low, high = _bounds(space)
    # Rounding is no error: a cosine may be 1 + 1e-7.
    slack = 1e-5 * np.issubdtype(space.dtype, np.floating)
    under = value < low - slack * (1 + np.where(np.isfinite(low), abs(low), 0))
    over = value > high + slack * (1 + np.where(np.isfinite(high), abs(high), 0))
    outside = np.argwhere(under | over)
    if not len(outside):
        return []
    where = tuple(outside[0])
    element = list(map(int, where[2:]))  # after time and environment
    place = f"{name}{element}" if element else name
    rule = f"its space is {space}: widen the bounds (they may be infinite), or clip"
    return [f"{place} is {value[where]}, out of bounds; {rule}"]


def _bounds(space: Space) -> tuple[Any, Any]:
    if isinstance(space, Box):
        numeric = np.int64 if space.dtype.kind in "bui" else space.dtype
        return space.low.astype(numeric), space.high.astype(numeric)
    if isinstance(space, MultiDiscrete):
        return 0, np.array(space.nvec) - 1
    assert isinstance(space, Discrete)
    return space.start, space.start + space.n - 1


def _warn_of_auto_reset(
    name: str, record: dict[str, Any], starts: list[np.ndarray]
) -> None:
    """Warn if what follows an end always looks like a start, and never what precedes.

    A one-step task is always at its start, and a task that ends where it starts
    looks the same, hence a warning only.
    """
    ended = record["terminated"] | record["truncated"]
    if not ended.any():
        return

    def like_start(values: list[np.ndarray]) -> np.ndarray:
        inside = np.ones(ended.sum(), bool)
        for value, start in zip(values, starts, strict=True):
            low, high = start.min(axis=0), start.max(axis=0)
            rows = (value[ended] >= low) & (value[ended] <= high)
            inside &= rows.reshape(len(inside), -1).all(axis=1)
        return inside

    if like_start(record["after"]).all() and not like_start(record["before"]).any():
        warnings.warn(
            f"{name}: after every end, step gave a state and an obs like those of a "
            "new episode. If it resets by itself, let it not: the last action's true "
            "successor is lost (BatchedEnv resets)",
            stacklevel=3,
        )
