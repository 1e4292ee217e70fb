"""Made-up experience for the replay's tests, and what a reader of it must find.

A story is what B environments did for N steps, as plain lists. Observations are
[environment, episode, step of the episode], so each tells where it is from.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_par import spaces
from jaxrl_par.replay import ring
from jaxrl_par.types import EnvSpec, Rollout


@dataclasses.dataclass
class Story:
    """Arrays [N, B, ...]."""

    obs: np.ndarray
    next_obs: np.ndarray  # true successors
    action: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray

    @property
    def ended(self):
        return self.terminated | self.truncated


def tell(steps, num_envs, limit=None, end=0.15, cut=0.0, seed=0):
    """A story with terminations, a time limit, and truncations at random."""
    rng = np.random.default_rng(seed)
    columns = {f.name: [] for f in dataclasses.fields(Story)}
    episode, age = np.zeros(num_envs, int), np.zeros(num_envs, int)
    env = np.arange(num_envs)
    for _ in range(steps):
        obs = np.stack([env, episode, age], -1).astype(np.float32)
        terminated = rng.random(num_envs) < end
        truncated = rng.random(num_envs) < cut
        if limit is not None:
            truncated |= age + 1 >= limit
        truncated &= ~terminated
        columns["obs"].append(obs)
        columns["next_obs"].append(obs + np.array([0, 0, 1], np.float32))
        columns["action"].append(rng.integers(0, 3, num_envs).astype(np.int32))
        columns["reward"].append(rng.normal(size=num_envs).astype(np.float32))
        columns["terminated"].append(terminated)
        columns["truncated"].append(truncated)
        age = np.where(terminated | truncated, 0, age + 1)
        episode += terminated | truncated
    return Story(**{name: np.stack(column) for name, column in columns.items()})


def rollout(story, start, length, cut_rows):
    """A part of a story as the engine would give it: a Rollout.

    `cut_rows` successors are kept of each environment's truncated steps, in order; as
    many as steps: one of each step.
    """
    part = slice(start, start + length)
    num_envs = story.reward.shape[1]
    before = story.ended[start - 1] if start else np.ones(num_envs, bool)
    cuts = np.zeros((cut_rows, num_envs, 3), np.float32)
    if cut_rows == length:
        cuts = story.next_obs[part]
    else:
        count = np.zeros(num_envs, int)
        for t in range(start, start + length):
            for b in np.flatnonzero(story.truncated[t]):
                cuts[count[b], b] = story.next_obs[t, b]
                count[b] += 1
    end = start + length
    fields = {
        "obs": story.obs[part],
        "action": story.action[part],
        "reward": story.reward[part],
        "terminated": story.terminated[part],
        "truncated": story.truncated[part],
        "first": np.concatenate([before[None], story.ended[start : end - 1]]),
        "last_obs": story.obs[end],
        "cut_obs": cuts,
        "progress": np.float32(0),
        "next_progress": np.float32(0),
    }
    arrays = {name: jnp.asarray(x) for name, x in fields.items()}
    return Rollout(**arrays, extras=(), initial_carry=())


def spec(limit=None, truncates=False):
    """Of an environment that tells such stories."""
    space = spaces.Box(0.0, np.inf, (3,))
    return EnvSpec("story", space, spaces.Discrete(3), limit, truncates=truncates)


def stored(story, capacity, length, rollouts, limit=None, truncates=False):
    """A ring after some rollouts of the story."""
    num_envs = story.reward.shape[1]
    kept = ring.empty(spec(limit, truncates), num_envs, capacity, length, jnp.int32(0))
    rows = length if truncates else 0 if limit is None else -(-length // limit)
    add = jax.jit(ring.add)
    for i in range(rollouts):
        part = rollout(story, i * length, length, rows)
        kept = add(kept, part, part.action)
    return kept


def places(kept):
    """All places in a ring with a transition, oldest first: (times back, Place)."""
    count, slots = int(kept.count[0]), kept.slots
    back = np.arange(count, 0, -1)
    slot = (int(kept.position[0]) - back) % slots
    env = np.arange(len(kept.count))
    grid = np.broadcast_arrays(env[:, None], slot[None])
    return back, ring.Place(*map(jnp.asarray, grid))


def n_step(story, env, start, steps, gamma, end):
    """The transition from (start, env), of the story up to time `end`, by hand:

    (reward, discount, next_obs).
    """
    total, t = 0.0, start
    for i in range(steps):
        t = start + i
        total += gamma**i * float(story.reward[t, env])
        if story.ended[t, env] or t == end - 1:
            break
    power = t - start + 1
    discount = 0.0 if story.terminated[t, env] else gamma**power
    return total, discount, story.next_obs[t, env]
