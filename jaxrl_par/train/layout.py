"""How a training state lies over the devices of a mesh, and the program over it.

Environments, and what belongs to each of them, are split over the axis `data`, large
parameters over the axis `model`, which is the compiler's to use; by ZeRO an optimiser's
moments, and the parameters, are split over `data` too. All else is on every device.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxrl_par.collectives import Split, is_split
from jaxrl_par.envs.batched import BatchedEnv
from jaxrl_par.envs.wrappers import Instances
from jaxrl_par.networks.partition import Partition, largest_dimension, path_of
from jaxrl_par.train import step
from jaxrl_par.train.config import NonFinite
from jaxrl_par.train.guards import Faults
from jaxrl_par.types import Algorithm, Array, Axes, Key, PyTree, TrainState

Device = Any  # jax.Device, which type checkers take for a variable

_AXIS, _MODEL = "data", "model"
# Adam's, of one parameter.
_MOMENT = re.compile(r"(^|/)(mu|nu)/")
_Kind = tuple[str, tuple[int, ...]]


@dataclasses.dataclass(frozen=True)
class Layout:
    """A settled plan: the devices in order, those of one part of `data` together."""

    devices: tuple[Device, ...]
    model: int = 1
    zero: int = 0
    partition: Partition = dataclasses.field(default_factory=Partition)

    @property
    def data(self) -> int:
        """Parts of the environments."""
        return len(self.devices) // self.model

    @property
    def axes(self) -> Axes:
        return (_AXIS,) if self.data > 1 else ()

    @property
    def mesh(self) -> Mesh:
        return jax.make_mesh(
            (self.data, self.model),
            (_AXIS, _MODEL),
            axis_types=(AxisType.Auto,) * 2,
            devices=self.devices,
        )

    def describe(self) -> str:
        """For example "2 x cpu", "4 x 2 x cpu" (data and model) or "NVIDIA H200"."""
        kind = self.devices[0].device_kind
        if self.model > 1:
            return f"{self.data} x {self.model} x {kind}"
        return kind if self.data == 1 else f"{self.data} x {kind}"

    def specs(self, state: TrainState, sharded: tuple[str, ...]) -> TrainState:
        """The partition of each leaf of a training state.

        Split over `data` are what belongs to environments, and the algorithm's
        `sharded` fields; over `model`, and by ZeRO over `data`, the others of its
        fields. Raises ValueError if nothing can be split that is to be.
        """
        learned = _learned(state.algorithm)

        def spec(path: tuple[Any, ...], leaf: Any) -> P:
            name = path[0].name
            if name == "algorithm":
                if len(path) > 1 and _name(path[1]) in sharded:
                    return P(_AXIS)
                return self._parameter_spec(path_of(path[1:]), leaf.shape, learned)
            return P() if name in ("key", "update") else P(_AXIS)

        specs = jax.tree_util.tree_map_with_path(spec, state)
        if self.model > 1 and not any(_MODEL in s for s in jax.tree.leaves(specs)):
            raise ValueError(
                f"model {self.model} splits nothing: {self._rule(self.model)}"
            )
        marks = jax.tree.leaves(self._marks(specs, sharded))
        if self.zero and max(marks) < 0:
            raise ValueError(
                f"zero {self.zero} splits nothing over data {self.data}: "
                f"{self._rule(self.data)}"
            )
        return specs

    def _rule(self, parts: int) -> str:
        return (
            f"it needs parts, and parameters with a dimension that {parts} divides and "
            f"at least {self.partition.min_size} elements (min_split)"
        )

    def _parameter_spec(
        self, path: str, shape: tuple[int, ...], learned: Collection[_Kind]
    ) -> P:
        names: list[str | None] = [None] * len(shape)
        if self.model > 1:
            dimension = self.partition.dimension(path, shape, self.model)
            if dimension is not None:
                names[dimension] = _MODEL
        is_moment = _MOMENT.search(path) is not None
        if is_moment or (self.zero == 3 and _kind(path, shape) in learned):
            dimension = self._zero_dimension(shape, names)
            if dimension is not None:
                names[dimension] = _AXIS
        while names and names[-1] is None:  # as jax writes them
            names.pop()
        return P(*names)

    def _zero_dimension(
        self, shape: tuple[int, ...], names: Sequence[str | None]
    ) -> int | None:
        """The dimension of a large leaf that ZeRO splits over `data`."""
        if not self.zero or self.data == 1:
            return None
        free = [1 if name else size for size, name in zip(shape, names, strict=True)]
        small = math.prod(shape) < self.partition.min_size
        return None if small else largest_dimension(tuple(free), self.data)

    def learned_bytes(self, shapes: TrainState, sharded: tuple[str, ...]) -> list[int]:
        """Bytes of an algorithm's state but its `sharded` fields: [a device's, all]."""
        sizes = [0, 0]
        for path, leaf in jax.tree_util.tree_leaves_with_path(shapes.algorithm):
            if _name(path[0]) not in sharded:
                own = leaf.sharding.shard_shape(leaf.shape)
                for i, shape in enumerate((own, leaf.shape)):
                    sizes[i] += math.prod(shape) * leaf.dtype.itemsize
        return sizes

    def _marks(self, specs: TrainState, sharded: tuple[str, ...]) -> TrainState:
        """For each leaf of a state the dimension of a `Split`, or -1 for none."""

        def mark(path: tuple[Any, ...], spec: P) -> int:
            name = path[0].name
            if name != "algorithm" or (len(path) > 1 and _name(path[1]) in sharded):
                return -1
            return list(spec).index(_AXIS) if _AXIS in spec else -1

        return jax.tree_util.tree_map_with_path(mark, specs)

    def program(
        self,
        algorithm: Algorithm,
        env: BatchedEnv,
        num_envs: int,
        rows: int,
        on_nonfinite: NonFinite = "stop",
    ) -> Program:
        """Compile nothing yet: the two functions of a run over these devices."""
        axes, mesh = self.axes, self.mesh

        def init(key: Key, algorithm: Algorithm, env: BatchedEnv) -> TrainState:
            return step.init_state(algorithm, env, num_envs, key)

        def chunk(
            state: TrainState,
            algorithm: Algorithm,
            env: BatchedEnv,
            total_updates: Array,
            updates: Array,
        ) -> tuple[TrainState, dict[str, Array], tuple[Array, Faults]]:
            state = jax.tree.map(_split, state, marks)
            state, table, ended = step.chunk(
                *(algorithm, env, state, total_updates, updates, rows, axes),
                on_nonfinite,
            )
            return jax.tree.map(_joined, state, is_leaf=is_split), table, ended

        shapes = jax.eval_shape(init, jax.eval_shape(jax.random.key, 0), algorithm, env)
        specs = self.specs(shapes, algorithm.sharded)
        marks = self._marks(specs, algorithm.sharded)
        shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)
        shapes = jax.tree.map(lambda x, s: x.update(sharding=s), shapes, shardings)
        replicated = NamedSharding(mesh, P())
        if axes:
            env_specs = jax.tree.map(lambda _: P(), env)
            if isinstance(env.env, Instances):
                env_specs = jax.tree.map(lambda _: P(_AXIS), env)
            manual = jax.tree.map(_data_only, specs)  # `model` goes with the arrays
            chunk = jax.shard_map(
                chunk,
                mesh=mesh,
                axis_names={_AXIS} if self.model > 1 else set(mesh.axis_names),
                in_specs=(manual, P(), env_specs, P(), P()),
                out_specs=(manual, P(), P()),
                # User code may start a loop from a constant, which the check forbids.
                check_vma=False,
            )
        return Program(
            init=jax.jit(init, out_shardings=shardings),
            chunk=jax.jit(
                chunk,
                donate_argnums=0,
                out_shardings=(shardings, replicated, replicated),
            ),
            shapes=shapes,
            replicated=replicated,
        )


@dataclasses.dataclass(frozen=True)
class Program:
    """A run's functions, laid over devices.

    `init(key, algorithm, env) -> state`; `chunk(state, algorithm, env,
    total_updates, updates)`, which gives what `step.chunk` does and uses `state` up.
    `shapes` are the state's, with their shardings.
    """

    init: Any  # jitted functions
    chunk: Any
    shapes: TrainState
    replicated: NamedSharding

    def place(self, tree: PyTree) -> PyTree:
        """Copy a tree of host values to every device."""
        return jax.device_put(jax.tree.map(jnp.asarray, tree), self.replicated)


def _split(leaf: Any, dimension: int) -> Any:
    return leaf if dimension < 0 else Split(leaf, dimension, (_AXIS,))


def _joined(leaf: Any) -> Any:
    return leaf.part if isinstance(leaf, Split) else leaf


def _data_only(spec: P) -> P:
    """A partition without the axis that is the compiler's."""
    names = [name if name == _AXIS else None for name in spec]
    while names and names[-1] is None:
        names.pop()
    return P(*names)


def _kind(path: str, shape: tuple[int, ...]) -> _Kind:
    """What a parameter, its moments and its copy in a target network have in common."""
    return "/".join(path.split("/")[-2:]), shape


def _learned(algorithm: PyTree) -> set[_Kind]:
    """The kinds of parameters that have moments."""
    paths = jax.tree_util.tree_leaves_with_path(algorithm)
    named = [(path_of(path), leaf.shape) for path, leaf in paths]
    return {_kind(*pair) for pair in named if _MOMENT.search(pair[0])}


def _name(part: Any) -> str:
    """The field or key that one part of a path in a tree names."""
    return str(getattr(part, "name", getattr(part, "key", "")))


def local(tree: PyTree, sharded: tuple[str, ...] = ()) -> PyTree:
    """Every leaf on this host's first device, as an array of one.

    All of it; in fields that are `sharded` the first device's share.
    """

    def first(path: tuple[Any, ...], leaf: Any) -> Any:
        if not isinstance(leaf, jax.Array):
            return leaf
        shard = leaf.addressable_shards[0]
        if leaf.is_fully_replicated or (path and _name(path[0]) in sharded):
            return shard.data
        return jax.device_put(leaf, shard.device)

    return jax.tree_util.tree_map_with_path(first, tree)
