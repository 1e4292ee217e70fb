"""What must be settled before jax starts its backend."""

from __future__ import annotations

import jax

from jaxrl_par.train.plan import CPU_SAMPLES_PER_DEVICE, use_cpu_cores


def prepare_backend(
    samples: int, data: int | None, device: str, model: int = 1
) -> None:
    """Choose how the CPU is used, for a run of `samples` per rollout.

    Normally every core is a device, and the plan splits the environments over them.
    A small program stays on one device, whose large operations use all cores; it is
    faster (1.2 times) if that is the only one there is.

    Where the backend runs already, or the user has set the number of CPU devices,
    nothing changes.
    """
    if device == "cpu":  # else a GPU's memory would be taken too
        jax.config.update("jax_platforms", "cpu")
    small = samples < 2 * CPU_SAMPLES_PER_DEVICE and (data or 1) * model == 1
    use_cpu_cores(1 if small and device in ("auto", "cpu") else None)
