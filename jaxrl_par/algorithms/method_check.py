"""The part of `check_algorithm` that traces methods: structures, shapes, dtypes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_par.algorithms.random_rollout import random_obs, random_rollout
from jaxrl_par.conformance.calls import Call, Fixed
from jaxrl_par.conformance.kinds import (
    change_problems,
    kind,
    match_problems,
    settled,
    weak,
)
from jaxrl_par.types import EnvSpec, PyTree

# Names of the engine's own columns in a run's metrics.
RESERVED = (
    *("update", "env_steps", "frames"),
    *("episode_count", "episode_return", "episode_length"),
    *("episode_return_sum", "episode_length_sum"),
)
_NAMES = {
    "init": "(key, spec, num_envs)",
    "initial_carry": "(spec, num_envs)",
    "noise": "(state, key, length)",
    "act": "(state, carry, obs, noise, greedy)",
    "update": "(state, rollout, key, axes)",
}


class Methods:
    """The abstract calls of an algorithm, each of which adds what is wrong."""

    def __init__(self, algorithm: Any, spec: EnvSpec, num_envs: int) -> None:
        self.algorithm, self.spec, self.num_envs = algorithm, spec, num_envs
        self.problems: list[str] = []
        self.key = jax.eval_shape(jax.random.key, 0)

    def check(self) -> list[str]:
        """All problems of the five methods, as far as they can be told."""
        state = self._init()
        carry = self._carry()
        if state is None or carry is None:
            return self.problems
        noise = self._noise(state)
        if noise is None or not self._act(state, carry, noise):
            return self.problems
        self._update(state)
        return self.problems

    def call(self, method: str, **keywords: Any) -> Call:
        """A method with the algorithm's leaves traced, as in a run."""
        names = _NAMES[method]
        return Call(
            self.algorithm, method, names, self.problems, traced=True, **keywords
        )

    def _add(self, text: str) -> None:
        self.problems.append(text)

    def _init(self) -> PyTree | None:
        init = self.call("init")
        count = self.num_envs
        args = (self.key, Fixed(self.spec))
        found = init(*args, Fixed(count))
        if found is None or not self._is_state(found):
            return None
        state = settled(found)
        self._sharded(state, init(*args, Fixed(2 * count)))
        init.check_purity(*args, Fixed(count))
        return state

    def _is_state(self, state: PyTree) -> bool:
        leaves = jax.tree_util.tree_leaves_with_path(state)
        for path, leaf in leaves:
            if not isinstance(leaf, jax.ShapeDtypeStruct | bool | int | float):
                where = f"init: state{jax.tree_util.keystr(path)}"
                rule = "leaves are arrays: declare it with static(...)"
                self._add(f"{where} is {kind(leaf)}; {rule}")
                return False
        named = all(path and hasattr(path[0], "name") for path, _ in leaves)
        if not dataclasses.is_dataclass(state) or not leaves or not named:
            rule = "it must be a dataclass with @jaxrl_par.pytree, and hold arrays"
            self._add(f"init: state is {kind(state)}; {rule}")
            return False
        return True

    def _sharded(self, state: PyTree, larger: PyTree | None) -> None:
        """Names that exist; leading axes; nothing else that grows with num_envs."""
        sharded, count = self.algorithm.sharded, self.num_envs
        fields = [field.name for field in dataclasses.fields(state)]
        for name in sharded:
            if name not in fields:
                has = ", ".join(fields)
                self._add(
                    f"sharded: {name!r} is no field of the state, which has {has}"
                )
        devices = self.algorithm.max_devices(count)
        leaves = jax.tree_util.tree_leaves_with_path(state)
        others = jax.tree.leaves(larger)
        grown = others if len(others) == len(leaves) else [leaf for _, leaf in leaves]
        for (path, leaf), other in zip(leaves, grown, strict=True):
            where = f"init: state{jax.tree_util.keystr(path)} is {kind(leaf)}"
            if path[0].name in sharded:
                if leaf.ndim == 0 or leaf.shape[0] % devices:
                    self._add(
                        f"{where}; it is in `sharded`, so its leading axis must be "
                        f"environments (or replay slots) that max_devices, {devices}, "
                        "divides"
                    )
            elif leaf.shape[:1] == (count,) and other.shape != leaf.shape:
                self._add(
                    f"{where} for {count} environments and {kind(other)} for "
                    f"{2 * count}; what is kept of each environment is in `sharded`"
                )

    def _carry(self) -> PyTree | None:
        carry = self.call("initial_carry")(Fixed(self.spec), Fixed(self.num_envs))
        if carry is None:
            if not self.problems or "initial_carry" not in self.problems[-1]:
                self._add("initial_carry: returns None; return () for no memory")
            return None
        known = len(self.problems)
        self._leading(carry, "initial_carry: carry", self.num_envs, "num_envs")
        return settled(carry) if len(self.problems) == known else None

    def _noise(self, state: PyTree) -> PyTree | None:
        """Noise of one step, [B, ...], in a tuple; or None."""
        length, known = self.algorithm.rollout_length, len(self.problems)
        noise = self.call("noise")(state, self.key, Fixed(length))
        self._leading(noise, "noise", length, "length")
        if len(self.problems) > known:
            return None
        shape = (self.num_envs,)
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(shape + x.shape[1:], x.dtype), (noise,)
        )

    def _act(self, state: PyTree, carry: PyTree, noise: tuple) -> bool:
        obs = jax.eval_shape(
            lambda key: random_obs(self.spec, key, (self.num_envs,)), self.key
        )
        known = len(self.problems)
        for greedy in (False, True):
            act = self.call("act", greedy=greedy)
            args = (state, carry, obs, Fixed(None) if greedy else noise[0])
            title = "act with greedy (noise is None)" if greedy else "act"
            found = act(*args)
            if found is None:
                if greedy and len(self.problems) > known:
                    self.problems[-1] += "; with greedy, noise is None"
                continue
            if not isinstance(found, tuple) or len(found) != 3:
                rule = "it must return (carry, action, extras)"
                self._add(f"{title}: returns {kind(found)}; {rule}")
                continue
            rule = "a carry keeps its structure, shapes and dtypes"
            after, action, extras = found
            self.problems += change_problems(
                carry, after, f"{title}: carry", "initial_carry", rule
            )
            self._action(action, title)
            self._leading(extras, f"{title}: extras", self.num_envs, "num_envs")
            if len(self.problems) == known:
                act.check_purity(*args)
        return len(self.problems) == known

    def _action(self, action: PyTree, title: str) -> None:
        known = len(self.problems)
        self._leading(action, f"{title}: action", self.num_envs, "num_envs")
        if len(self.problems) == known:
            one = jax.tree.map(
                lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), action
            )
            name = f"{title}: one action"
            self.problems += match_problems(self.spec.action_space, one, name)

    def _update(self, state: PyTree) -> None:
        spec, count = self.spec, self.num_envs
        rollout = jax.eval_shape(
            lambda a, s, key: random_rollout(a, s, spec, count, key),
            *(self.algorithm, state, self.key),
        )
        update = self.call("update")
        args = (state, rollout, self.key, Fixed(()))
        found = update(*args)
        if found is None:
            return
        if not isinstance(found, tuple) or len(found) != 2:
            rule = "it must return (state, metrics)"
            self._add(f"update: returns {kind(found)}; {rule}")
            return
        after, metrics = found
        rule = "a state keeps its structure, shapes and dtypes, or it compiles again"
        known = len(self.problems)
        self.problems += change_problems(state, after, "update: state", "init", rule)
        for path, leaf in jax.tree_util.tree_leaves_with_path(after):
            if len(self.problems) == known and leaf.weak_type:
                where = f"update: state{jax.tree_util.keystr(path)}"
                self._add(weak(where, leaf))
        self._metrics(metrics)
        if len(self.problems) == known:
            update.check_purity(*args)

    def _metrics(self, metrics: Any) -> None:
        if not isinstance(metrics, Mapping):
            rule = "it must be a dictionary of scalars"
            self._add(f"update: metrics is {kind(metrics)}; {rule}")
            return
        for name, value in metrics.items():
            where = f"update: metrics[{name!r}]"
            if not isinstance(name, str):
                self._add(f"{where}: names of metrics are strings")
            elif name in RESERVED:
                self._add(f"{where}: the engine has a column of this name")
            elif name.endswith("_sum") and "gradient_steps" not in metrics:
                rule = "a sum needs the metric 'gradient_steps', to be divided by"
                self._add(f"{where}: {rule}")
            if not _is_float(value) or value.shape:
                rule = "it must be a scalar array of floats"
                self._add(f"{where} is {kind(value)}; {rule}")

    def _leading(self, tree: PyTree, name: str, size: int, what: str) -> None:
        """Every leaf is an array whose leading axis has this size."""
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            is_array = isinstance(leaf, jax.ShapeDtypeStruct)
            if not is_array or leaf.shape[:1] != (size,):
                where = name + jax.tree_util.keystr(path)
                rule = f"its leading axis must be {what}, {size}"
                self._add(f"{where} is {kind(leaf)}; {rule}")


def _is_float(value: Any) -> bool:
    array = isinstance(value, jax.ShapeDtypeStruct)
    return array and jnp.issubdtype(value.dtype, jnp.floating)
