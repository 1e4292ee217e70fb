"""check_env passes what is right and names what is wrong."""

from __future__ import annotations

import dataclasses
import re
import time
from typing import Any, NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_par.envs.base import EnvError, check_env
from jaxrl_par.spaces import Box, Dict, Discrete
from jaxrl_par.types import EnvSpec, StepResult, pytree, static

SPEC = EnvSpec("walk", Box(-5.0, 5.0, (2,)), Discrete(2), max_steps=50)


@pytree
class Walk:
    """A right environment, of which each broken one below changes one thing."""

    speed: float = 0.5

    @property
    def spec(self):
        return SPEC

    def reset(self, key):
        state = jax.random.uniform(key, (2,))
        return state, state

    def step(self, key, state, action):
        state = jnp.clip(state + (2 * action - 1) * self.speed, -5, 5)
        end = abs(state[0]) > 3
        return state, StepResult(state, jnp.float32(1), end)


def broken(**members) -> Any:
    """Walk with other members, as a user would have written them."""
    return pytree(type("Broken", (Walk,), members))()


def new_step(change):
    """`step` whose (state, result) went through `change`."""
    return lambda self, key, state, action: change(*Walk().step(key, state, action))


def with_result(**values):
    return broken(
        step=new_step(lambda state, r: (state, dataclasses.replace(r, **values)))
    )


def with_spec(**values):
    return broken(spec=dataclasses.replace(SPEC, **values))


class BraxState(NamedTuple):
    obs: Any
    done: Any


@pytree
class Counter(Walk):
    def step(self, key, state, action):
        vars(self)["calls"] = vars(self).get("calls", 0) + 1
        return super().step(key, state, action)


@pytree
class History(Walk):
    def reset(self, key):
        state, obs = super().reset(key)
        self.seen.append(obs)
        return state, obs


class Plain:
    speed = 0.5
    spec = SPEC
    reset = Walk.reset
    step = Walk.step


@pytree
class NamedField(Walk):
    mode: str = "fast"


@pytree
class ListField(Walk):
    sizes: list = static(default_factory=lambda: [1, 2])


@pytree
class LeafSpec(Walk):
    @property
    def spec(self):
        return dataclasses.replace(SPEC, obs_space=Box(-10 * self.speed, 10.0, (2,)))


@pytree
class LeafName(Walk):
    @property
    def spec(self):
        return dataclasses.replace(SPEC, name=f"walk at {self.speed}")


class RaisingSpec(Walk):
    @property
    def spec(self):
        raise RuntimeError("not built yet")


class UnhashableSpace(Box):
    __hash__ = None  # type: ignore[assignment]


def history():
    env = History()
    vars(env)["seen"] = []
    return env


def auto_reset(self, key, state, action):
    step_key, reset_key = jax.random.split(key)
    state, result = Walk().step(step_key, state, action)
    fresh = Walk().reset(reset_key)[0]
    state = jnp.where(result.terminated, fresh, state)
    return state, dataclasses.replace(result, obs=state)


def fixed_size_step(self, key, state, action):
    """Right for one environment, impossible to batch."""
    if type(state).__name__ == "BatchTracer":
        raise NotImplementedError("no batching rule")
    return Walk().step(key, state, action)


def mask_env(mask_space):
    parts = (("obs", Box(0.0, 1.0, (1,))), ("action_mask", mask_space))
    return with_spec(obs_space=Dict(parts))


state_dict = {"x": jnp.zeros(2), "t": jnp.int32(0)}

BROKEN = {
    # methods and spec
    "no step": (lambda: type("E", (), {"spec": SPEC, "reset": 0})(), "step: missing"),
    "spec method": (lambda: broken(spec=lambda self: SPEC), "spec: is a method"),
    "spec kind": (lambda: broken(spec=3), "spec: is a Python int.*must be an EnvSpec"),
    "spec raises": (RaisingSpec, "spec: raises RuntimeError: not built yet"),
    "foreign space": (
        lambda: with_spec(action_space=gymnasium.spaces.Discrete(2)),
        "action_space is a gymnasium.spaces.discrete.Discrete.*jaxrl_par.spaces",
    ),
    "unhashable spec": (
        lambda: with_spec(obs_space=UnhashableSpace(-5.0, 5.0, (2,))),
        "spec: cannot be hashed",
    ),
    "mask": (lambda: mask_env(Box(0.0, 1.0, (2,))), r"must be a Box of bool \[2\]"),
    "no pytree": (Plain, "class: is no pytree; decorate it"),
    "string leaf": (NamedField, r"class: .mode is a str; .*static"),
    "list static": (ListField, "class: .sizes, unhashable type.*tuples"),
    "spec of leaf": (LeafSpec, "spec: cannot be read while leaves are traced.*static"),
    "spec name of leaf": (LeafName, "spec: changes when leaves are traced.*static"),
    # reset
    "reset signature": (
        lambda: broken(reset=lambda self: Walk().reset(jax.random.key(0))),
        r"reset: too many positional.* called as reset\(key\)",
    ),
    "reset of three": (
        lambda: broken(reset=lambda self, key: (1, 2, 3)),
        r"reset: must return \(state, obs\); found a tuple of 3",
    ),
    "reset swapped": (
        lambda: broken(reset=lambda self, key: (jnp.zeros(2), state_dict)),
        r"must return \(state, obs\); it seems to return \(obs, info\)",
    ),
    "reset swapped arrays": (
        lambda: broken(reset=lambda self, key: (jnp.zeros(2), jnp.zeros(3))),
        r"must return \(state, obs\); it seems to return \(obs, state\)",
    ),
    "reset obs shape": (
        lambda: broken(
            reset=lambda self, key: (jnp.zeros(3), jnp.zeros(3)),
            step=lambda self, key, state, action: (
                state,
                Walk().step(key, state[:2], action)[1],
            ),
        ),
        r"reset: obs is float32\[3\]; the space says float32\[2\]",
    ),
    "state is no array": (
        lambda: broken(reset=lambda self, key: (object(), jnp.zeros(2))),
        "reset: state is a object, which is no array",
    ),
    "weak state": (
        lambda: broken(reset=lambda self, key: (jnp.full(2, 0.5), jnp.zeros(2))),
        r"reset: state is float32\[2\], a weak type.*write jnp.float32",
    ),
    "Python state": (
        lambda: broken(
            reset=lambda self, key: ({"t": 0}, jnp.zeros(2)),
            step=lambda self, key, state, action: (
                state,
                Walk().step(key, jnp.zeros(2), action)[1],
            ),
        ),
        r"reset: state\['t'\] is a Python int, a weak type.*write jnp.int32",
    ),
    # keys and purity
    "raw key": (
        lambda: broken(
            reset=lambda self, key: 2 * (jax.random.uniform(jax.random.PRNGKey(0), 2),)
        ),
        "reset: uses a raw uint32 key.*jax.random.key",
    ),
    "raw key from data": (
        lambda: broken(
            reset=lambda self, key: (
                2 * (jax.random.uniform(jax.random.key_data(key), (2,)),)
            )
        ),
        "reset: uses a raw uint32 key",
    ),
    "NumPy randomness": (
        lambda: broken(
            reset=lambda self, key: (
                2 * (jnp.asarray(np.random.default_rng().random(2)),)
            )
        ),
        "reset: is not pure",
    ),
    "clock": (
        lambda: broken(
            step=new_step(
                lambda s, r: (
                    s,
                    dataclasses.replace(r, reward=r.reward * time.perf_counter()),
                )
            )
        ),
        "step: is not pure",
    ),
    "counter on self": (Counter, "step: changes self.calls.*pure"),
    "list on self": (history, "reset: changes self.seen.*pure"),
    # jit and vmap
    "if on a value": (
        lambda: broken(step=new_step(lambda s, r: (s, r) if s[0] > 0 else (s + 1, r))),
        "step: cannot be jitted.*jnp.where",
    ),
    "numpy on a value": (
        lambda: broken(step=new_step(lambda s, r: (jnp.asarray(np.sin(s)), r))),
        "step: cannot be jitted.*jnp in place of np",
    ),
    "float of a value": (
        lambda: broken(step=new_step(lambda s, r: (s * float(s[0]), r))),
        "step: cannot be jitted",
    ),
    "no vmap": (lambda: broken(step=fixed_size_step), "step: cannot be vmapped"),
    "other exception": (
        lambda: broken(step=new_step(lambda s, r: s.nonsense)),
        "step: raises AttributeError.*nonsense",
    ),
    # step: what is returned
    "step signature": (
        lambda: broken(step=lambda self, state, action: None),
        r"too many positional.*step\(key, state, action\)",
    ),
    "step of Gym": (
        lambda: broken(step=new_step(lambda s, r: (s, r.reward, r.terminated, {}))),
        "tuple of 4.*Gym's.*return .state, StepResult.*done split",
    ),
    "step of gymnax 0": (
        lambda: broken(step=new_step(lambda s, r: (s, s, r.reward, r.terminated, {}))),
        "tuple of 5.*gymnax's before 1.0.*StepResult",
    ),
    "step of gymnax 1": (
        lambda: broken(
            step=new_step(lambda s, r: (s, s, r.reward, r.terminated, r.terminated, {}))
        ),
        "tuple of 6.*gymnax's.*StepResult",
    ),
    "step of brax": (
        lambda: broken(step=new_step(lambda s, r: BraxState(s, r.terminated))),
        "step: returns .*StepResult.*done split",
    ),
    "step swapped": (
        lambda: broken(step=new_step(lambda s, r: (r, s))),
        r"returns \(StepResult, state\)",
    ),
    "step obs dtype": (
        lambda: with_result(obs=jnp.zeros(2, jnp.int32)),
        r"step: obs is int32\[2\]; the space says float32\[2\]",
    ),
    "step obs structure": (
        lambda: with_result(obs={"x": jnp.zeros(2)}),
        r"step: obs is a dict; the space says float32\[2\]",
    ),
    "reward dtype": (
        lambda: with_result(reward=jnp.int32(1)),
        r"step: reward is int32\[\]; it must be a scalar array of float32",
    ),
    "reward shape": (
        lambda: with_result(reward=jnp.ones(1)),
        r"step: reward is float32\[1\]; it must be a scalar",
    ),
    "reward of Python": (
        lambda: with_result(reward=1.0),
        "step: reward is a Python float; it must be a scalar array",
    ),
    "terminated dtype": (
        lambda: with_result(terminated=jnp.float32(0)),
        r"terminated is float32\[\]; it must be a scalar array of bool",
    ),
    "terminated shape": (
        lambda: with_result(terminated=jnp.zeros(1, bool)),
        r"terminated is bool\[1\]; it must be a scalar",
    ),
    "truncated of Python": (
        lambda: with_result(truncated=True),
        "truncated is a Python bool; it must be a scalar array of bool",
    ),
    "info": (lambda: with_result(info=None), "info is a NoneType; .* dictionary"),
    # the state from step
    "state dtype": (
        lambda: broken(step=new_step(lambda s, r: (s.astype(jnp.int32), r))),
        r"state is int32\[2\], and float32\[2\] from reset; a state keeps",
    ),
    "state shape": (
        lambda: broken(step=new_step(lambda s, r: (jnp.zeros(3), r))),
        r"state is float32\[3\], and float32\[2\] from reset",
    ),
    "state structure": (
        lambda: broken(step=new_step(lambda s, r: ({"x": s}, r))),
        "step: state is PyTreeDef.* from reset; a state keeps its structure",
    ),
    # values
    "out of bounds": (
        lambda: with_spec(obs_space=Box(-5.0, np.array([5.0, 1.3]))),
        r"step: obs\[1\] is 1.*, out of bounds; .*widen",
    ),
    "reset out of bounds": (
        lambda: broken(reset=lambda self, key: 2 * (jnp.full(2, 6, jnp.float32),)),
        r"reset: obs\[0\] is 6.0, out of bounds",
    ),
    "NaN": (
        lambda: with_result(obs=jnp.full(2, jnp.nan, jnp.float32)),
        "step: obs is not finite",
    ),
    "infinite reward": (
        lambda: with_result(reward=jnp.float32(jnp.inf)),
        "step: reward is not finite",
    ),
    "both ends": (
        lambda: with_result(terminated=jnp.bool_(True), truncated=jnp.bool_(True)),
        "terminated and truncated are both set.*truncated & ~terminated",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_mistake_is_named(case):
    build, message = BROKEN[case]
    with pytest.raises(EnvError) as error:
        check_env(build())
    found = error.value.problems
    assert any(re.search(message, problem, re.DOTALL) for problem in found), found
    assert len(found) == 1, found  # and nothing else is said to be wrong


def test_all_mistakes_are_listed():
    env = with_result(reward=jnp.int32(1), terminated=jnp.int32(0), info=None)
    with pytest.raises(ValueError, match=r"has 3 problems:\n  1. step: reward"):
        check_env(env)


def test_auto_reset_is_suspected():
    with pytest.warns(UserWarning, match="Broken: after every end.*successor is lost"):
        check_env(broken(step=auto_reset))


def test_own_checks_leave_the_environment_as_it_was():
    env = history()
    with pytest.raises(EnvError):
        check_env(env)
    assert env.seen == []


def test_right_environments_pass():
    check_env(Walk())
    unbounded = Box(-np.inf, np.inf, (2,))
    check_env(broken(spec=dataclasses.replace(SPEC, action_space=unbounded)))
