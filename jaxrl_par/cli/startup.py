"""What must be settled before jax starts its backend."""

from __future__ import annotations

import os
from typing import Any

import jax

from jaxrl_par.train.plan import use_cpu_cores

# Samples of a rollout below which one thread is faster than several.
SMALL_PROGRAM = 4096


def prepare_backend(samples: int, data: int | None, device: str) -> None:
    """Choose how the CPU is used, for a run of `samples` per rollout.

    Normally every core is a device, and the plan splits the environments over them.
    A small program is faster (about 1.3 times) on one device with one thread: its
    operations are too short to be shared out, and handing them to a pool costs more
    than it saves. XLA sizes its pool by the variable NPROC, which it reads once, as
    the backend starts; it is put back afterwards, since a process that inherited it
    could deadlock: several CPU devices with one thread wait for each other for ever.

    Where the backend runs already, or the user has set the number of CPU devices,
    nothing changes.
    """
    if device == "cpu":  # else a GPU's memory would be taken too
        jax.config.update("jax_platforms", "cpu")
    small = samples < SMALL_PROGRAM and (data or 1) == 1
    if not small or device not in ("auto", "cpu") or _count_is_chosen():
        use_cpu_cores()
        return
    try:
        jax.config.update("jax_num_cpu_devices", 1)
    except RuntimeError:  # the backend has started
        return
    before = os.environ.get("NPROC")
    os.environ["NPROC"] = "1"
    try:
        jax.local_devices()
    finally:
        del os.environ["NPROC"]
        if before is not None:
            os.environ["NPROC"] = before


def _count_is_chosen() -> bool:
    """Whether the user has set the number of CPU devices."""
    flags = os.environ.get("XLA_FLAGS", "")
    chosen = "xla_force_host_platform_device_count" in flags
    config: Any = jax.config  # whose options no type checker sees
    return chosen or config.jax_num_cpu_devices != -1
