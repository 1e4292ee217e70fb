"""Returns and advantages. Arrays are time-major, [T] or [T, ...].

`x_t` is at step t, `x_tp1` at its true successor. Sums stop at either end of an
episode; the value of the successor counts unless the step terminated.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl_par.types import Array


def gae(
    reward: Array,
    value: Array,
    next_value: Array,
    terminated: Array,
    truncated: Array,
    gamma: Array | float,
    lambda_: Array | float,
) -> Array:
    """Generalised advantage estimation.

    Args:
      reward: [T, ...] r_t, of the action at step t.
      value: [T, ...] V(s_t).
      next_value: [T, ...] V(s_tp1) of the true successor, also at episode ends.
      terminated: [T, ...] the action at t ended the task.
      truncated: [T, ...] the episode was cut after t.
      gamma: discount factor.
      lambda_: the lambda of the TD(lambda) mixture.

    Returns:
      Advantages [T, ...] float32; value targets are `advantages + value`.

    Schulman et al. 2016, eq. 16, with the sum cut at episode ends.
    """
    delta = td_errors(reward, value, next_value, terminated, gamma)
    return sum_td_errors(delta, terminated | truncated, gamma * lambda_)


def td_errors(
    reward: Array,
    value: Array,
    next_value: Array,
    terminated: Array,
    gamma: Array | float,
) -> Array:
    """delta_t = r_t + gamma V(s_tp1) - V(s_t), [T, ...] float32; see `gae`."""
    # Not a product with 0: what follows a termination may be anything.
    follow = jnp.where(terminated, 0.0, next_value.astype(jnp.float32))
    return reward + gamma * follow - value


def sum_td_errors(td_error: Array, ended: Array, decay: Array | float) -> Array:
    """Advantages A_t = delta_t + decay * A_tp1, [T, ...], from 0 after an end.

    `ended` [T, ...] covers both kinds of end; `decay` is gamma * lambda.
    """
    decays = decay * jnp.where(ended, 0.0, 1.0)

    def backwards(advantage: Array, step: tuple[Array, Array]) -> tuple[Array, Array]:
        delta_t, decay_t = step
        advantage = delta_t + decay_t * advantage
        return advantage, advantage

    start = jnp.zeros_like(td_error[0])
    steps = (td_error, decays)
    return jax.lax.scan(backwards, start, steps, reverse=True, unroll=8)[1]


def lambda_returns(
    reward: Array,
    next_value: Array,
    terminated: Array,
    truncated: Array,
    gamma: Array | float,
    lambda_: Array | float,
) -> Array:
    """G_t = r_t + gamma ((1 - lambda) V(s_tp1) + lambda G_tp1), [T, ...] float32.

    Where an episode ends, of either kind, and after the last step, the sum stops:
    there the bracket is V(s_tp1), or 0 after a termination. Arguments as in `gae`;
    with `next_value` the best action's value these are the targets of Q(lambda).

    Sutton and Barto 2018, eq. 12.18; Gallici et al. 2024, whose code counts a
    truncation as a termination.
    """
    ended = jnp.asarray(terminated | truncated).at[-1].set(True)
    share = jnp.where(ended, 1.0, 1.0 - lambda_)
    follow = jnp.where(terminated, 0.0, next_value.astype(jnp.float32))
    return sum_td_errors(reward + gamma * share * follow, ended, gamma * lambda_)


def n_step(reward: Array, ended: Array, gamma: Array | float) -> tuple[Array, Array]:
    """Discounted sums over the first steps of windows of n: (sums, steps summed).

    Args:
      reward: [n, ...] r_t .. r_(t+n-1).
      ended: [n, ...] that the step is the last of its episode, of either kind, or the
        last there is.
      gamma: discount factor.

    Returns:
      sums [...] float32 of gamma^i r_(t+i) up to the first end, and the number k of
      steps summed [...] int32, at least 1: the value at their end counts gamma^k.

    Sutton and Barto 2018, eq. 7.1; Mnih et al. 2016, algorithm S2.
    """
    steps = len(reward)
    total, taken = reward[0].astype(jnp.float32), jnp.ones(ended.shape[1:], jnp.int32)
    going, discount = ~ended[0], 1.0
    for i in range(1, steps):
        discount = discount * gamma
        total += jnp.where(going, discount * reward[i], 0.0)
        taken += going
        going &= ~ended[i]
    return total, taken


def discounted_returns(
    start: Array, reward: Array, ended: Array, gamma: Array | float
) -> tuple[Array, Array]:
    """Forward discounted sums, g_t = r_t + gamma * g_tm1, from 0 after an end.

    Args:
      start: [...] the sum before the first step (0 where an episode begins).
      reward, ended: [T, ...]; `ended` covers both kinds of end.

    Returns:
      (carry [...] for the next rollout, sums [T, ...]), float32.
    """

    def forwards(total: Array, step: tuple[Array, Array]) -> tuple[Array, Array]:
        reward_t, ended_t = step
        total = reward_t + gamma * total
        return jnp.where(ended_t, 0.0, total), total

    return jax.lax.scan(forwards, start.astype(jnp.float32), (reward, ended))
