"""One update: collect a rollout, learn from it, count its episodes.

Pure and free of devices: `axes` says over which mesh axes the environments are
split, and every random draw is keyed by an environment's global index.
"""

from __future__ import annotations

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp

from jaxrl_par import collectives
from jaxrl_par.envs.batched import BatchedEnv, Draws, where
from jaxrl_par.train import guards
from jaxrl_par.train.config import NonFinite
from jaxrl_par.train.guards import Faults
from jaxrl_par.types import (
    Algorithm,
    Array,
    Axes,
    Key,
    PyTree,
    Rollout,
    TrainState,
    strong,
)

# With more possible cuts than this in a rollout, every successor is kept.
MAX_CUT_ROWS = 4


def init_state(
    algorithm: Algorithm, env: BatchedEnv, num_envs: int, key: Key
) -> TrainState:
    """The state before the first step, of all environments."""
    key, algorithm_key, env_key = jax.random.split(key, 3)
    env_state, timestep = env.init(_env_keys(env_key, 0, num_envs, 1)[0])
    return strong(
        TrainState(
            algorithm=algorithm.init(algorithm_key, env.full_spec(), num_envs),
            env=env_state,
            obs=timestep.obs,
            first=timestep.first,
            carry=algorithm.initial_carry(env.spec, num_envs),
            episode_return=jnp.zeros(num_envs),
            episode_length=jnp.zeros(num_envs, jnp.int32),
            key=key,
            update=jnp.int32(0),
        )
    )


def train_step(
    algorithm: Algorithm,
    env: BatchedEnv,
    state: TrainState,
    total_updates: Array,
    axes: Axes,
    on_nonfinite: NonFinite = "stop",
) -> tuple[TrainState, dict[str, Array], Faults]:
    """One rollout and one update: (state, metrics of scalars, what is not finite).

    With a fault the state is the one before or, to "skip" it, that with the
    algorithm's part of before, and with the environments concerned started anew.
    """
    before = state
    rollout_key, update_key = jax.random.split(
        jax.random.fold_in(state.key, state.update)
    )
    update = state.update.astype(jnp.float32)
    progress = update / total_updates, (update + 1) / total_updates
    state, rollout = collect(algorithm, env, state, rollout_key, progress, axes)
    learned, metrics = algorithm.update(state.algorithm, rollout, update_key, axes)
    shared = dataclasses.replace(learned, **dict.fromkeys(algorithm.sharded))
    kinds = guards.faulty_envs(rollout)
    faulty = kinds.any(0)
    if on_nonfinite == "skip":
        rollout = _without(rollout, faulty)
    state, episodes = _count_episodes(state, rollout)
    faults, episodes = guards.total(kinds, metrics, shared, episodes, axes)
    if on_nonfinite == "skip":
        learned = guards.choose(faults.any, before.algorithm, learned)
        metrics = metrics | guards.skip_metrics(faults)
    state = dataclasses.replace(state, algorithm=learned, update=state.update + 1)
    if on_nonfinite == "skip":
        key = jax.random.fold_in(before.key, ~before.update)
        state = _start_anew(algorithm, env, state, faulty, key, axes)
    else:
        # The key stays as it is; a choice would count as a use of it.
        trees = (dataclasses.replace(x, key=None) for x in (before, state))
        chosen = guards.choose(faults.any, *trees)
        state = dataclasses.replace(chosen, key=before.key)
    return state, metrics | episodes, faults


def chunk(
    algorithm: Algorithm,
    env: BatchedEnv,
    state: TrainState,
    total_updates: Array,
    updates: Array,
    rows: int,
    axes: Axes,
    on_nonfinite: NonFinite = "stop",
) -> tuple[TrainState, dict[str, Array], tuple[Array, Faults]]:
    """`updates` (at most `rows`) updates in one call.

    Gives (state, metrics [rows], (updates made, the last one's faults)). Unless
    faulty updates are skipped, the first ends the call: it is not made, and its
    metrics follow those of the updates made. The number is an argument, so a run of
    any length compiles once.
    """
    # Under jit, so that the two uses are traced once.
    one = jax.jit(
        partial(
            train_step,
            algorithm,
            env,
            total_updates=total_updates,
            axes=axes,
            on_nonfinite=on_nonfinite,
        )
    )
    shapes = jax.eval_shape(one, state)[1]
    table = jax.tree.map(lambda x: jnp.zeros((rows,), x.dtype), shapes)

    def going(carry: tuple) -> Array:
        made, _, _, faults = carry
        fault = jnp.bool_(False) if on_nonfinite == "skip" else faults.any
        return (made < updates) & ~fault

    def body(carry: tuple) -> tuple:
        made, state, table, _ = carry
        state, metrics, faults = one(state)
        table = jax.tree.map(lambda t, x: t.at[made].set(x), table, metrics)
        applied = True if on_nonfinite == "skip" else ~faults.any
        return made + jnp.int32(applied), state, table, faults

    start = (jnp.int32(0), state, table, Faults.none())
    made, state, table, faults = jax.lax.while_loop(going, body, start)
    return state, table, (made, faults)


def collect(
    algorithm: Algorithm,
    env: BatchedEnv,
    state: TrainState,
    key: Key,
    progress: tuple[Array, Array],
    axes: Axes,
) -> tuple[TrainState, Rollout]:
    """Act for `algorithm.rollout_length` steps; `progress` is before, and after."""
    length = algorithm.rollout_length
    num_envs = state.episode_length.shape[0]
    noise, draws = _draw(algorithm, env, state, key, axes)
    fresh_memory = algorithm.initial_carry(env.spec, num_envs)
    cut_rows = env.max_cuts(length)
    keep_all = cut_rows > MAX_CUT_ROWS or cut_rows == length

    def step(carry: tuple, drawn: tuple) -> tuple[tuple, dict[str, PyTree]]:
        env_state, obs, first, memory, cuts, cut_count = carry
        step_key, reset_key, noise_t = drawn
        memory, action, extras = algorithm.act(
            state.algorithm, memory, obs, noise_t, greedy=False
        )
        env_state, new = env.step(
            env_state, action, Draws(step_key, reset_key, draws.pool)
        )
        taken = {"obs": obs, "action": action, "extras": extras, "first": first}
        for name in ("reward", "terminated", "truncated"):
            taken[name] = getattr(new, name)
        if keep_all:
            taken["cut_obs"] = new.next_obs
        else:
            cuts = _keep_cut(cuts, cut_count, new.next_obs, new.truncated)
            cut_count = cut_count + new.truncated
        memory = where(new.first, fresh_memory, memory)
        return (env_state, new.obs, new.first, memory, cuts, cut_count), taken

    zeros = jnp.zeros(num_envs, jnp.int32)
    start = (
        dataclasses.replace(state.env, episodes=zeros),
        state.obs,
        state.first,
        state.carry,
        _no_cuts(state.obs, 0 if keep_all else cut_rows),
        zeros,
    )
    drawn = (draws.step_keys, draws.reset_keys, noise)
    end, steps = jax.lax.scan(step, start, drawn, length)
    env_state, last_obs, first, memory, cuts, _ = end
    rollout = Rollout(
        **{"cut_obs": cuts, **steps},
        last_obs=last_obs,
        initial_carry=state.carry,
        progress=progress[0],
        next_progress=progress[1],
    )
    state = dataclasses.replace(
        state, env=env_state, obs=last_obs, first=first, carry=memory
    )
    return state, rollout


def _draw(
    algorithm: Algorithm, env: BatchedEnv, state: TrainState, key: Key, axes: Axes
) -> tuple[PyTree, Draws]:
    """The randomness of a rollout: of actions [T, B, ...], and of environments."""
    length = algorithm.rollout_length
    num_envs = state.episode_length.shape[0]
    first_id = collectives.index(axes) * num_envs
    keys = _env_keys(key, first_id, num_envs, 1 + env.num_keys(length))
    noise = jax.vmap(lambda k: algorithm.noise(state.algorithm, k, length), out_axes=1)(
        keys[0]
    )
    return noise, env.prepare(keys[1:], length)


def _env_keys(key: Key, first_id: Array | int, num_envs: int, each: int) -> Key:
    """`each` keys of every environment, [each, B], by its global number."""
    ids = first_id + jnp.arange(num_envs)
    index = ids[None] * each + jnp.arange(each)[:, None]
    return jax.vmap(jax.vmap(partial(jax.random.fold_in, key)))(index)


def _no_cuts(obs: PyTree, rows: int) -> PyTree:
    """Room for `rows` observations of every environment, [rows, B, ...]."""
    return jax.tree.map(lambda x: jnp.zeros((rows, *x.shape), x.dtype), obs)


def _keep_cut(cuts: PyTree, count: Array, obs: PyTree, truncated: Array) -> PyTree:
    """Put the successors of truncated steps in the next free row of `cuts`."""

    def put(rows: Array, new: Array) -> Array:
        free = [truncated & (count == k) for k in range(rows.shape[0])]
        kept = [where(mask, new, row) for mask, row in zip(free, rows, strict=True)]
        return jnp.stack(kept) if kept else rows

    return jax.tree.map(put, cuts, obs)


def _count_episodes(
    state: TrainState, rollout: Rollout
) -> tuple[TrainState, dict[str, Array]]:
    """Sums over this device's episodes that ended in the rollout, and their number.

    What comes up to an environment's last end (what was carried in included)
    belongs to finished episodes, the rest to the one under way.
    """
    ended = rollout.terminated | rollout.truncated
    steps = jnp.arange(ended.shape[0])[:, None]
    last_end = jnp.where(ended, steps, -1).max(0)
    finished = steps <= last_end[None]  # [T, B]
    any_end = last_end >= 0  # [B]

    def count(carried: Array, x: Array) -> tuple[Array, Array]:
        before = jnp.where(finished, x, 0).sum(0) + jnp.where(any_end, carried, 0)
        after = jnp.where(finished, 0, x).sum(0) + jnp.where(any_end, 0, carried)
        return before.sum(), after

    returns, episode_return = count(state.episode_return, rollout.reward)
    lengths, episode_length = count(
        state.episode_length, jnp.ones_like(rollout.reward, jnp.int32)
    )
    sums = {
        "episode_return_sum": returns,
        "episode_length_sum": lengths.astype(jnp.float32),
        "episode_count": ended.sum().astype(jnp.float32),
    }
    state = dataclasses.replace(
        state, episode_return=episode_return, episode_length=episode_length
    )
    return state, sums


def _without(rollout: Rollout, faulty: Array) -> Rollout:
    """The same, for the statistics: faulty environments [B] end no episode."""
    return dataclasses.replace(
        rollout,
        reward=jnp.where(faulty[None], 0.0, rollout.reward),
        terminated=rollout.terminated & ~faulty[None],
        truncated=rollout.truncated & ~faulty[None],
    )


def _start_anew(
    algorithm: Algorithm,
    env: BatchedEnv,
    state: TrainState,
    faulty: Array,
    key: Key,
    axes: Axes,
) -> TrainState:
    """Begin another episode in the faulty environments [B]."""
    num_envs = faulty.shape[0]
    first_id = collectives.index(axes) * num_envs

    def renew(state: TrainState) -> TrainState:
        env_state, timestep = env.init(_env_keys(key, first_id, num_envs, 1)[0])
        fresh = {
            "env": env_state,
            "obs": timestep.obs,
            "first": timestep.first,
            "carry": algorithm.initial_carry(env.spec, num_envs),
            "episode_return": jnp.zeros(num_envs),
            "episode_length": jnp.zeros(num_envs, jnp.int32),
        }
        parts = {
            name: where(faulty, strong(new), getattr(state, name))
            for name, new in fresh.items()
        }
        return dataclasses.replace(state, **parts)

    return jax.lax.cond(faulty.any(), renew, lambda state: state, state)
