"""Whether a training state fits the devices it is to lie on."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_par.types import PyTree


def check_memory(shapes: PyTree) -> None:
    """Raise ValueError if arrays of these shapes, with their places, cannot fit.

    Before any is made. Of a platform that does not tell what it has, nothing is known.
    """
    leaves = jax.tree_util.tree_leaves_with_path(shapes)
    needed: dict[Any, int] = {}
    for _, leaf in leaves:
        for device in leaf.sharding.device_set:
            needed[device] = needed.get(device, 0) + _bytes_on_each(leaf)
    shared = {device for device in needed if device.platform == "cpu"}
    places = [(device, size) for device, size in needed.items() if device not in shared]
    if shared:  # all of them are this machine's memory
        places.append((next(iter(shared)), sum(needed[device] for device in shared)))
    for device, size in places:
        free = free_bytes(device)
        if free is not None and size > free:
            path, largest = max(leaves, key=lambda pair: _bytes_on_each(pair[1]))
            name = jax.tree_util.keystr(path).lstrip(".")
            raise ValueError(
                f"the training state needs {size:,} bytes, and {device} has {free:,} "
                f"free; the largest part is {name}, {_show(largest)} (of a replay: "
                "lower its capacity)"
            )


def free_bytes(device: Any) -> int | None:
    """Bytes that a device has left, as far as it says."""
    if device.platform == "cpu":
        return _free_on_host()
    stats = device.memory_stats() or {}
    if "bytes_limit" not in stats:
        return None
    return stats["bytes_limit"] - stats.get("bytes_in_use", 0)


def _free_on_host() -> int | None:
    """What the system could give, and the control group would let us have."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    free = int(fields["MemAvailable"].split()[0]) * 1024
    group = Path("/sys/fs/cgroup")
    try:
        limit = int((group / "memory.max").read_text())
        used = int((group / "memory.current").read_text())
    except (OSError, ValueError):  # none, or "max"
        return free
    return min(free, max(limit - used, 0))


def _bytes_on_each(leaf: Any) -> int:
    """Bytes of a leaf's part on each of its devices."""
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return 16 * math.prod(leaf.shape)
    return math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize


def _show(leaf: Any) -> str:
    return f"{leaf.dtype.name}{list(leaf.shape)}"
