"""`check_env`: what an environment of your own gets wrong, all of it at once.

The protocol itself is `jaxrl_par.types.Environment`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from jaxrl_par.conformance.calls import Call, put_back, short, snapshot
from jaxrl_par.conformance.kinds import (
    change_problems,
    kind,
    leaf_problems,
    match_problems,
    settled,
)
from jaxrl_par.conformance.report import ConformanceError
from jaxrl_par.envs.rollout_check import rollout_problems
from jaxrl_par.envs.wrappers import Instances
from jaxrl_par.spaces import ACTION_MASK, Box, Dict, Discrete, MultiDiscrete
from jaxrl_par.types import EnvSpec, Key, PyTree, StepResult

_LEGACY_STEPS = {
    4: "(obs, reward, done, info) is Gym's",
    5: "(obs, reward, terminated, truncated, info) is Gymnasium's and "
    "(obs, state, reward, done, info) is gymnax's before 1.0",
    6: "(obs, state, reward, terminated, truncated, info) is gymnax's",
}
_STEP_RULE = "return (state, StepResult(obs, reward, terminated, truncated))"


class EnvError(ConformanceError):
    """What an environment gets wrong; `problems` has one string for each."""


def check_env(env: Any, key: Key | None = None) -> None:
    """Raise EnvError with every breach of the protocol that can be found.

    Checked: spec, pytree, signatures, shapes, dtypes, structure, weak types, purity,
    jit, vmap, and in short random episodes: bounds, finite values, flags. Warns if
    it looks as if `step` resets by itself. Takes seconds (it compiles one step).
    """
    key = jax.random.key(0) if key is None else key
    name = type(env).__name__
    members = dir(env)  # not hasattr, which would call the property
    missing = [m for m in ("spec", "reset", "step") if m not in members]
    if missing:
        rule = "an environment has spec, reset(key) and step(key, state, action)"
        raise EnvError(name, [f"{m}: missing; {rule}" for m in missing])
    try:
        spec = env.spec
    except Exception as error:
        raise EnvError(name, [f"spec: raises {short(error)}"]) from error
    problems = _spec_problems(spec)
    if problems:
        raise EnvError(name, problems)
    problems = _pytree_problems(env, spec)
    before = snapshot(env)
    with jax.legacy_prng_key("error"):
        problems += _method_problems(env, spec, key)
    put_back(env, before)
    if problems:
        raise EnvError(name, problems)


def check_shapes(env: Any) -> None:
    """Raise EnvError where reset and step do not give what the spec says.

    What a run checks before it compiles: a small part of `check_env`, and abstract.
    """
    if isinstance(env, Instances):  # of many physics, the first
        env = jax.tree.map(lambda leaf: leaf[0], env.env)
    spec = env.spec
    problems = _spec_problems(spec)
    if not problems:
        key = jax.eval_shape(jax.random.key, 0)
        state, obs = jax.eval_shape(env.reset, key)
        action = jax.eval_shape(spec.action_space.sample, key)
        after = jax.eval_shape(env.step, key, state, action)
        problems = match_problems(spec.obs_space, obs, "reset: obs")
        if _step_is_readable(after, problems):
            problems += _step_problems(after, spec)
    problems = [text for text in problems if "weak type" not in text]  # mended later
    if problems:
        raise EnvError(type(env).__name__, [*problems, "jaxrl_par.check_env says more"])


def _method_problems(env: Any, spec: EnvSpec, key: Key) -> list[str]:
    """What reset and step get wrong; as far as can be told from what they give."""
    problems: list[str] = []
    reset = Call(env, "reset", "(key)", problems)
    start = reset(key)
    state = _reset_state(start, spec, problems)
    if state is None:
        return problems
    step = Call(env, "step", "(key, state, action)", problems)
    action = jax.eval_shape(spec.action_space.sample, key)
    after = step(key, state, action)
    if not _step_is_readable(after, problems):
        return problems
    problems += _step_problems(after, spec)
    rule = "a state keeps its structure, shapes and dtypes from reset on"
    stable = change_problems(state, after[0], "step: state", "reset", rule)
    problems += stable
    if not stable:
        reset.check_purity(key)
        step.check_purity(key, state, action)
        problems += rollout_problems(env, spec, key, quiet=bool(problems))
    return problems


def _spec_problems(spec: Any) -> list[str]:
    if not isinstance(spec, EnvSpec):
        found = "a method (make it a property)" if callable(spec) else kind(spec)
        return [f"spec: is {found}; it must be an EnvSpec"]
    problems = []
    for field in ("obs_space", "action_space"):
        space = getattr(spec, field)
        if not isinstance(space, Discrete | MultiDiscrete | Box | Dict):
            found = f"{type(space).__module__}.{type(space).__name__}"
            rule = "it must be one of jaxrl_par.spaces"
            problems.append(f"spec: {field} is a {found}; {rule}")
    if problems:
        return problems
    try:
        hash(spec)
    except TypeError as error:
        return [f"spec: cannot be hashed ({error}); all of it must be"]
    obs, action = spec.obs_space, spec.action_space
    if isinstance(obs, Dict) and ACTION_MASK in obs.spaces:
        mask = obs.spaces[ACTION_MASK]
        size = action.n if isinstance(action, Discrete) else None
        if isinstance(action, Box):
            return [
                f"spec: {ACTION_MASK} is given, but no action of {action} is masked"
            ]
        if size and (mask.shape, mask.dtype) != ((size,), np.bool_):
            rule = f"it must be a Box of bool [{size}], one flag an action"
            problems.append(f"spec: {ACTION_MASK} is {mask}; {rule}")
    return problems


def _pytree_problems(env: Any, spec: EnvSpec) -> list[str]:
    """Fields that are neither numbers nor static; a spec that depends on leaves."""
    leaves = jax.tree_util.tree_leaves_with_path(env)
    if any(leaf is env for _, leaf in leaves):
        return ["class: is no pytree; decorate it with @jaxrl_par.types.pytree"]
    problems = []
    for path, leaf in leaves:
        if not isinstance(
            leaf, bool | int | float | np.ndarray | np.generic | jax.Array
        ):
            field = jax.tree_util.keystr(path)
            rule = "leaves are numbers; declare it with static(...)"
            problems.append(f"class: {field} is a {type(leaf).__name__}; {rule}")
    fields = dataclasses.fields(env) if dataclasses.is_dataclass(env) else ()
    for field in fields:
        try:
            if field.metadata.get("static"):
                hash(getattr(env, field.name))
        except TypeError as error:
            rule = "static fields must be hashable (tuples, not lists or arrays)"
            problems.append(f"class: .{field.name}, {error}; {rule}")
    if problems:
        return problems
    specs = []
    rule = "it may depend on static fields only"
    try:
        jax.eval_shape(lambda env: specs.append(env.spec), env)
    except Exception as error:
        return [f"spec: cannot be read while leaves are traced, {short(error)}; {rule}"]
    if specs[0] != spec:
        return [f"spec: changes when leaves are traced; {rule}"]
    return []


def _reset_state(start: Any, spec: EnvSpec, problems: list[str]) -> PyTree | None:
    """The abstract state of a readable result of reset, of strong types, else None."""
    rule = "reset: must return (state, obs)"
    if start is None:
        return None
    if not isinstance(start, tuple) or len(start) != 2:
        problems.append(f"{rule}; found {kind(start)}")
        return None
    state, obs = start
    wrong = match_problems(spec.obs_space, obs, "reset: obs")
    if wrong and not match_problems(spec.obs_space, state, ""):
        given = "(obs, info)" if isinstance(obs, dict) else "(obs, state)"
        problems.append(f"{rule}; it seems to return {given}")
        return None
    problems += wrong + leaf_problems(state, "reset: state")
    if any("no array" in problem for problem in problems):
        return None
    return settled(state)


def _step_is_readable(after: Any, problems: list[str]) -> bool:
    if after is None:
        return False
    if isinstance(after, tuple) and len(after) == 2:
        if isinstance(after[1], StepResult):
            return True
        if isinstance(after[0], StepResult):
            problems.append(f"step: returns (StepResult, state); {_STEP_RULE}")
            return False
        found = f"a second element of type {type(after[1]).__name__}"
    else:
        found = kind(after)
    if isinstance(after, tuple) and len(after) in _LEGACY_STEPS:
        found += f" ({_LEGACY_STEPS[len(after)]})"
    text = f"step: returns {found}; {_STEP_RULE}"
    if isinstance(after, tuple) or hasattr(after, "done"):
        text += ", with done split: terminated where the task ended, truncated where "
        text += "a limit cut it (max_steps in the spec does that for you)"
    problems.append(text)
    return False


def _step_problems(after: tuple, spec: EnvSpec) -> list[str]:
    state, result = after
    problems = match_problems(spec.obs_space, result.obs, "step: obs")
    problems += leaf_problems(state, "step: state")
    scalars = {"reward": np.float32, "terminated": np.bool_, "truncated": np.bool_}
    for name, dtype in scalars.items():
        value = getattr(result, name)
        if name == "truncated" and value is False:
            continue
        wanted = jax.ShapeDtypeStruct((), dtype)
        if not isinstance(value, jax.ShapeDtypeStruct) or (
            (value.shape, value.dtype) != (wanted.shape, wanted.dtype)
        ):
            rule = f"it must be a scalar array of {wanted.dtype.name}"
            problems.append(f"step: {name} is {kind(value)}; {rule}")
    if not isinstance(result.info, Mapping):
        rule = "it must be a dictionary of arrays"
        problems.append(f"step: info is {kind(result.info)}; {rule}")
    return problems
