"""The part of `check_algorithm` that runs: a few actions, one update, two devices."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np

from jaxrl_par.algorithms.random_rollout import random_obs, random_rollout
from jaxrl_par.conformance import devices
from jaxrl_par.conformance.calls import explain
from jaxrl_par.conformance.devices import quick_jit
from jaxrl_par.spaces import ACTION_MASK, Dict, Discrete
from jaxrl_par.types import (
    Algorithm,
    EnvSpec,
    Key,
    PyTree,
    Rollout,
    is_key,
    strong,
)

_ROUNDS = 8  # of actions, one an environment


def run_problems(
    algorithm: Algorithm, spec: EnvSpec, num_envs: int, key: Key
) -> list[str]:
    """Problems seen when a few actions are drawn and one update is made."""
    init_key, act_key, rollout_key, update_key = jax.random.split(key, 4)

    def run(a: Algorithm, update_key: Key) -> tuple:
        state = strong(a.init(init_key, spec, num_envs))
        rollout = random_rollout(a, state, spec, num_envs, rollout_key)
        return state, rollout, a.update(state, rollout, update_key, ())

    try:
        state, rollout, (after, metrics) = quick_jit(run)(algorithm, update_key)
        problems = _act_problems(algorithm, state, spec, num_envs, act_key)
    except Exception as error:
        return [f"run: {explain(error)}"]
    problems += [
        f"update: {_label(path, 'state', 'metrics')} is not finite; it must be"
        for path, leaf in _paths((after, metrics))
        if not np.isfinite(_plain(leaf)).all()
    ]
    even = algorithm.max_devices(num_envs) % 2 == 0
    if not problems and even and devices.available():
        # The same key again, for the same draws.
        args = (state, rollout, jax.random.clone(update_key))
        problems += _device_problems(algorithm, args, (after, metrics))
    return problems


def _act_problems(
    algorithm: Algorithm, state: PyTree, spec: EnvSpec, num_envs: int, key: Key
) -> list[str]:
    """Actions out of bounds or masked; rows that depend on other rows."""

    @quick_jit
    def act(a: Algorithm, state: PyTree, key: Key) -> tuple:
        obs_key, noise_key = jax.random.split(key)
        obs = random_obs(spec, obs_key, (num_envs,))
        keys = jax.random.split(noise_key, num_envs)
        noise = jax.vmap(lambda k: a.noise(state, k, 1))(keys)
        noise = jax.tree.map(lambda x: x[:, 0], noise)
        carry = a.initial_carry(spec, num_envs)
        found = a.act(state, carry, obs, noise, greedy=False)
        greedy = a.act(state, carry, obs, None, greedy=True)[1]
        return (carry, obs, noise), found, greedy

    problems: list[str] = []
    args, found = (), ()
    for round_key in jax.random.split(key, _ROUNDS):
        args, found, greedy = act(algorithm, state, round_key)
        problems += _bound_problems(spec, args[1], found[1], "act")
        problems += _bound_problems(spec, args[1], greedy, "act with greedy")
    if num_envs % 2 == 0:
        problems += _row_problems(algorithm, state, args, found, num_envs // 2)
    return problems


def _bound_problems(
    spec: EnvSpec, obs: PyTree, action: PyTree, title: str
) -> list[str]:
    space, action = spec.action_space, jax.tree.map(np.asarray, action)
    if not space.contains(action):
        return [f"{title}: actions {action} are not within {space}"]
    masked = isinstance(spec.obs_space, Dict) and ACTION_MASK in spec.obs_space.spaces
    if masked and isinstance(space, Discrete):
        mask = np.asarray(obs[ACTION_MASK])
        if not mask[np.arange(len(mask)), action - space.start].all():
            return [f"{title}: chooses an action that `{ACTION_MASK}` forbids"]
    return []


def _row_problems(
    algorithm: Algorithm, state: PyTree, args: tuple, whole: PyTree, half: int
) -> list[str]:
    """Whether the first half of the environments alone is acted in as in the whole."""
    fields = {f.name: getattr(state, f.name) for f in dataclasses.fields(state)}
    split = {name: x for name, x in fields.items() if name in algorithm.sharded}

    @quick_jit
    def act(a: Algorithm, state: PyTree, split: PyTree, args: tuple) -> tuple:
        part = jax.tree.map(lambda x: x[: x.shape[0] // 2], split)
        carry, obs, noise = jax.tree.map(lambda x: x[:half], args)
        state = dataclasses.replace(state, **part)
        return a.act(state, carry, obs, noise, greedy=False)

    alone = act(algorithm, state, split, args)
    pairs = zip(_paths(alone), jax.tree.leaves(whole), strict=True)
    return [
        f"act: {_label(path, 'carry', 'action', 'extras')} of an environment depends "
        "on the others; each is treated alone, as they are split over devices"
        for (path, x), y in pairs
        if not _close(x, _plain(y)[:half], 1e-3)
    ]


def _device_problems(algorithm: Algorithm, args: tuple, whole: tuple) -> list[str]:
    """Replicated parts that differ between two devices, or from one device's."""
    state, rollout, _ = args
    split = (-1, _split_of_state(algorithm, state), _split_of_rollout(rollout), -1)
    try:
        found = devices.on_two(type(algorithm).update, (algorithm, *args), split)
    except Exception as error:
        return [f"update over two devices: {explain(error)}"]
    before = (state, jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), whole[1]))
    rows = zip(_paths(found), *map(jax.tree.leaves, (whole, before)), strict=True)
    problems = []
    for (path, both), one, old in rows:
        if path[0].idx == 0 and path[1].name in algorithm.sharded:
            continue
        name = f"update: {_label(path, 'state', 'metrics')}"
        each = _plain(both)
        if not _close(each[0], each[1], 1e-6):
            problems.append(
                f"{name} differs between devices though it is not in `sharded`: reduce "
                "what it depends on with `collectives` over `axes`, and draw from "
                "`key`, which is the same on all"
            )
        elif not _near(each[0], one, old):
            problems.append(
                f"{name} is another on two devices than on one: gradients are means "
                "(`collectives.gradient`), not sums, and no draw may depend on the "
                "number of devices"
            )
    return problems


def _split_of_state(algorithm: Algorithm, state: PyTree) -> PyTree:
    return jax.tree_util.tree_map_with_path(
        lambda path, _: 0 if path[0].name in algorithm.sharded else -1, state
    )


def _split_of_rollout(rollout: Rollout) -> Rollout:
    """The axis of the environments in each leaf."""
    axes = {"last_obs": 0, "initial_carry": 0, "progress": -1, "next_progress": -1}
    fields = {}
    for name in (field.name for field in dataclasses.fields(rollout)):
        leaves, structure = jax.tree.flatten(getattr(rollout, name))
        fields[name] = jax.tree.unflatten(structure, [axes.get(name, 1)] * len(leaves))
    return Rollout(**fields)


def _close(x: Any, y: Any, tolerance: float) -> bool:
    x, y = _plain(x), _plain(y)
    if np.issubdtype(x.dtype, np.integer) or x.dtype == bool:
        return np.array_equal(x, y)
    return np.allclose(x, y, tolerance, tolerance)


def _near(x: Any, y: Any, before: Any) -> bool:
    """Whether two results of an update agree, as measured by how far it moved."""
    x, y, before = (_plain(a).astype(np.float64) for a in (x, y, before))
    moved = np.linalg.norm(y - before)
    return bool(np.linalg.norm(x - y) <= 0.1 * moved + 1e-4 * (1 + np.linalg.norm(y)))


def _plain(leaf: Any) -> np.ndarray:
    return np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf)


def _label(path: tuple, *parts: str) -> str:
    """A leaf's name in a tuple of named parts."""
    return parts[path[0].idx] + jax.tree_util.keystr(path[1:])


def _paths(tree: PyTree) -> list[tuple[tuple, Any]]:
    return jax.tree_util.tree_leaves_with_path(tree)
