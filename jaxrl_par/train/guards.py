"""Numbers that are not finite, found in the update where they happen."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from jaxrl_par import collectives
from jaxrl_par.types import Array, Axes, PyTree, Rollout, Store, is_key, pytree


class DivergedError(FloatingPointError):
    """Training met numbers that are not finite, and stopped as it was told to.

    `run` is what it had come to before (a `Run`).
    """

    def __init__(self, message: str, run: Any) -> None:
        super().__init__(message)
        self.run = run


# A run that skips so many updates in a row learns nothing any more.
MAX_SKIPS = 100


@pytree
class Faults:
    """How much of an update is not finite, over all devices."""

    obs: Any  # () int32 environments
    action: Any  # () int32 environments
    reward: Any  # () int32 environments
    metrics: Any  # () int32 metrics
    state: Any  # () int32 leaves of the algorithm's state

    @property
    def any(self) -> Array:
        """Whether anything is, () bool."""
        return (self.obs + self.action + self.reward + self.metrics + self.state) > 0

    @classmethod
    def none(cls) -> Faults:
        """Of an update in which all is finite."""
        zero = jnp.int32(0)
        return cls(zero, zero, zero, zero, zero)


def faulty_envs(rollout: Rollout) -> Array:
    """Which environments have faults, [3, B] bool: in obs, in action, in reward."""
    reward = ~jnp.isfinite(rollout.reward).all(0)
    obs = jnp.zeros_like(reward)
    cut_obs = _truncated(rollout)
    for tree in (rollout.obs, cut_obs):
        for leaf in _floats(tree):
            obs |= ~jnp.isfinite(leaf).all((0, *range(2, leaf.ndim)))
    for leaf in _floats(rollout.last_obs):
        obs |= ~jnp.isfinite(leaf).all(tuple(range(1, leaf.ndim)))
    action = jnp.zeros_like(reward)
    for leaf in _floats(rollout.action):
        action |= ~jnp.isfinite(leaf).all((0, *range(2, leaf.ndim)))
    return jnp.stack([obs, action, reward])


def total(
    faulty: Array,
    metrics: Mapping[str, Array],
    state: PyTree,
    sums: dict[str, Array],
    axes: Axes,
) -> tuple[Faults, dict[str, Array]]:
    """The faults of an update, and `sums`, over all devices.

    `faulty` [3, B] is of `faulty_envs`; `metrics` and `state`, the same on all devices,
    are what the update gave. They are in the sum so that it follows the update's own
    reductions: on CPUs (jax 0.10.2) two that nothing orders may meet, and end the
    process.
    """
    own = jnp.stack([_count(metrics), _count(state)])
    counts = jnp.concatenate([faulty.sum(1, dtype=jnp.int32), own])
    flat, unravel = ravel_pytree((counts.astype(jnp.float32), sums))
    counts, sums = unravel(collectives.total(flat, axes))
    obs, action, reward = counts[:3].astype(jnp.int32)
    # Rounded up: of a leaf that is split, one device may have seen it alone.
    of_metrics, of_state = -(-counts[3:].astype(jnp.int32) // collectives.size(axes))
    return Faults(obs, action, reward, of_metrics, of_state), sums


def choose(fault: Array, before: PyTree, after: PyTree) -> PyTree:
    """`before` where there is a fault () bool, else `after`; a `Store` is rewound."""

    def pick(old: Any, new: Any) -> Any:
        if isinstance(new, Store):
            return new.rewound(fault, old)
        # A key that the faulty update used is used again, by another one.
        return jnp.where(fault, jax.random.clone(old) if is_key(old) else old, new)

    return jax.tree.map(pick, before, after, is_leaf=lambda x: isinstance(x, Store))


def describe(faults: Faults, metrics: Mapping[str, float], num_envs: int) -> str:
    """In words: which quantities, in how many environments, causes first.

    `metrics` are the faulty update's.
    """
    parts = [
        f"{name} in {int(count):,} of {num_envs:,} environments"
        for name, count in (
            ("observation", faults.obs),
            ("action", faults.action),
            ("reward", faults.reward),
        )
        if count
    ]
    names = [name for name, value in metrics.items() if not np.isfinite(value)]
    names = [name for name in names if not name.startswith("episode_")]
    names = [name.removesuffix("_sum") for name in names]
    parts += sorted(names, key=lambda name: ("loss" not in name, "grad" not in name))
    return ", ".join([*parts, *(["algorithm state"] if faults.state else [])])


def skip_metrics(faults: Faults) -> dict[str, Array]:
    """Columns of a run that skips faulty updates."""
    counts = {
        "skipped": faults.any,
        "faulty_obs_envs": faults.obs,
        "faulty_action_envs": faults.action,
        "faulty_reward_envs": faults.reward,
    }
    return {name: count.astype(jnp.float32) for name, count in counts.items()}


class SkipWatch:
    """Warns of the first update that is skipped; too many in a row are a fault.

    So are all of a run's.
    """

    def __init__(self, num_envs: int, total_updates: int) -> None:
        self._num_envs = num_envs
        self._most = min(MAX_SKIPS, total_updates)
        self._in_a_row = 0
        self._warned = False

    def look(self, rows: Sequence[Mapping[str, Any]]) -> str | None:
        """See the rows of some updates; a fault in words, or None."""
        for row in rows:
            self._in_a_row = self._in_a_row + 1 if row.get("skipped") else 0
            if self._in_a_row >= self._most:
                rule = f"{self._most} updates in a row were skipped"
                return f"{self._describe(row)}; {rule}"
            if self._in_a_row and not self._warned:
                self._warned = True
                rule = "it was skipped (more such updates are counted, not named)"
                warnings.warn(f"{self._describe(row)}; {rule}", stacklevel=2)
        return None

    def _describe(self, row: Mapping[str, Any]) -> str:
        names = ("obs", "action", "reward")
        obs, action, reward = (row[f"faulty_{name}_envs"] for name in names)
        known = any((obs, action, reward)) or not np.isfinite(list(row.values())).all()
        words = describe(Faults(obs, action, reward, 0, not known), row, self._num_envs)
        return f"update {row['update']:,}: not finite: {words}"


def _truncated(rollout: Rollout) -> PyTree:
    """Kept successors; where one is kept of each step, of truncated steps alone."""

    def keep(leaf: Array) -> Array:
        if leaf.shape[0] != rollout.truncated.shape[0]:
            return leaf
        mask = rollout.truncated.reshape(
            rollout.truncated.shape + (1,) * (leaf.ndim - 2)
        )
        return jnp.where(mask, leaf, jnp.zeros_like(leaf))

    return jax.tree.map(keep, rollout.cut_obs)


def _count(tree: PyTree) -> Array:
    """Leaves that are not finite."""
    flags = [~jnp.isfinite(leaf).all() for leaf in _floats(tree)]
    return jnp.stack(flags).sum(dtype=jnp.int32) if flags else jnp.int32(0)


def _floats(tree: PyTree) -> list[Array]:
    return [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.inexact)]
