"""`jaxrl-par doctor`: what this installation has, and what it lacks."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
from packaging.requirements import Requirement  # comes with matplotlib

from jaxrl_par.train.plan import enable_compilation_cache

# What each optional suite needs, and how it is installed.
SUITES = {
    "gymnax": ("gymnax", "six"),
    "gymnasium (as a reference)": ("gymnasium",),
}


def run(argv: Sequence[str]) -> int:
    """Print the findings; returns 1 if a required package is missing or too old."""
    if argv and argv[0] in ("-h", "--help"):
        print("usage: jaxrl-par doctor")
        return 0
    if argv:
        raise ValueError(f"usage: jaxrl-par doctor: it takes nothing, not {argv[0]!r}")
    problems: list[str] = []
    print(f"python       {platform.python_version()} ({sys.executable})")
    print(f"system       {platform.platform()}")
    print(f"CPU cores    {len(os.sched_getaffinity(0))} for this process")
    print(f"jaxrl_par    {_version('jaxrl_par')} ({Path(__file__).parents[1]})")
    for line in _requirements(problems):
        print(f"  {line}")
    print("suites")
    for name, packages in SUITES.items():
        missing = [package for package in packages if not _version(package)]
        state = f"not usable: pip install {' '.join(missing)}" if missing else "usable"
        print(f"  {name:30}{state}")
    print(f"compiled     {_cache()}")
    for name in sorted(os.environ):
        if name.startswith(("JAX_", "XLA_", "CUDA_VISIBLE", "LIBTPU")):
            print(f"variable     {name}={os.environ[name]}")
    print("devices")
    for line in _devices(problems):
        print(f"  {line}")
    for problem in problems:
        print(f"PROBLEM: {problem}")
    return 1 if problems else 0


def _requirements(problems: list[str]) -> list[str]:
    """A line for each required package; what is wrong is added to `problems`."""
    lines = []
    for text in importlib.metadata.requires("jaxrl_par") or ():
        needed = Requirement(text)
        if needed.marker and "extra" in str(needed.marker):
            continue
        found = _version(needed.name)
        lines.append(f"{needed.name:11}{found or 'missing'}")
        if not found or not needed.specifier.contains(found, prereleases=True):
            problems.append(f"{text} is needed, {found or 'nothing'} is installed")
    return lines


def _version(package: str) -> str:
    """The installed version, or ""; nothing is imported."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _cache() -> str:
    """Where compiled programs are kept, and how large that is."""
    enable_compilation_cache()
    config: Any = jax.config  # whose options no type checker sees
    place = config.jax_compilation_cache_dir
    if not config.jax_enable_compilation_cache or place is None:
        return "programs are not kept (JAX_ENABLE_COMPILATION_CACHE is off)"
    files = [path for path in Path(place).rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files) / 2**20
    return f"programs are kept in {place} ({len(files)} files, {size:.0f} MiB)"


def _devices(problems: list[str]) -> list[str]:
    """A line for each device that jax finds."""
    try:
        devices = jax.devices()
    except RuntimeError as error:
        problems.append(f"jax finds no device: {error}")
        return []
    driver = Path("/proc/driver/nvidia/version").exists()
    if driver and all(device.platform == "cpu" for device in devices):
        problems.append(
            "an NVIDIA driver is loaded, but jax finds no GPU: "
            "pip install 'jaxrl_par[cuda12]' (or cuda13)"
        )
    return [f"{d.platform}:{d.id}  {d.device_kind}" for d in devices]
