"""A rollout of random observations, rewards and ends, to try an algorithm on."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl_par.spaces import ACTION_MASK, Dict
from jaxrl_par.types import Algorithm, Array, EnvSpec, Key, PyTree, Rollout


def random_obs(spec: EnvSpec, key: Key, shape: tuple[int, ...]) -> PyTree:
    """Observations drawn from their space; a mask leaves at least one action."""
    draw = spec.obs_space.sample
    for _ in shape:
        draw = jax.vmap(draw)
    obs = draw(jax.random.split(key, shape))
    if isinstance(spec.obs_space, Dict) and ACTION_MASK in spec.obs_space.spaces:
        mask = obs[ACTION_MASK]
        some = jnp.arange(mask.shape[-1]) == 0
        none = ~mask.any(-1, keepdims=True)
        obs[ACTION_MASK] = mask | (none & jax.lax.broadcast_to_rank(some, mask.ndim))
    return obs


def random_rollout(
    algorithm: Algorithm, state: PyTree, spec: EnvSpec, num_envs: int, key: Key
) -> Rollout:
    """What a run would give `update`, but for the observations' law."""
    length = algorithm.rollout_length
    obs_key, noise_key, reward_key, end_key, cut_key = jax.random.split(key, 5)
    obs = random_obs(spec, obs_key, (length + 2, num_envs))
    noise = jax.vmap(lambda k: algorithm.noise(state, k, length), out_axes=1)(
        jax.random.split(noise_key, num_envs)
    )
    carry = algorithm.initial_carry(spec, num_envs)

    def step(carry: PyTree, drawn: tuple) -> tuple[PyTree, tuple]:
        carry, action, extras = algorithm.act(state, carry, *drawn, greedy=False)
        return carry, (action, extras)

    first_obs = jax.tree.map(lambda x: x[:length], obs)
    _, (action, extras) = jax.lax.scan(step, carry, (first_obs, noise), length)
    terminated = jax.random.bernoulli(end_key, 0.1, (length, num_envs))
    truncated = _at_most_one(cut_key, length, num_envs) & ~terminated
    ended = terminated | truncated
    return Rollout(
        obs=first_obs,
        action=action,
        reward=jax.random.normal(reward_key, (length, num_envs)),
        terminated=terminated,
        truncated=truncated,
        first=jnp.concatenate([jnp.ones((1, num_envs), bool), ended[:-1]]),
        extras=extras,
        last_obs=jax.tree.map(lambda x: x[length], obs),
        cut_obs=jax.tree.map(lambda x: x[length + 1 :], obs),
        initial_carry=carry,
        progress=jnp.float32(0.25),
        next_progress=jnp.float32(0.5),
    )


def _at_most_one(key: Key, length: int, num_envs: int) -> Array:
    """Flags [T, B] of which each column has one."""
    at = jax.random.randint(key, (1, num_envs), 0, length)
    return jnp.arange(length)[:, None] == at
