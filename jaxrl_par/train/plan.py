"""Which devices a run has, and how many share what. The only code that finds them.

What is drawn and what is averaged does not depend on the number of devices, so neither
does the learning curve (up to the rounding of sums).
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import jax

from jaxrl_par import checks
from jaxrl_par.networks.partition import ZERO_STAGES, Partition
from jaxrl_par.train.config import TrainConfig
from jaxrl_par.train.layout import Device, Layout
from jaxrl_par.types import Algorithm

PLATFORMS = ("auto", "cpu", "gpu", "tpu")
# On a CPU a second device costs more than it brings below this many samples each.
CPU_SAMPLES_PER_DEVICE = 2048
_EXTRA = {"gpu": "cuda12 (or cuda13)", "tpu": "tpu"}


class DeviceError(ValueError):
    """The device that was asked for is not there."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """The mesh of a run, of devices of one platform.

    Environments are split over `data` (None: as many as pay), parameters over `model`,
    as `partition` says. `zero` splits over `data` too, in the same way (Rajbhandari et
    al. 2020): 1 the optimiser's moments, 3 also the parameters, which are brought
    together where they are used.
    """

    data: int | None = None
    device: str = "auto"
    model: int = 1
    zero: int = 0
    partition: Partition = dataclasses.field(default_factory=Partition)

    def __post_init__(self) -> None:
        if self.device not in PLATFORMS:
            raise ValueError(
                f"device {self.device!r} must be one of {', '.join(PLATFORMS)}"
            )
        checks.optional_positive_int("data", self.data)
        checks.positive_int("model", self.model)
        checks.member("zero", self.zero, ZERO_STAGES)

    @classmethod
    def of(cls, config: TrainConfig, devices: int | None = None) -> Plan:
        """The plan of a run's settings; `devices` where `data` is left open."""
        partition = Partition(config.split, config.min_split)
        data = config.data or devices
        return cls(data, config.device, config.model, config.zero, partition)

    def settle(self, algorithm: Algorithm, num_envs: int) -> Layout:
        """The devices to use. Raises ValueError for sizes that do not divide."""
        devices = find_devices(self.device)
        least = (self.data or 1) * self.model
        if least > len(devices):
            size = f"data {self.data}"
            if self.model > 1:
                size = f"data * model = {self.data or 1} * {self.model}"
            raise ValueError(
                f"{size} must be at most the number of {devices[0].platform} devices, "
                f"{len(devices)}"
            )
        used = self._data(devices, algorithm, num_envs) * self.model
        return Layout(tuple(devices[:used]), self.model, self.zero, self.partition)

    def _data(self, devices: list[Device], algorithm: Algorithm, num_envs: int) -> int:
        """Devices that share the environments."""
        most = algorithm.max_devices(num_envs)
        if self.data is None:
            samples = num_envs * algorithm.rollout_length
            room = range(1, len(devices) // self.model + 1)
            fitting = [n for n in room if most % n == 0]
            if devices[0].platform == "cpu":
                least = CPU_SAMPLES_PER_DEVICE
                fitting = [n for n in fitting if samples >= n * least]
            return max(fitting, default=1)
        if most % self.data:
            near = checks.nearest_divisors(self.data, most)
            raise ValueError(
                f"data {self.data} must divide {most}, the most devices that "
                f"num_envs {num_envs} can be split over; nearest: {near}"
            )
        return self.data


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
