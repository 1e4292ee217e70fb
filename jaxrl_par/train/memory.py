"""Whether a training state fits the devices it is to lie on."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_par.types import PyTree

# Of versions 2 and 1: limit, use, and where in which file the use by a cache of files.
_GROUPS = (
    ("memory.max", "memory.current", "memory.stat", "inactive_file"),
    (
        *("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
        *("memory/memory.stat", "total_inactive_file"),
    ),
)


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


def _free_on_host(system: Path = Path("/")) -> int | None:
    """What the system could give, and the control group would let us have."""
    try:
        lines = (system / "proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    free = int(fields["MemAvailable"].split()[0]) * 1024
    for names in _GROUPS:
        limit, used, stat = (system / "sys/fs/cgroup" / name for name in names[:3])
        try:
            left = int(limit.read_text()) - int(used.read_text())
            words = stat.read_text().split()
            left += int(words[words.index(names[3]) + 1])  # given back when needed
        except (OSError, ValueError):  # no such group, or no limit
            continue
        free = min(free, max(left, 0))
    return free


def _bytes_on_each(leaf: Any) -> int:
    """Bytes of a leaf's part on each of its devices."""
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return 16 * math.prod(leaf.shape)
    return math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize


def _show(leaf: Any) -> str:
    return f"{leaf.dtype.name}{list(leaf.shape)}"
