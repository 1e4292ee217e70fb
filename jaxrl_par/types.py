"""The contracts: what an environment, a rollout and an algorithm are.

Arrays are time-major: T steps, B environments, then features. One *step* is one
environment step, summed over all environments and devices.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import (
    Any,
    Protocol,
    TypeAlias,
    TypeVar,
    dataclass_transform,
    runtime_checkable,
)

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_par import checks
from jaxrl_par.spaces import Space

Array: TypeAlias = jax.Array
Key: TypeAlias = jax.Array
PyTree: TypeAlias = Any
Axes: TypeAlias = tuple[str, ...]
_T = TypeVar("_T")


def static(*, default: Any = dataclasses.MISSING, **kwargs: Any) -> Any:
    """A dataclass field that is not a pytree leaf: a size, a name or a function."""
    metadata = {"static": True, **kwargs.pop("metadata", {})}
    return dataclasses.field(default=default, metadata=metadata, **kwargs)


@dataclass_transform(frozen_default=True, field_specifiers=(static, dataclasses.field))
def pytree(cls: type[_T]) -> type[_T]:
    """Make `cls` a frozen dataclass and a pytree; `static` fields are no leaves."""
    return jax.tree_util.register_dataclass(dataclasses.dataclass(frozen=True)(cls))


@dataclasses.dataclass(frozen=True)
class EnvSpec:
    """What is known of an environment before it runs; hashable.

    `max_steps` is the time limit in steps, kept by `BatchedEnv` (None: no limit).
    `frames_per_step` is the action repeat: frames of the simulator per step.
    `truncates`: its own `step` may truncate (`BatchedEnv` finds out, and says so to an
    algorithm's `init`).
    """

    name: str
    obs_space: Space
    action_space: Space
    max_steps: int | None = None
    frames_per_step: int = 1
    truncates: bool = False

    def __post_init__(self) -> None:
        checks.optional_positive_int("max_steps", self.max_steps)
        checks.positive_int("frames_per_step", self.frames_per_step)


@pytree
class StepResult:
    """What one environment step gives.

    `obs` is the true successor of the action, never the first of a new episode.
    `terminated`: the task ended, nothing follows. `truncated`: the episode is cut
    though the task goes on. An environment that never truncates on its own (the
    time limit of the spec is `BatchedEnv`'s work) leaves `truncated` at the Python
    `False`: true successors are then kept only where the time limit can strike.
    """

    obs: PyTree
    reward: Array  # () float32
    terminated: Array  # () bool
    truncated: Array | bool = False  # () bool
    info: Mapping[str, Array] = dataclasses.field(default_factory=dict)


@runtime_checkable
class Environment(Protocol):
    """One unbatched environment of pure functions, itself a pytree.

    Numeric parameters are leaves, so that `vmap` over the environment is a set of
    different physics. `spec` may depend on static fields only.
    """

    @property
    def spec(self) -> EnvSpec: ...

    def reset(self, key: Key) -> tuple[PyTree, PyTree]:
        """Start an episode: (state, obs)."""
        ...

    def step(self, key: Key, state: PyTree, action: Any) -> tuple[PyTree, StepResult]:
        """Apply one action: (state, result)."""
        ...


@pytree
class TimeStep:
    """One step of B environments, as `BatchedEnv` gives it.

    `obs` is what to act on now (after an episode's end: the next one's first).
    `next_obs` is the true successor of the last action. Never are `terminated` and
    `truncated` both set. `first` says that `obs` begins an episode.
    """

    obs: PyTree  # [B, ...]
    next_obs: PyTree  # [B, ...]
    reward: Array  # [B] float32
    terminated: Array  # [B] bool
    truncated: Array  # [B] bool
    first: Array  # [B] bool


@pytree
class Rollout:
    """T steps of B environments: the transitions an algorithm learns from.

    The successor of (t, b) is `obs[t + 1, b]` inside an episode and `last_obs[b]`
    after the last step; where a time limit cut an episode it is kept in `cut_obs`:
    row k is the successor of an environment's k-th cut, for K < T possible cuts;
    with K = T, row t is that of step t. After a termination nothing follows and no
    successor is needed. Use `successor_values`, or `next_obs` for the whole array.
    """

    obs: PyTree  # [T, B, ...]
    action: PyTree  # [T, B, ...] in the environment's units
    reward: Array  # [T, B] float32
    terminated: Array  # [T, B] bool
    truncated: Array  # [T, B] bool
    first: Array  # [T, B] bool
    extras: PyTree  # [T, B, ...] what `Algorithm.act` returned
    last_obs: PyTree  # [B, ...] what to act on next
    cut_obs: PyTree  # [K, B, ...] true successors of the truncated steps
    initial_carry: PyTree  # [B, ...] the policy's memory before the first step
    progress: Array  # () float32 in [0, 1): share of the run done at the start
    next_progress: Array  # () float32 in (0, 1]: share done after these steps

    def successor_values(
        self, value: Array, value_of: Callable[[PyTree], Array]
    ) -> Array:
        """Values of the true successors, [T, B] (undefined after termination).

        `value` [T, B] are those of `obs`; `value_of` gives those of a batch of
        observations [N, ...]. Only what `value` lacks is computed.
        """
        cuts = jax.tree.leaves(self.cut_obs)[0].shape[0]
        extra = jax.tree.map(
            lambda cut, last: jnp.concatenate([cut, last[None]]).reshape(
                -1, *last.shape[1:]
            ),
            self.cut_obs,
            self.last_obs,
        )
        extra_value = value_of(extra).reshape(cuts + 1, -1)
        follow = jnp.concatenate([value[1:], extra_value[-1:]])
        if cuts == 0:
            return follow
        kept = jnp.take_along_axis(extra_value, self.cut_index(), axis=0)
        return jnp.where(self.truncated, kept, follow)

    def cut_index(self) -> Array:
        """Row of `cut_obs` for each truncated step, [T, B] int32."""
        count = jnp.cumsum(self.truncated, axis=0, dtype=jnp.int32)
        rows = jax.tree.leaves(self.cut_obs)[0].shape[0]
        if rows == self.truncated.shape[0]:  # one row a step: kept whole
            return jnp.broadcast_to(jnp.arange(rows)[:, None], count.shape)
        return jnp.clip(count - 1, 0, rows - 1)

    def next_obs(self) -> PyTree:
        """True successors of all steps, [T, B, ...] (undefined after termination)."""
        if jax.tree.leaves(self.cut_obs)[0].shape[0] == 0:
            return jax.tree.map(
                lambda obs, last: jnp.concatenate([obs[1:], last[None]]),
                self.obs,
                self.last_obs,
            )
        index = self.cut_index()

        def successor(obs: Array, last: Array, cut: Array) -> Array:
            follow = jnp.concatenate([obs[1:], last[None]])
            kept = cut[index, jnp.arange(index.shape[1])]
            mask = self.truncated.reshape(index.shape + (1,) * (follow.ndim - 2))
            return jnp.where(mask, kept, follow)

        return jax.tree.map(successor, self.obs, self.last_obs, self.cut_obs)


@runtime_checkable
class Algorithm(Protocol):
    """A learning rule as a frozen pytree dataclass: sizes static, rates leaves.

    `sharded` names the fields of its state whose leading axis is environments (or
    replay slots) and is split over devices; all others are equal on every device.
    """

    @property
    def sharded(self) -> tuple[str, ...]: ...

    @property
    def rollout_length(self) -> int: ...

    def validate(self, spec: EnvSpec, num_envs: int) -> None:
        """Raise ValueError for sizes or spaces that it cannot train on."""
        ...

    def max_devices(self, num_envs: int) -> int:
        """The number of devices must divide this."""
        ...

    def init(self, key: Key, spec: EnvSpec, num_envs: int) -> PyTree:
        """The state before the first step."""
        ...

    def initial_carry(self, spec: EnvSpec, num_envs: int) -> PyTree:
        """The policy's memory at the start of an episode, [B, ...]; () if none."""
        ...

    def noise(self, state: PyTree, key: Key, length: int) -> PyTree:
        """Randomness for `length` steps of one environment, [T, ...]."""
        ...

    def act(
        self, state: PyTree, carry: PyTree, obs: PyTree, noise: PyTree, greedy: bool
    ) -> tuple[PyTree, PyTree, PyTree]:
        """Choose actions for B observations: (carry, action, extras).

        `action` is in the environment's units. `noise` is one step of `noise`
        ([B, ...]), and None when `greedy`.
        """
        ...

    def update(
        self, state: PyTree, rollout: Rollout, key: Key, axes: Axes
    ) -> tuple[PyTree, dict[str, Array]]:
        """Learn from one rollout: (state, metrics of scalars).

        `key` is the same on all devices. `axes` are the mesh axes over which the
        environments are split; empty on one device. A metric `x_sum` is a sum over
        the `gradient_steps`, another metric: `x` is logged, their mean, and nothing
        where there were none.
        """
        ...


@runtime_checkable
class Store(Protocol):
    """A part of an algorithm's state too large to be copied in every update.

    All else is kept of before an update until it is known to be finite. A store is
    changed in place: it must be as good as before once it is rewound, and once the
    update is made anew.
    """

    def rewound(self, fault: Array, before: Any) -> Any:
        """The store as it was `before` the update, where there is a fault () bool."""
        ...


@pytree
class TrainState:
    """Everything a run needs to go on, and nothing else."""

    algorithm: PyTree
    env: PyTree  # [B, ...] environment states
    obs: PyTree  # [B, ...] the observations to act on
    first: Array  # [B] bool, whether they start an episode
    carry: PyTree  # [B, ...] the policy's memory
    episode_return: Array  # [B] float32, of the episode under way
    episode_length: Array  # [B] int32
    key: Key  # ()
    update: Array  # () int32


def is_key(leaf: Any) -> bool:
    """Whether a leaf is a typed PRNG key array."""
    return isinstance(leaf, jax.Array) and jnp.issubdtype(
        leaf.dtype, jax.dtypes.prng_key
    )


def strong(tree: PyTree) -> PyTree:
    """The same tree with arrays of settled dtype: no Python numbers, no weak types.

    A state whose types change between calls would be compiled twice.
    """

    def settle(leaf: Any) -> Array:
        if is_key(leaf):
            return leaf
        array = jnp.asarray(leaf)
        return jax.lax.convert_element_type(array, np.dtype(array.dtype))

    return jax.tree.map(settle, tree)
