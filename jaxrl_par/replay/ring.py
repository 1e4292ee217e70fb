"""The store of a replay: the newest transitions of every environment, in rings.

Each of B environments has a ring of S = capacity / B + 1 slots. Slot s holds the
observation of one step and what was done there; its successor is the observation of
slot s + 1, so that none is stored twice. The one slot more holds the observation to
act on next, the successor of the newest transition. Where a time limit cut an episode
the true successor is kept aside, in `cut_obs`.

All environments step together, so their rings are equally full and stand at the same
slot. A ring is split over devices by environment.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_par import checks, returns, spaces
from jaxrl_par.types import Array, EnvSpec, PyTree, Rollout, pytree

# How a step left its episode. The successor of the last kind was not seen.
GOES_ON, TERMINATED, TRUNCATED, BROKEN = range(4)


class Place(NamedTuple):
    """Where transitions are: an environment of this device's, and a slot; int32."""

    env: Array  # [...]
    slot: Array  # [...]


@pytree
class Transitions:
    """N-step transitions, of any leading shape: what a value is learned from.

    `reward` is the discounted sum of the steps taken together, `discount` what the
    value of `next_obs` counts in it: gamma^k after k steps, 0 after a termination.
    """

    obs: PyTree  # [..., *features]
    action: PyTree  # [..., *features]
    reward: Array  # [...] float32
    discount: Array  # [...] float32
    next_obs: PyTree  # [..., *features]
    weight: Array  # [...] float32


@pytree
class Sequences:
    """Contiguous steps [L, ...] of one episode each; `mask` is false beyond its end."""

    obs: PyTree  # [L, ..., *features]
    action: PyTree  # [L, ..., *features]
    reward: Array  # [L, ...] float32
    terminated: Array  # [L, ...] bool
    truncated: Array  # [L, ...] bool
    next_obs: PyTree  # [L, ..., *features]
    mask: Array  # [L, ...] bool


@pytree
class Ring:
    """The stored steps. Of a step's successor, see `transitions`."""

    obs: PyTree  # [B, S, ...]
    action: PyTree  # [B, S, ...]
    reward: Array  # [B, S] float32
    end: Array  # [B, S] uint8, how the step left its episode
    cut_row: Array | None  # [B, S] int32, the row of a truncated step's successor
    cut_obs: PyTree  # [B, K, ...]
    cuts: Array  # [B] int32, the next row of `cut_obs`
    position: Array  # [B] int32, the slot of the observation to act on next
    count: Array  # [B] int32, transitions that are stored

    @property
    def slots(self) -> int:
        """S."""
        return self.reward.shape[1]

    def rewound(self, fault: Array, before: Ring) -> Ring:
        """As it was `before` the last `add`, where there is a fault () bool.

        What was written stays: it is beyond `position`, where nothing is read before
        the next rollout, of the same length, is written over it.
        """

        def back(name: str) -> Array:
            return jnp.where(fault, getattr(before, name), getattr(self, name))

        names = ("cuts", "position", "count")
        return dataclasses.replace(self, **{name: back(name) for name in names})


def slots_of(capacity: int, num_envs: int, rollout_length: int) -> int:
    """S, for `capacity` transitions in all. Raises ValueError for what cannot be."""
    checks.positive_int("capacity", capacity)
    if capacity % num_envs:
        near = checks.nearest_multiples(capacity, num_envs)
        raise ValueError(
            f"capacity {capacity} must divide by num_envs {num_envs}; nearest: {near}"
        )
    if capacity < num_envs * rollout_length:
        raise ValueError(
            f"capacity {capacity} must hold a rollout: num_envs * rollout_length = "
            f"{num_envs} * {rollout_length}"
        )
    slots = capacity // num_envs + 1
    checks.positive_int("capacity + num_envs", num_envs * slots)
    return slots


def empty(
    spec: EnvSpec, num_envs: int, capacity: int, rollout_length: int, action: PyTree
) -> Ring:
    """A ring for `capacity` transitions, of rollouts of so many steps.

    `action` is one of them, as it is to be stored.
    """
    slots = slots_of(capacity, num_envs, rollout_length)
    rows = _most_cuts(spec, slots + rollout_length)

    def room(example: PyTree, count: int) -> PyTree:
        return jax.tree.map(
            lambda x: jnp.zeros((num_envs, count, *x.shape), x.dtype), example
        )

    obs = spaces.zeros(spec.obs_space)
    counters = ("cuts", "position", "count")
    return Ring(
        obs=room(obs, slots),
        action=room(action, slots),
        reward=jnp.zeros((num_envs, slots)),
        end=jnp.zeros((num_envs, slots), jnp.uint8),
        cut_row=jnp.zeros((num_envs, slots), jnp.int32) if rows else None,
        cut_obs=room(obs, rows),
        # Buffers of their own, as none may be donated twice.
        **{name: jnp.zeros(num_envs, jnp.int32) for name in counters},
    )


def _most_cuts(spec: EnvSpec, steps: int) -> int:
    """Truncations that an environment can have in so many steps."""
    if spec.truncates:
        return steps
    return 0 if spec.max_steps is None else -(-steps // spec.max_steps)


def add(ring: Ring, rollout: Rollout, action: PyTree) -> Ring:
    """Store the T steps of a rollout over the oldest ones.

    `action` [T, B, ...] as it is to be stored. Where an environment was started anew
    after a fault, nothing is learned of the step that led there.
    """
    length = rollout.reward.shape[0]
    start = ring.position[0]
    slots = (start + jnp.arange(length + 1)) % ring.slots
    before = (start - 1) % ring.slots
    lost = rollout.first[0] & (ring.end[:, before] == GOES_ON)
    code = jnp.where(rollout.terminated, TERMINATED, 0)
    code = jnp.where(rollout.truncated, TRUNCATED, code).astype(jnp.uint8)
    end = ring.end.at[:, before].set(
        jnp.where(lost, jnp.uint8(BROKEN), ring.end[:, before])
    )
    obs = jax.tree.map(
        lambda x, last: jnp.concatenate([x, last[None]]), rollout.obs, rollout.last_obs
    )

    def put(stored: Array, new: Array) -> Array:
        new = new.swapaxes(0, 1).astype(stored.dtype)
        return stored.at[:, slots[: new.shape[1]]].set(new)

    ring = dataclasses.replace(
        ring,
        obs=jax.tree.map(put, ring.obs, obs),
        action=jax.tree.map(put, ring.action, action),
        reward=put(ring.reward, rollout.reward),
        end=put(end, code),
        position=(ring.position + length) % ring.slots,
        count=jnp.minimum(ring.count + length, ring.slots - 1),
    )
    return ring if ring.cut_row is None else _keep_cuts(ring, rollout, slots[:-1])


def _keep_cuts(ring: Ring, rollout: Rollout, slots: Array) -> Ring:
    """Put the successors of truncated steps into the next rows of `cut_obs`."""
    assert ring.cut_row is not None
    rows = jax.tree.leaves(ring.cut_obs)[0].shape[1]
    kept = jax.tree.leaves(rollout.cut_obs)[0].shape[0]
    rank = jnp.cumsum(rollout.truncated, 0, dtype=jnp.int32) - 1  # [T, B]
    total = rank[-1] + 1
    if kept == rank.shape[0]:  # one is kept of every step
        wanted = rollout.truncated
    else:
        rank_of_kept = jnp.broadcast_to(jnp.arange(kept)[:, None], (kept, len(total)))
        wanted = rank_of_kept < total[None]
        rank_kept = rank_of_kept
    source = rank if kept == rank.shape[0] else rank_kept
    target = jnp.where(wanted, (ring.cuts[None] + source) % rows, rows)
    env = jnp.arange(len(total))[None]
    row = (ring.cuts[None] + rank) % rows
    return dataclasses.replace(
        ring,
        cut_obs=jax.tree.map(
            lambda stored, new: stored.at[env, target].set(new, mode="drop"),
            ring.cut_obs,
            rollout.cut_obs,
        ),
        cut_row=ring.cut_row.at[:, slots].set(row.T),
        cuts=(ring.cuts + total) % rows,
    )


def oldest(ring: Ring) -> Array:
    """The slot of the oldest transition, () int32."""
    return (ring.position[0] - ring.count[0]) % ring.slots


def transitions(
    ring: Ring, place: Place, n_step: int, gamma: Array | float
) -> Transitions:
    """The `n_step` transitions that start at `place` [...].

    One is shorter where its episode ends, or where the newest step is reached: the
    sum is of the steps that there are, and so is the discount.
    """
    flat = _flat(ring)
    at = place.env * ring.slots
    steps = jnp.arange(n_step).reshape(n_step, *(1,) * place.slot.ndim)
    window = at[None] + (place.slot[None] + steps) % ring.slots  # [n, ...]
    left = (ring.position[0] - place.slot) % ring.slots  # steps to the newest, and it
    end = flat.end[window]
    reward, taken = returns.n_step(
        flat.reward[window], (end > GOES_ON) | (steps + 1 >= left[None]), gamma
    )
    last = taken - 1
    last_end = jnp.take_along_axis(end, last[None], 0)[0]
    slot = (place.slot + last) % ring.slots
    discount = jnp.where(last_end == TERMINATED, 0.0, jnp.power(gamma, taken))
    return Transitions(
        obs=jax.tree.map(lambda x: x[at + place.slot], flat.obs),
        action=jax.tree.map(lambda x: x[at + place.slot], flat.action),
        reward=reward,
        discount=discount.astype(jnp.float32),
        next_obs=_successor(ring, Place(place.env, slot), last_end),
        weight=(last_end != BROKEN).astype(jnp.float32),
    )


def sequences(ring: Ring, place: Place, length: int) -> Sequences:
    """`length` steps [L, ...] from `place` [...] on; see `Sequences`."""
    steps = jnp.arange(length).reshape(length, *(1,) * place.slot.ndim)
    slot = (place.slot[None] + steps) % ring.slots
    env = jnp.broadcast_to(place.env[None], slot.shape)
    flat, index = _flat(ring), env * ring.slots + slot
    end = flat.end[index]
    ended = jnp.cumsum(end > GOES_ON, 0) - (end > GOES_ON)
    return Sequences(
        obs=jax.tree.map(lambda x: x[index], flat.obs),
        action=jax.tree.map(lambda x: x[index], flat.action),
        reward=flat.reward[index],
        terminated=end == TERMINATED,
        truncated=end == TRUNCATED,
        next_obs=_successor(ring, Place(env, slot), end),
        mask=(ended == 0) & (end != BROKEN),
    )


def _successor(ring: Ring, place: Place, end: Array) -> PyTree:
    """True successors of the steps at `place`, which ended so (undefined after a
    termination).
    """
    flat, env = _flat(ring), place.env * ring.slots
    follow = jax.tree.map(lambda x: x[env + (place.slot + 1) % ring.slots], flat.obs)
    if flat.cut_row is None:
        return follow
    row = flat.cut_row[env + place.slot]

    def choose(follow: Array, cut_obs: Array) -> Array:
        cut = jnp.reshape(end == TRUNCATED, end.shape + (1,) * (follow.ndim - end.ndim))
        return jnp.where(cut, cut_obs[place.env, row], follow)

    return jax.tree.map(choose, follow, ring.cut_obs)


def _flat(ring: Ring) -> Ring:
    """With what is stored of steps as [B * S, ...]: one index, not two."""
    merge = lambda x: x.reshape(-1, *x.shape[2:])  # noqa: E731
    names = ("obs", "action", "reward", "end", "cut_row")
    parts = {name: jax.tree.map(merge, getattr(ring, name)) for name in names}
    return dataclasses.replace(ring, **parts)


def size_in_bytes(ring: Ring) -> int:
    """Bytes of all that is stored, over all devices."""
    return sum(
        int(np.prod(x.shape)) * np.dtype(x.dtype).itemsize
        for x in jax.tree.leaves(ring)
    )
