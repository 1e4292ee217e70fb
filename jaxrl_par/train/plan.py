"""How a run lies over devices. The only code that knows them.

Environments, and what belongs to each of them, are split over the mesh axis `data`;
everything else is equal on all devices. What is drawn and what is averaged does not
depend on the number of devices, so neither does the learning curve (up to the
rounding of sums).
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxrl_par import checks
from jaxrl_par.envs.batched import BatchedEnv
from jaxrl_par.envs.wrappers import Instances
from jaxrl_par.train import step
from jaxrl_par.train.config import NonFinite
from jaxrl_par.train.guards import Faults
from jaxrl_par.types import Algorithm, Array, Axes, Key, PyTree, TrainState

Device = Any  # jax.Device, which type checkers take for a variable

PLATFORMS = ("auto", "cpu", "gpu", "tpu")
_AXIS = "data"
# On a CPU a second device costs more than it brings below this many samples each.
CPU_SAMPLES_PER_DEVICE = 2048
_EXTRA = {"gpu": "cuda12 (or cuda13)", "tpu": "tpu"}


class DeviceError(ValueError):
    """The device that was asked for is not there."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """The mesh of a run: `data` devices of one platform (None: as many as pay)."""

    data: int | None = None
    device: str = "auto"

    def __post_init__(self) -> None:
        if self.device not in PLATFORMS:
            raise ValueError(
                f"device {self.device!r} must be one of {', '.join(PLATFORMS)}"
            )
        checks.optional_positive_int("data", self.data)

    def settle(self, algorithm: Algorithm, num_envs: int) -> Layout:
        """The devices to use. Raises ValueError for sizes that do not divide."""
        devices = find_devices(self.device)
        most = algorithm.max_devices(num_envs)
        fitting = [n for n in range(1, len(devices) + 1) if most % n == 0]
        if self.data is None:
            samples = num_envs * algorithm.rollout_length
            if devices[0].platform == "cpu":
                fitting = [
                    n for n in fitting if samples >= n * CPU_SAMPLES_PER_DEVICE
                ] or [1]
            return Layout(tuple(devices[: fitting[-1]]))
        if self.data > len(devices):
            raise ValueError(
                f"data {self.data} must be at most the number of "
                f"{devices[0].platform} devices, {len(devices)}"
            )
        if most % self.data:
            near = checks.nearest_divisors(self.data, most)
            raise ValueError(
                f"data {self.data} must divide {most}, the most devices that "
                f"num_envs {num_envs} can be split over; nearest: {near}"
            )
        return Layout(tuple(devices[: self.data]))


@dataclasses.dataclass(frozen=True)
class Layout:
    """A settled plan: the devices in order."""

    devices: tuple[Device, ...]

    @property
    def axes(self) -> Axes:
        return (_AXIS,) if len(self.devices) > 1 else ()

    @property
    def mesh(self) -> Mesh:
        return jax.make_mesh(
            (len(self.devices),),
            (_AXIS,),
            axis_types=(AxisType.Auto,),
            devices=self.devices,
        )

    def describe(self) -> str:
        """For example "2 x cpu" or "NVIDIA H200"."""
        kind = self.devices[0].device_kind
        return kind if len(self.devices) == 1 else f"{len(self.devices)} x {kind}"

    def specs(self, state: TrainState, sharded: tuple[str, ...]) -> TrainState:
        """The partition of each leaf of a training state.

        Split are what belongs to environments, and the algorithm's `sharded` fields.
        """

        def spec(path: tuple[Any, ...], _: Any) -> P:
            name = path[0].name
            if name == "algorithm":
                split = len(path) > 1 and _name(path[1]) in sharded
            else:
                split = name not in ("key", "update")
            return P(_AXIS) if split else P()

        return jax.tree_util.tree_map_with_path(spec, state)

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
            return step.chunk(
                *(algorithm, env, state, total_updates, updates, rows, axes),
                on_nonfinite,
            )

        shapes = jax.eval_shape(init, jax.eval_shape(jax.random.key, 0), algorithm, env)
        specs = self.specs(shapes, algorithm.sharded)
        shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)
        shapes = jax.tree.map(
            lambda x, sharding: x.update(sharding=sharding), shapes, shardings
        )
        replicated = NamedSharding(mesh, P())
        if axes:
            env_specs = jax.tree.map(lambda _: P(), env)
            if isinstance(env.env, Instances):
                env_specs = jax.tree.map(lambda _: P(_AXIS), env)
            chunk = jax.shard_map(
                chunk,
                mesh=mesh,
                in_specs=(specs, P(), env_specs, P(), P()),
                out_specs=(specs, P(), P()),
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


def _name(part: Any) -> str:
    """The field or key that one part of a path in a tree names."""
    return str(getattr(part, "name", getattr(part, "key", "")))


def local(tree: PyTree) -> PyTree:
    """This host's first part of every leaf, as arrays of one device.

    All of a replicated leaf; of a split one the first device's share.
    """

    def first(leaf: Any) -> Any:
        return leaf.addressable_shards[0].data if isinstance(leaf, jax.Array) else leaf

    return jax.tree.map(first, tree)


def find_devices(platform: str) -> list[Device]:
    """This process's devices of a platform; raises DeviceError if there is none."""
    if platform == "auto":
        return jax.local_devices()
    try:
        return jax.local_devices(backend=platform)
    except RuntimeError as error:
        found = ", ".join(sorted({d.platform for d in jax.devices()}))
        extra = _EXTRA.get(platform, "cpu")
        raise DeviceError(
            f"device {platform!r}: jax {jax.__version__} found no {platform} backend, "
            f"only {found}{_driver_note()}. Install the extra {extra}: "
            f"pip install 'jaxrl_par[{extra.split()[0]}]'. jax says: {error}"
        ) from None


def use_cpu_cores(count: int | None = None) -> None:
    """Make each CPU core a device (at most 8), so that a run can use them all.

    Must run before jax first computes anything; afterwards it changes nothing. A
    count that the user has set through XLA_FLAGS or jax's own setting is kept.
    """
    if "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", ""):
        return
    config: Any = jax.config  # whose options no type checker sees
    if config.jax_num_cpu_devices != -1:
        return
    cores = count or len(os.sched_getaffinity(0))
    try:
        jax.config.update("jax_num_cpu_devices", min(cores, 8))
    except RuntimeError:  # the backend has started
        return


def enable_compilation_cache() -> None:
    """Keep compiled programs on disk, unless the user has chosen a place.

    Under $XDG_CACHE_HOME or ~/.cache; JAX_ENABLE_COMPILATION_CACHE=0 turns it off.
    """
    config: Any = jax.config  # whose options no type checker sees
    if config.jax_compilation_cache_dir is not None:
        return
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    directory = Path(base) / "jaxrl_par" / "xla"
    jax.config.update("jax_compilation_cache_dir", str(directory))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def _driver_note() -> str:
    """The NVIDIA driver's version, if one is loaded."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return ""
    return f"; the NVIDIA driver says {text.splitlines()[0].strip()!r}"
