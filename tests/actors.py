"""What the tests of off-policy actor-critics share: an environment, a replay, NumPy."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import stories

from jaxrl_par.networks.body import Body
from jaxrl_par.replay import ring
from jaxrl_par.spaces import Box
from jaxrl_par.types import EnvSpec, StepResult, pytree

LOW, HIGH = np.array([0.0, 0.0]), np.array([5.0, 1.0])
SIDES = Box(LOW, HIGH)
SMALL = {
    "network": Body((16, 16)),
    "capacity": 2400,
    "batch_size": 32,
    "learning_starts": 64,
    "learning_rate": 5e-3,
}


@pytree
class Sides:
    """One step; the best action is (1 + 3 s, 0.5 - 0.4 s) at the observation s = +-1.

    Action: Box [2], of [0, 5] and [0, 1]. Reward: minus the squared distance, in
    shares of the two ranges; -100 out of bounds. Termination: always.
    """

    spec = EnvSpec("sides", Box(-1.0, 1.0, (1,)), SIDES)

    def reset(self, key):
        obs = jnp.where(jax.random.bernoulli(key, 0.5, (1,)), 1.0, -1.0)
        return obs, obs

    def step(self, key, state, action):
        miss = (action - best(state)) / jnp.asarray(HIGH - LOW)
        inside = ((action >= LOW) & (action <= HIGH)).all()
        reward = jnp.where(inside, -jnp.square(miss).sum(), -100.0)
        return state, StepResult(state, reward, jnp.bool_(True))


def best(obs):
    """The best action [..., 2] at observations [..., 1]."""
    side = jnp.concatenate([obs, -obs], -1)
    scale, middle = np.array([1.5, 0.4]), np.array([2.5, 0.5])
    rank = (1,) * (side.ndim - 1)
    return middle.reshape(*rank, 2) + side * scale.reshape(*rank, 2)


def remembered(num_envs=3, steps=24, gamma=0.9, n_step=2):
    """Transitions of a story with ends and cuts, and by hand what they must be.

    (spec, transitions [N, ...], rows of (reward, discount, next_obs), n_step long).
    """
    story = stories.tell(steps + 1, num_envs, 5, end=0.2)
    spec = EnvSpec("story", stories.spec().obs_space, SIDES, 5)
    units = np.random.default_rng(1).uniform(-1, 1, (steps, num_envs, 2))
    units = jnp.asarray(units, jnp.float32)
    kept = ring.empty(spec, num_envs, num_envs * steps, 4, units[0, 0])
    for start in range(0, steps, 4):
        part = stories.rollout(story, start, 4, 1)
        kept = ring.add(kept, part, units[start : start + 4])
    back, places = stories.places(kept)
    flat = ring.Place(*(x.reshape(-1) for x in places))
    rows = [
        stories.n_step(story, env, steps - b, n_step, gamma, steps)
        for env in range(num_envs)
        for b in back
    ]
    assert {story.terminated[:steps].any(), story.truncated[:steps].any()} == {True}
    return spec, ring.transitions(kept, flat, n_step, gamma), rows


def mlp(params, *inputs):
    """The outputs [N, D] of a network of two hidden layers, in doubles."""
    params = jax.tree.map(lambda x: np.asarray(x, np.float64), params["params"])
    x = np.concatenate(inputs, -1)
    for name in ("Dense_0", "Dense_1"):
        layer = params["layers"][name]
        x = np.maximum(x @ layer["kernel"] + layer["bias"], 0)
    return x @ params["head"]["kernel"].T + params["head"]["bias"]


def least(critics, obs, unit):
    """The least value [N] of two critics' values."""
    each = [jax.tree.map(lambda x, i=i: x[i], critics) for i in range(2)]
    return np.minimum(*(mlp(params, obs, unit)[:, 0] for params in each))


def with_outputs(actor, bias):
    """The actor's parameters, such that its outputs are `bias` whatever it sees."""
    head = {"kernel": jnp.zeros_like(actor["params"]["head"]["kernel"]), "bias": bias}
    return {"params": actor["params"] | {"head": head}}


def replaced(learner, **parts):
    """A learner with other parts of its parameters."""
    params = dataclasses.replace(learner.params, **parts)
    return dataclasses.replace(learner, params=params)
