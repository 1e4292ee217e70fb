"""Environments of gymnax 1.x, through its raw `reset_env` and `step_env`.

gymnax's own `step` resets at once and hides the true successor, so it is not used.
Importing this module does not import gymnax, which takes seconds (its package imports
its plotting libraries); making an environment does.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import importlib.metadata
import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_par.spaces import Box, Dict, Discrete, Space
from jaxrl_par.types import (
    Array,
    EnvSpec,
    Key,
    PyTree,
    StepResult,
    pytree,
    static,
    strong,
)

# Those of gymnax 1.0 that need no download.
NAMES = (
    "CartPole-v1",
    "Pendulum-v1",
    "Acrobot-v1",
    "MountainCar-v0",
    "MountainCarContinuous-v0",
    "Asterix-MinAtar",
    "Breakout-MinAtar",
    "Freeway-MinAtar",
    "Seaquest-MinAtar",
    "SpaceInvaders-MinAtar",
    "Catch-bsuite",
    "DeepSea-bsuite",
    "MemoryChain-bsuite",
    "UmbrellaChain-bsuite",
    "DiscountingChain-bsuite",
    "SimpleBandit-bsuite",
    "FourRooms-misc",
    "MetaMaze-misc",
    "PointRobot-misc",
    "BernoulliBandit-misc",
    "GaussianBandit-misc",
    "Reacher-misc",
    "Swimmer-misc",
    "Pong-misc",
    "FrozenLake-misc",
)

# Names that need no prefix in `jaxrl_par.envs.make`.
SHORT_NAMES = tuple(name for name in NAMES if name.endswith("-MinAtar"))

# Their observations are zeros and ones, which gymnax gives as float32: as bytes they
# take a quarter of a rollout's and a replay's memory.
_BINARY = SHORT_NAMES

# Their observations leave the bounds that gymnax 1.0.1 declares.
_WRONG_BOUNDS = ("MemoryChain-bsuite", "MetaMaze-misc", "GaussianBandit-misc")

# gymnax writes "unbounded" as the largest float32.
_UNBOUNDED = 3e38


@pytree
class Gymnax:
    """A gymnax environment with its parameters as leaves.

    Observation, action, reward, termination and start: as gymnax documents them for
    `env`. Truncation: after `max_steps_in_episode` steps, as the parameters had it
    when this was made (`spec.max_steps`); the leaf of that name has no such effect.
    State: gymnax's, in settled types. Rewards are float32; MinAtar's observations are
    booleans.
    """

    params: PyTree  # gymnax's EnvParams
    env: Any = static()  # gymnax's environment, compared by identity
    spec: EnvSpec = static()
    # Its constructor's arguments, by which it can be made again; None: unknown.
    arguments: tuple[tuple[str, Any], ...] | None = static(default=None)

    def reset(self, key: Key) -> tuple[PyTree, PyTree]:
        """Start an episode: (state, obs)."""
        obs, state = self.env.reset_env(key, self.params)
        return strong((state, self._settle(obs)))

    def step(self, key: Key, state: PyTree, action: Array) -> tuple[PyTree, StepResult]:
        """Apply one action: (state, result)."""
        obs, new_state, reward, terminated, info = self.env.step_env(
            key, state, action, self.params
        )
        reward = jnp.asarray(reward, jnp.float32)
        obs = self._settle(obs)
        new_state, obs, terminated, info = strong((new_state, obs, terminated, info))
        return new_state, StepResult(obs, reward, terminated, info=info)

    def _settle(self, obs: PyTree) -> PyTree:
        """Zeros and ones as booleans, where the space says so."""
        space = self.spec.obs_space
        binary = isinstance(space, Box) and space.dtype == np.bool_
        return obs.astype(bool) if binary else obs


def make(name: str, **parameters: Any) -> Gymnax:
    """gymnax's environment `name`.

    Parameters are fields of its EnvParams, arguments of its constructor, or
    `max_steps`. The same name and constructor arguments give the same underlying
    object, hence no second compilation. Raises ValueError for an unknown name or
    parameter, ImportError if gymnax is missing or older than 1.0.
    """
    gymnax = _import_gymnax()
    if name not in gymnax.registered_envs:
        near = difflib.get_close_matches(name, gymnax.registered_envs, cutoff=0.4)
        near = ", ".join(near or NAMES)
        raise ValueError(f"gymnax has no environment {name!r}; nearest: {near}")
    accepted = _constructor_parameters(name)
    options = {k: v for k, v in parameters.items() if k in accepted}
    changes = {k: v for k, v in parameters.items() if k not in accepted}
    if changes.get("max_steps") is not None:
        changes["max_steps_in_episode"] = changes["max_steps"]
    unlimited = "max_steps" in changes and changes.pop("max_steps") is None

    options = {k: tuple(v) if isinstance(v, list) else v for k, v in options.items()}
    arguments = tuple(sorted(options.items()))
    env = _construct(name, arguments)
    params = env.default_params
    fields = [field.name for field in dataclasses.fields(params)]
    for key in changes:
        if key not in fields:
            known = sorted({*fields, *accepted, "max_steps"})
            near = difflib.get_close_matches(key, known, cutoff=0.4) or known
            raise ValueError(f"{name} has no parameter {key!r}; nearest: {near}")
    env = wrap(env, params.replace(**changes), name)
    if _hashable(arguments):
        env = dataclasses.replace(env, arguments=arguments)
    if unlimited:
        spec = dataclasses.replace(env.spec, max_steps=None)
        env = dataclasses.replace(env, spec=spec)
    return env


def wrap(env: Any, params: PyTree = None, name: str | None = None) -> Gymnax:
    """Adapt a gymnax environment object of your own; `params` default to its own."""
    params = env.default_params if params is None else params
    name = name or env.name
    obs, _ = jax.eval_shape(env.reset_env, jax.random.key(0), params)
    obs_space = _space(env.observation_space(params), obs, name in _WRONG_BOUNDS)
    if name in _BINARY:
        obs_space = Box(False, True, obs.shape, np.dtype(bool))
    spec = EnvSpec(
        name=name if name in SHORT_NAMES else f"gymnax:{name}",
        obs_space=obs_space,
        action_space=_space(env.action_space(params)),
        max_steps=int(params.max_steps_in_episode),
    )
    return Gymnax(params, env, spec)


def _import_gymnax() -> Any:
    try:
        version = importlib.metadata.version("gymnax")
    except importlib.metadata.PackageNotFoundError as error:
        raise ImportError("gymnax is not installed: pip install 'gymnax>=1'") from error
    if int(version.split(".")[0]) < 1:
        raise ImportError(
            f"gymnax {version} is installed, but 1.0 or newer is needed (before it, "
            "step_env mixed time limits and terminations): pip install 'gymnax>=1'"
        )
    try:
        import gymnax
    except ModuleNotFoundError as error:
        if error.name != "six":
            raise
        # gymnax 1.0.1 uses it undeclared, and no dependency brings it any more.
        raise ImportError("gymnax needs the package six: pip install six") from error
    return gymnax


def _constructor_parameters(name: str) -> tuple[str, ...]:
    signature = inspect.signature(type(_cached_construct(name, ())))
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return tuple(k for k, v in signature.parameters.items() if v.kind in kinds)


def _construct(name: str, arguments: tuple[tuple[str, Any], ...]) -> Any:
    if _hashable(arguments):
        return _cached_construct(name, arguments)
    return _cached_construct.__wrapped__(name, arguments)


def _hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


@functools.cache
def _cached_construct(name: str, arguments: tuple[tuple[str, Any], ...]) -> Any:
    import gymnax

    return gymnax.make(name, **dict(arguments))[0]


def _space(space: Any, found: PyTree = None, unbounded: bool = False) -> Space:
    """Our space for gymnax's; shape and dtype are those `found`, where given."""
    kind = type(space).__name__
    if kind == "Dict":
        parts = {
            name: _space(part, None if found is None else found[name], unbounded)
            for name, part in space.spaces.items()
        }
        return Dict(tuple(sorted(parts.items())))
    if kind == "Discrete":
        return Discrete(int(space.n))
    if kind != "Box":
        raise ValueError(f"gymnax space {space} must be a Box, Discrete or Dict")
    shape = tuple(space.shape) if found is None else found.shape
    dtype = np.dtype(space.dtype if found is None else found.dtype)
    low, high = np.asarray(space.low), np.asarray(space.high)
    if np.issubdtype(dtype, np.floating):
        low = np.where(unbounded | (low <= -_UNBOUNDED), -np.inf, low)
        high = np.where(unbounded | (high >= _UNBOUNDED), np.inf, high)
    return Box(low, high, shape, dtype)
