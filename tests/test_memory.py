"""What memory there is, as the system and its control groups say."""

from __future__ import annotations

import pytest

from jaxrl_par.train import memory

GIB = 2**30
V2 = ("memory.max", "memory.current", "memory.stat", "inactive_file")
V1 = (
    "memory/memory.limit_in_bytes",
    "memory/memory.usage_in_bytes",
    "memory/memory.stat",
    "total_inactive_file",
)


def system(root, available, group=None, limit=0, used=0, cached=0):
    """Files as Linux has them."""
    (root / "proc").mkdir()
    lines = f"MemTotal: 1 kB\nMemAvailable:   {available // 1024} kB\n"
    (root / "proc/meminfo").write_text(lines)
    if group:
        folder = root / "sys/fs/cgroup"
        (folder / "memory").mkdir(parents=True)
        texts = (f"{limit}\n", f"{used}\n", f"anon 5\n{group[3]} {cached}\nzero 0\n")
        for name, text in zip(group, texts, strict=False):
            (folder / name).write_text(text)
    return root


def test_without_a_group_it_is_what_the_system_has(tmp_path):
    assert memory._free_on_host(system(tmp_path, 8 * GIB)) == 8 * GIB


@pytest.mark.parametrize("group", [V1, V2])
def test_a_group_gives_what_it_has_left_and_its_cache_of_files(tmp_path, group):
    root = system(tmp_path, 8 * GIB, group, limit=4 * GIB, used=3 * GIB, cached=GIB)
    assert memory._free_on_host(root) == 2 * GIB


@pytest.mark.parametrize(("group", "limit"), [(V2, "max"), (V1, 2**63 - 4096)])
def test_a_group_without_a_limit_gives_all(tmp_path, group, limit):
    root = system(tmp_path, 8 * GIB, group, limit=limit, used=3 * GIB)
    assert memory._free_on_host(root) == 8 * GIB


def test_where_no_system_tells_nothing_is_known(tmp_path):
    assert memory._free_on_host(tmp_path) is None
