"""Advantages and returns against plain loops, identities and hand-worked numbers."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_par.returns import discounted_returns, gae, sum_td_errors, td_errors

F = np.float32


def flags(*values):
    return np.array(values, bool)


def gae_loop(reward, value, next_value, terminated, truncated, gamma, lambda_):
    """Schulman et al. 2016, eq. 16, as the sum over what follows until an end."""
    advantage = np.zeros_like(reward)
    for index in np.ndindex(reward.shape):
        weight, total = 1.0, 0.0
        for t in range(index[0], reward.shape[0]):
            i = (t, *index[1:])
            follow = 0.0 if terminated[i] else next_value[i]
            total += weight * (reward[i] + gamma * follow - value[i])
            if terminated[i] or truncated[i]:
                break
            weight *= gamma * lambda_
        advantage[index] = total
    return advantage


def random_rollout(seed, length=33, num_envs=5):
    """reward, value, next_value, terminated, truncated; some ends of each kind."""
    rng = np.random.default_rng(seed)
    reward, value, next_value = rng.normal(size=(3, length, num_envs))
    end = rng.integers(0, 8, size=(length, num_envs))
    return reward, value, next_value, end == 0, end == 1


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("gamma", "lambda_"), [(0.9, 0.95), (1.0, 1.0), (0.5, 0.0)])
def test_gae_is_the_sum_of_the_paper(seed, gamma, lambda_):
    rollout = random_rollout(seed)
    expected = gae_loop(*rollout, gamma, lambda_)
    found = jax.jit(gae)(*map(jnp.asarray, rollout), gamma, lambda_)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_lambda_1_is_monte_carlo_and_lambda_0_the_td_error():
    reward, value, next_value, terminated, truncated = random_rollout(1)
    length = len(reward)
    inside = ~(terminated | truncated)[:-1]  # there the successor is the next state
    next_value[:-1] = np.where(inside, value[1:], next_value[:-1])
    # Discounted sum of rewards up to the end, and from there the successor's value.
    monte_carlo = np.zeros_like(reward)
    for env in range(reward.shape[1]):
        for t in range(length):
            end = t
            while end < length - 1 and not (
                terminated[end, env] or truncated[end, env]
            ):
                end += 1
            sums = sum(0.9 ** (i - t) * reward[i, env] for i in range(t, end + 1))
            tail = 0.0 if terminated[end, env] else next_value[end, env]
            monte_carlo[t, env] = sums + 0.9 ** (end + 1 - t) * tail
    found = gae(reward, value, next_value, terminated, truncated, 0.9, 1.0)
    np.testing.assert_allclose(found, monte_carlo - value, rtol=1e-5, atol=1e-5)
    td_error = reward + 0.9 * np.where(terminated, 0, next_value) - value
    found = gae(reward, value, next_value, terminated, truncated, 0.9, 0.0)
    np.testing.assert_allclose(found, td_error, rtol=1e-5, atol=1e-5)


def test_gae_is_the_sum_of_td_errors():
    """And an error of 0 carries what follows it to what comes before."""
    *rollout, truncated = random_rollout(4)
    terminated, ended = rollout[3], rollout[3] | truncated
    delta = td_errors(*rollout, 0.9)
    expected = rollout[0] + 0.9 * np.where(terminated, 0, rollout[2]) - rollout[1]
    np.testing.assert_allclose(delta, expected, rtol=1e-5, atol=1e-5)
    found = gae(*rollout, truncated, 0.9, 0.5)
    np.testing.assert_array_equal(found, sum_td_errors(delta, ended, 0.9 * 0.5))
    summed = sum_td_errors(jnp.array([0.0, 0.0, 8.0]), flags(0, 0, 0), 0.5)
    np.testing.assert_array_equal(summed, [2, 4, 8])


def test_a_batch_equals_each_trajectory_alone():
    rollout = random_rollout(2)
    batch = gae(*rollout, 0.99, 0.9)
    for env in range(batch.shape[1]):
        alone = gae(*(x[:, env] for x in rollout), 0.99, 0.9)
        np.testing.assert_allclose(batch[:, env], alone, rtol=1e-6, atol=1e-6)


def test_pieces_between_ends_equal_the_whole():
    reward, value, next_value, terminated, truncated = (
        x[:, 0] for x in random_rollout(3)
    )
    whole = gae(reward, value, next_value, terminated, truncated, 0.99, 0.9)
    ends = [0, *(np.flatnonzero(terminated | truncated) + 1), len(reward)]
    pieces = [
        gae(
            reward[a:b],
            value[a:b],
            next_value[a:b],
            terminated[a:b],
            truncated[a:b],
            0.99,
            0.9,
        )
        for a, b in itertools.pairwise(ends)
        if a < b
    ]
    assert len(pieces) > 3
    np.testing.assert_allclose(whole, np.concatenate(pieces), rtol=1e-6, atol=1e-6)


def test_a_truncated_step_bootstraps_from_its_own_successor():
    # gamma .9, lambda .95; step 1 is cut, its true successor has value 2.
    # A_2 = 3 + .9 * .7 - .2                         = 3.43
    # A_1 = 2 + .9 * 2 - 1                           = 2.8   (the sum stops here)
    # A_0 = 1 + .9 * 1 - .5 + .9 * .95 * 2.8 = 1.4 + 2.394 = 3.794
    value = np.array([0.5, 1.0, 0.2], F)
    advantage = gae(
        reward=np.array([1, 2, 3], F),
        value=value,
        next_value=np.array([1.0, 2.0, 0.7], F),
        terminated=flags(0, 0, 0),
        truncated=flags(0, 1, 0),
        gamma=0.9,
        lambda_=0.95,
    )
    np.testing.assert_allclose(advantage, [3.794, 2.8, 3.43], rtol=1e-5)
    np.testing.assert_allclose(advantage + value, [4.294, 3.8, 3.63], rtol=1e-5)


def test_flags_belong_to_the_action_of_their_step():
    # The action at step 1 terminates; gamma .99, lambda .95.
    # A_2 = 1 + .99 * 100 - 100           = 0
    # A_1 = 1 - 5                         = -4
    # A_0 = 1 + .99 * 5 - 5 - .9405 * 4   = .95 - 3.762 = -2.812
    advantage = gae(
        reward=np.ones(3, F),
        value=np.array([5, 5, 100], F),
        next_value=np.array([5, 100, 100], F),
        terminated=flags(0, 1, 0),
        truncated=flags(0, 0, 0),
        gamma=0.99,
        lambda_=0.95,
    )
    np.testing.assert_allclose(advantage, [-2.812, -4.0, 0.0], rtol=1e-5, atol=1e-5)


def test_the_first_reward_and_the_last_step_count():
    # Four rewards of 1, values 0, nothing ends: sums to the right, 4 3 2 1.
    zeros, no = np.zeros(4, F), flags(0, 0, 0, 0)
    reward = np.ones(4, F)
    advantage = gae(reward, zeros, zeros, no, no, 1.0, 1.0)
    np.testing.assert_array_equal(advantage, [4, 3, 2, 1])
    reward[0] = 11
    np.testing.assert_array_equal(
        gae(reward, zeros, zeros, no, no, 1.0, 1.0), [14, 3, 2, 1]
    )


@pytest.mark.parametrize("rubbish", [np.nan, np.inf, 1e30])
def test_what_follows_a_termination_may_be_anything(rubbish):
    advantage = gae(
        reward=np.ones(2, F),
        value=np.zeros(2, F),
        next_value=np.array([rubbish, 3.0], F),
        terminated=flags(1, 0),
        truncated=flags(0, 0),
        gamma=0.5,
        lambda_=0.5,
    )
    np.testing.assert_array_equal(advantage, [1.0, 2.5])  # 1;  1 + .5 * 3


def test_sums_are_float32_whatever_comes_in():
    # In bfloat16 a sum of ones sticks at 256.
    reward = jnp.ones(300, jnp.bfloat16)
    zeros, no = jnp.zeros(300, jnp.bfloat16), jnp.zeros(300, bool)
    advantage = gae(reward, zeros, zeros, no, no, 1.0, 1.0)
    assert advantage.dtype == jnp.float32
    assert advantage[0] == 300
    carry, sums = discounted_returns(jnp.bfloat16(0), reward, no, 1.0)
    assert (carry.dtype, sums.dtype) == (jnp.float32, jnp.float32)
    assert (carry, sums[-1]) == (300, 300)


def test_discounted_returns_restart_at_either_end():
    # r = 1, gamma .9, cut after step 3: 1, 1 + .9, 1 + .9 * 1.9, 1, 1.9.
    ended = flags(0, 0, 1, 0, 0)
    carry, sums = discounted_returns(jnp.zeros(()), jnp.ones(5), ended, 0.9)
    np.testing.assert_allclose(sums, [1, 1.9, 2.71, 1, 1.9], rtol=1e-6)
    np.testing.assert_allclose(carry, 1.9, rtol=1e-6)
    np.testing.assert_allclose(sums.var(), 0.4160, atol=5e-5)


def test_discounted_returns_go_on_over_rollouts():
    rng = np.random.default_rng(0)
    reward = rng.normal(size=(20, 3)).astype(F)
    ended = rng.random((20, 3)) < 0.2
    expected, total = [], np.zeros(3)
    for reward_t, ended_t in zip(reward, ended, strict=True):
        total = reward_t + 0.9 * total
        expected.append(total)
        total = np.where(ended_t, 0, total)
    carry = jnp.zeros(3)
    found = []
    for part in (slice(0, 7), slice(7, 20)):
        carry, sums = discounted_returns(carry, reward[part], ended[part], 0.9)
        found.append(sums)
    np.testing.assert_allclose(np.concatenate(found), expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(carry, total, rtol=1e-5, atol=1e-5)
