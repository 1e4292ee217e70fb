"""The operations of replay.py in both engines, on the same items.

An operation is `call(store, i) -> (store, results)`; `i` says what is added, drawn or
changed. Priorities are given as they are to be stored.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_par import spaces
from jaxrl_par.replay import prioritized, ring, uniform
from jaxrl_par.types import EnvSpec, Rollout

NUM_ENVS = 8
# Inputs of an operation that are made beforehand, and taken in turns.
VARIETY = 4
# Space of the observations, and the time limit.
KINDS = {
    "cartpole": (spaces.Box(-np.inf, np.inf, (4,)), 500),
    "minatar": (spaces.Box(0, 1, (10, 10, 4), np.bool_), 1000),
}
WRITES = ("add", "prioritised add", "priorities")


@dataclasses.dataclass(frozen=True)
class Setting:
    """What is timed: an operation on so many things, with a store of so many items."""

    operation: str
    kind: str
    items: int
    batch: int

    @property
    def length(self) -> int:
        """Steps of a rollout that is added."""
        return max(1, self.batch // NUM_ENVS)

    @property
    def prioritised(self) -> bool:
        return self.operation.startswith("prio")

    def rollout(self, length: int, seed: int) -> dict[str, np.ndarray]:
        """So many made-up steps [T, B, ...]; `obs` has one more."""
        rng = np.random.default_rng(seed)
        space, shape = KINDS[self.kind][0], (length, NUM_ENVS)
        obs = rng.integers(0, 256, (length + 1, NUM_ENVS, *space.shape), np.uint8)
        return {
            "obs": obs > 127 if space.dtype == np.bool_ else obs.astype(np.float32),
            "action": rng.integers(0, 3, shape, np.int32),
            "reward": rng.normal(size=shape).astype(np.float32),
            "terminated": rng.random(shape) < 0.01,
        }

    def fill(self) -> list[dict[str, np.ndarray]]:
        """Rollouts that fill a store and begin to overwrite it."""
        return 5 * [self.rollout(self.items // NUM_ENVS // 5, 0)] + [self.rollout(7, 1)]

    def variety(self, make: Callable[[int], Any]) -> Any:
        """What is made for each seed, [VARIETY, ...]."""
        made = [make(seed) for seed in range(VARIETY)]
        return jax.tree.map(lambda *x: jnp.stack(x), *made)

    def changes(self, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(environment, slot, priority), [N]; some twice."""
        rng = np.random.default_rng(seed)
        env = rng.integers(0, NUM_ENVS, self.batch, np.int32)
        slot = rng.integers(10, self.items // NUM_ENVS, self.batch, np.int32)
        return env, slot, rng.exponential(size=self.batch).astype(np.float32)


def in_turns(inputs: Any, i: Any) -> Any:
    return jax.tree.map(lambda x: x[i % VARIETY], inputs)


def key_of(i: Any) -> Any:
    return jax.random.fold_in(jax.random.key(0), i)


class Ours:
    """The store is a ring, a ring with its tree, or a tree."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        space, limit = KINDS[setting.kind]
        spec = EnvSpec(setting.kind, space, spaces.Discrete(3), limit)
        kept = ring.empty(spec, NUM_ENVS, setting.items, setting.length, jnp.int32(0))
        tree = prioritized.empty(NUM_ENVS, kept.slots, NUM_ENVS)
        put = jax.jit(self._put, donate_argnums=(0, 1))
        for part in setting.fill():
            kept, tree = put(kept, tree, self._rollout(part))
        envs, slots, priority = setting.variety(setting.changes)
        leaf = prioritized.leaf_of(tree, kept, ring.Place(envs, slots))
        self._changes = (leaf, priority)
        if setting.prioritised:
            tree = jax.jit(prioritized.write)(tree, leaf[0], priority[0])
        self._parts = setting.variety(
            lambda seed: self._rollout(setting.rollout(setting.length, seed))
        )
        stores = {"add": kept, "sample": kept, "priorities": tree}
        self.store = stores.get(setting.operation, (kept, tree))

    def add(self, store: Any, i: Any) -> Any:
        part = in_turns(self._parts, i)
        return ring.add(store, part, part.action), ()

    def sample(self, store: Any, i: Any) -> Any:
        shape = (1, self._setting.batch)
        place = uniform.draw(store, key_of(i), shape, NUM_ENVS, ())
        return store, ring.transitions(store, place, 1, 0.99)

    def prioritised_add(self, store: Any, i: Any) -> Any:
        return self._put(*store, in_turns(self._parts, i)), ()

    def prioritised_sample(self, store: Any, i: Any) -> Any:
        kept, tree = store
        draws = prioritized.draw(tree, key_of(i), (1, self._setting.batch), ())
        found = prioritized.fetch(tree, kept, draws.leaf, 1, 0.99, ())
        return store, (draws, found)

    def priorities(self, store: Any, i: Any) -> Any:
        return prioritized.write(store, *in_turns(self._changes, i)), ()

    def _put(self, kept: Any, tree: Any, part: Rollout) -> Any:
        kept = ring.add(kept, part, part.action)
        if self._setting.prioritised:
            none, length = prioritized.no_changes(0), len(part.reward)
            tree = prioritized.refresh(tree, kept, length, none, ())
        return kept, tree

    def _rollout(self, part: dict[str, np.ndarray]) -> Rollout:
        obs, ended = part["obs"], part["terminated"]
        fields = {
            **part,
            "obs": obs[:-1],
            "truncated": np.zeros_like(ended),
            "first": np.concatenate([ended[:1], ended[:-1]]),
            "last_obs": obs[-1],
            "cut_obs": obs[: -(-len(ended) // KINDS[self._setting.kind][1])],
            "progress": np.float32(0),
            "next_progress": np.float32(0),
        }
        arrays = {name: jnp.asarray(x) for name, x in fields.items()}
        return Rollout(**arrays, extras=(), initial_carry=())


class Flashbax:
    """The store is the buffer's state."""

    def __init__(self, setting: Setting) -> None:
        import flashbax

        settings = {
            "max_length": setting.items,
            "min_length": setting.batch,
            "sample_batch_size": setting.batch,
            "add_sequences": True,
            "add_batch_size": NUM_ENVS,
        }
        if setting.prioritised:
            self._buffer = flashbax.make_prioritised_flat_buffer(
                **settings, priority_exponent=1.0, device=jax.devices()[0].platform
            )
        else:
            self._buffer = flashbax.make_flat_buffer(**settings)
        example = self._rows(setting.rollout(1, 0))
        state = self._buffer.init(jax.tree.map(lambda x: x[0, 0], example))
        put = jax.jit(self._buffer.add, donate_argnums=0)
        for part in setting.fill():
            state = put(state, self._rows(part))
        envs, slots, priority = setting.variety(setting.changes)
        self._changes = (envs * (setting.items // NUM_ENVS) + slots, priority)
        if setting.prioritised:
            first = (x[0] for x in self._changes)
            state = jax.jit(self._buffer.set_priorities)(state, *first)
        self._parts = setting.variety(
            lambda seed: self._rows(setting.rollout(setting.length, seed))
        )
        self.store = state

    def add(self, store: Any, i: Any) -> Any:
        return self._buffer.add(store, in_turns(self._parts, i)), ()

    prioritised_add = add

    def sample(self, store: Any, i: Any) -> Any:
        return store, _transition(self._buffer.sample(store, key_of(i)))

    def prioritised_sample(self, store: Any, i: Any) -> Any:
        found = self._buffer.sample(store, key_of(i))
        return store, (found.indices, found.probabilities, _transition(found))

    def priorities(self, store: Any, i: Any) -> Any:
        return self._buffer.set_priorities(store, *in_turns(self._changes, i)), ()

    def _rows(self, part: dict[str, np.ndarray]) -> dict[str, Any]:
        part = {**part, "obs": part["obs"][:-1]}
        return {name: jnp.asarray(x.swapaxes(0, 1)) for name, x in part.items()}


def _transition(found: Any) -> Any:
    return found.experience.first, found.experience.second["obs"]


ENGINES = {"ours": Ours, "flashbax": Flashbax}


def operation(name: str, setting: Setting) -> tuple[Any, Callable[[Any, Any], Any]]:
    """(store, call) of engine `name`."""
    engine = ENGINES[name](setting)
    return engine.store, getattr(engine, setting.operation.replace(" ", "_"))
