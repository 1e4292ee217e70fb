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
    # How the step left its episode, and if it can be truncated 4 times the row of its
    # successor in `cut_obs`.
    end: Array  # [B, S] uint8, or int32
    cut_obs: PyTree  # [B, K, ...]
    cut_slots: Array  # [B, K] int32, the slot of the step that each is of
    cuts: Array  # [B] int32, the next row of `cut_obs`
    # Also in slot `position`; to read it there, before it is written, is to copy all.
    last_obs: PyTree  # [B, ...] to act on next
    position: Array  # [B] int32, the slot of the observation to act on next
    count: Array  # [B] int32, transitions that are stored

    @property
    def slots(self) -> int:
        """S."""
        return self.reward.shape[1]

    @property
    def max_cuts(self) -> int:
        """K."""
        return jax.tree.leaves(self.cut_obs)[0].shape[1]

    def rewound(self, fault: Array, before: Ring) -> Ring:
        """As it was `before` the last `add`, where there is a fault () bool.

        What was written stays: it is beyond `position`, where nothing is read before
        the next rollout, of the same length, is written over it.
        """

        def back(name: str) -> PyTree:
            trees = getattr(before, name), getattr(self, name)
            return jax.tree.map(lambda old, new: jnp.where(fault, old, new), *trees)

        names = ("cuts", "last_obs", "position", "count")
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
    if rows >= 2**29:  # `end` holds four times their number
        raise ValueError(
            f"capacity {capacity} must be less than {num_envs * 2**29:,} here: every "
            f"step of {spec.name} may be truncated"
        )

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
        end=jnp.zeros((num_envs, slots), jnp.int32 if rows else jnp.uint8),
        cut_obs=room(obs, rows),
        cut_slots=jnp.full((num_envs, rows), -1),
        last_obs=jax.tree.map(lambda x: x[:, 0], room(obs, 1)),
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

    `action` [T, B, ...] as it is to be stored. Where the rollout does not begin where
    the last one that was stored ended, as after an update that was skipped, nothing is
    learned of the step that would lead there.
    """
    length = rollout.reward.shape[0]
    start = ring.position[0]
    slots = (start + jnp.arange(length)) % ring.slots
    after = (start + length) % ring.slots
    before = (start - 1) % ring.slots
    newest = ring.end[:, before]
    lost = ~_goes_on(ring, rollout) & (_how(newest) == GOES_ON)
    end = jnp.where(rollout.terminated, TERMINATED, GOES_ON)
    end = jnp.where(rollout.truncated, TRUNCATED, end)
    if ring.max_cuts:
        row, ring = _keep_cuts(ring, rollout, slots)
        end += 4 * row

    def put(stored: Array, new: Array) -> Array:
        return stored.at[:, slots].set(new.swapaxes(0, 1).astype(stored.dtype))

    def put_obs(stored: Array, new: Array, last: Array) -> Array:
        # Apart: to write one slot is a copy, to write two is a loop.
        return put(stored, new).at[:, after].set(last.astype(stored.dtype))

    return dataclasses.replace(
        ring,
        obs=jax.tree.map(put_obs, ring.obs, rollout.obs, rollout.last_obs),
        action=jax.tree.map(put, ring.action, action),
        reward=put(ring.reward, rollout.reward),
        end=put(ring.end.at[:, before].set(jnp.where(lost, BROKEN, newest)), end),
        last_obs=jax.tree.map(
            lambda old, new: new.astype(old.dtype), ring.last_obs, rollout.last_obs
        ),
        position=jnp.full_like(ring.position, after),
        count=jnp.minimum(ring.count + length, ring.slots - 1),
    )


def _goes_on(ring: Ring, rollout: Rollout) -> Array:
    """Whether a rollout begins where the last one ended, [B] bool."""
    goes_on = ~rollout.first[0]
    pairs = zip(*map(jax.tree.leaves, (ring.last_obs, rollout.obs)), strict=True)
    for stored, new in pairs:
        goes_on &= (stored == new[0]).reshape(len(goes_on), -1).all(-1)
    return goes_on


def _how(end: Array) -> Array:
    """Of `Ring.end`: GOES_ON, TERMINATED, TRUNCATED or BROKEN."""
    return end & 3


def _keep_cuts(ring: Ring, rollout: Rollout, slots: Array) -> tuple[Array, Ring]:
    """Put the successors of truncated steps, in slots [T], into the next rows.

    Gives (the row of each step's [T, B], the ring with them).
    """
    rows = ring.max_cuts
    kept = jax.tree.leaves(rollout.cut_obs)[0].shape[0]
    rank = jnp.cumsum(rollout.truncated, 0, dtype=jnp.int32) - 1  # [T, B]
    total = rank[-1] + 1
    if kept == len(rank):  # one is kept of every step
        number, wanted = rank, rollout.truncated
        slot = jnp.broadcast_to(slots[:, None], rank.shape)
    else:
        number = jnp.broadcast_to(jnp.arange(kept)[:, None], (kept, len(total)))
        wanted = number < total[None]
        at = (rank[None] == number[:, None]) & rollout.truncated[None]
        slot = jnp.where(at, slots[None, :, None], 0).sum(1)
    target = jnp.where(wanted, (ring.cuts[None] + number) % rows, rows)
    env = jnp.arange(len(total))[None]
    row = (ring.cuts[None] + rank) % rows
    cut_obs, cut_slots = jax.tree.map(
        lambda stored, new: stored.at[env, target].set(new, mode="drop"),
        (ring.cut_obs, ring.cut_slots),
        (rollout.cut_obs, slot),
    )
    cuts = (ring.cuts + total) % rows
    ring = dataclasses.replace(ring, cut_obs=cut_obs, cut_slots=cut_slots, cuts=cuts)
    return row, ring


def oldest(ring: Ring) -> Array:
    """The slot of the oldest transition, () int32."""
    return (ring.position[0] - ring.count[0]) % ring.slots


def divide(x: Array, divisor: int) -> tuple[Array, Array]:
    """(x // divisor, x % divisor) for x >= 0, as int32.

    Python's rule for signs costs as much again as the rest of reading a transition.
    """
    x, by = x.astype(jnp.uint32), np.uint32(divisor)
    return (x // by).astype(jnp.int32), (x % by).astype(jnp.int32)


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
    window = at[None] + divide(place.slot[None] + steps, ring.slots)[1]  # [n, ...]
    # Steps to the newest, and it.
    _, left = divide(ring.position[0] + ring.slots - place.slot, ring.slots)
    end = flat.end[window]
    reward, taken = returns.n_step(
        flat.reward[window], (_how(end) > GOES_ON) | (steps + 1 >= left[None]), gamma
    )
    last = taken - 1
    last_end = jnp.take_along_axis(end, last[None], 0)[0]
    _, slot = divide(place.slot + last, ring.slots)
    discount = jnp.where(_how(last_end) == TERMINATED, 0.0, jnp.power(gamma, taken))
    return Transitions(
        obs=jax.tree.map(lambda x: x[at + place.slot], flat.obs),
        action=jax.tree.map(lambda x: x[at + place.slot], flat.action),
        reward=reward,
        discount=discount.astype(jnp.float32),
        next_obs=_successor(ring, Place(place.env, slot), last_end),
        weight=_is_known(ring, Place(place.env, slot), last_end).astype(jnp.float32),
    )


def sequences(ring: Ring, place: Place, length: int) -> Sequences:
    """`length` steps [L, ...] from `place` [...] on; see `Sequences`."""
    steps = jnp.arange(length).reshape(length, *(1,) * place.slot.ndim)
    _, slot = divide(place.slot[None] + steps, ring.slots)
    env = jnp.broadcast_to(place.env[None], slot.shape)
    flat, index = _flat(ring), env * ring.slots + slot
    end = flat.end[index]
    how = _how(end)
    ended = jnp.cumsum(how > GOES_ON, 0) - (how > GOES_ON)
    return Sequences(
        obs=jax.tree.map(lambda x: x[index], flat.obs),
        action=jax.tree.map(lambda x: x[index], flat.action),
        reward=flat.reward[index],
        terminated=how == TERMINATED,
        truncated=how == TRUNCATED,
        next_obs=_successor(ring, Place(env, slot), end),
        mask=(ended == 0) & _is_known(ring, Place(env, slot), end),
    )


def _is_known(ring: Ring, place: Place, end: Array) -> Array:
    """Whether the successors of the steps at `place`, with their `end`, are known.

    After updates that were skipped, truncations may be closer than rows were made for.
    """
    known = _how(end) != BROKEN
    if not ring.max_cuts:
        return known
    own = ring.cut_slots[place.env, end >> 2] == place.slot
    return known & (own | (_how(end) != TRUNCATED))


def _successor(ring: Ring, place: Place, end: Array) -> PyTree:
    """True successors of the steps at `place`, with their `end` (undefined after a
    termination).
    """
    flat, env = _flat(ring), place.env * ring.slots
    _, slot = divide(place.slot + 1, ring.slots)
    follow = jax.tree.map(lambda x: x[env + slot], flat.obs)
    if not ring.max_cuts:
        return follow
    truncated = _how(end) == TRUNCATED

    def choose(follow: Array, cut_obs: Array) -> Array:
        cut = jnp.reshape(truncated, end.shape + (1,) * (follow.ndim - end.ndim))
        return jnp.where(cut, cut_obs[place.env, end >> 2], follow)

    return jax.tree.map(choose, follow, ring.cut_obs)


def _flat(ring: Ring) -> Ring:
    """With what is stored of steps as [B * S, ...]: one index, not two."""
    merge = lambda x: x.reshape(-1, *x.shape[2:])  # noqa: E731
    names = ("obs", "action", "reward", "end")
    parts = {name: jax.tree.map(merge, getattr(ring, name)) for name in names}
    return dataclasses.replace(ring, **parts)


def size_in_bytes(ring: Ring) -> int:
    """Bytes of all that is stored, over all devices."""
    return sum(
        int(np.prod(x.shape)) * np.dtype(x.dtype).itemsize
        for x in jax.tree.leaves(ring)
    )
