"""Wrappers of one environment: action repeat, and a set of different physics."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl_par.types import (
    Array,
    Environment,
    EnvSpec,
    Key,
    PyTree,
    StepResult,
    pytree,
    static,
    strong,
)


@pytree
class ActionRepeat:
    """Apply each action for `repeats` steps of `env`, its frames.

    The reward is the frames' sum, up to and with the frame that ends the episode;
    after it nothing is applied. `obs`, both flags and `info` are those of the last
    frame applied. The time limit must be a whole number of steps. Source: Mnih et
    al. 2015, Methods (there called frame skip; no maximum over frames is taken).
    """

    env: Environment
    repeats: int = static()

    def __post_init__(self) -> None:
        if self.repeats < 1:
            raise ValueError(f"repeats {self.repeats} must be at least 1")
        limit = self.env.spec.max_steps
        if limit is not None and limit % self.repeats:
            lower = limit - limit % self.repeats
            near = [n for n in (lower, lower + self.repeats) if n]
            raise ValueError(
                f"repeats {self.repeats} must divide the environment's max_steps "
                f"{limit}; nearest max_steps that do: {near}"
            )

    @property
    def spec(self) -> EnvSpec:
        spec = self.env.spec
        limit = spec.max_steps
        return dataclasses.replace(
            spec,
            max_steps=None if limit is None else limit // self.repeats,
            frames_per_step=spec.frames_per_step * self.repeats,
        )

    def reset(self, key: Key) -> tuple[PyTree, PyTree]:
        """Start an episode: (state, obs) of `env`."""
        return self.env.reset(key)

    def step(self, key: Key, state: PyTree, action: Array) -> tuple[PyTree, StepResult]:
        """Apply one action for `repeats` frames: (state, result)."""
        keys = jax.random.split(key, self.repeats)
        first = self.env.step(keys[0], state, action)

        def frame(carry: tuple, key: Key) -> tuple[tuple, None]:
            state, total = carry
            ended = total.terminated | total.truncated
            new_state, new = self.env.step(key, state, action)
            new = dataclasses.replace(new, reward=total.reward + new.reward)
            return strong(_where(ended, carry, (new_state, new))), None

        (state, total), _ = jax.lax.scan(frame, strong(first), keys[1:])
        if first[1].truncated is False:  # kept: it says that `env` never truncates
            total = dataclasses.replace(total, truncated=False)
        return state, total


@pytree
class Instances:
    """One physics per environment: every leaf of `env` has a leading axis [B].

    Only `BatchedEnv` can step it, with B environments. `Instances.of` makes one.
    """

    env: Environment  # leaves [B, ...]

    @classmethod
    def of(cls, env: Environment, num_envs: int, **parameters: Array) -> Instances:
        """`num_envs` copies of `env`, with `parameters` ([num_envs, ...]) replaced."""
        fields = dataclasses.fields(env)  # type: ignore[arg-type]  # a @pytree
        names = [f.name for f in fields if not f.metadata.get("static")]
        for name, value in parameters.items():
            if name not in names:
                raise ValueError(f"parameter {name!r} must be one of {names}")
            if jnp.shape(value)[:1] != (num_envs,):
                raise ValueError(
                    f"parameter {name!r} of shape {jnp.shape(value)} must have a "
                    f"leading axis of num_envs {num_envs}"
                )

        def repeat(leaf: Array) -> Array:
            return jnp.broadcast_to(leaf, (num_envs, *jnp.shape(leaf)))

        copies = jax.tree.map(repeat, strong(env))
        return cls(dataclasses.replace(copies, **parameters))

    @property
    def spec(self) -> EnvSpec:
        return self.env.spec


def _where(condition: Array, x: PyTree, y: PyTree) -> PyTree:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), x, y)
