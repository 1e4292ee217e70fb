"""Strictness for all tests, set before jax starts.

Eight simulated CPU devices (all of them, or the GPU, with JAX_PLATFORMS set by
hand). Warnings are errors, ranks are never promoted silently, a key is used once,
raw uint32 keys are refused. Compiled programs are kept on disk for the next test
process; JAX_ENABLE_COMPILATION_CACHE=0 turns that off.
"""

from __future__ import annotations

import os
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
_flags = os.environ.get("XLA_FLAGS", "")
if "xla_force_host_platform_device_count" not in _flags:
    os.environ["XLA_FLAGS"] = f"{_flags} --xla_force_host_platform_device_count=8"

import jax  # noqa: E402  # after the environment is set
import pytest  # noqa: E402

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_legacy_prng_key", "error")
jax.config.update("jax_debug_key_reuse", True)

if jax.config.jax_compilation_cache_dir is None:
    _cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    jax.config.update(
        "jax_compilation_cache_dir", str(Path(_cache) / "jaxrl_par" / "tests")
    )
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)

# What other packages deprecate in their own use, each with its reason.
_ALLOWED_WARNINGS: tuple[str, ...] = ()


def pytest_configure(config: pytest.Config) -> None:
    """Make warnings errors, but for the allowed ones (later lines win)."""
    for line in ("error", *_ALLOWED_WARNINGS):
        config.addinivalue_line("filterwarnings", line)
