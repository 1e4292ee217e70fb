"""Lambda-returns against the mixture of n-step returns, identities, small numbers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_returns import random_rollout

from jaxrl_par.returns import gae, lambda_returns

F = np.float32


def mixture(reward, next_value, terminated, truncated, gamma, lambda_):
    """Sutton and Barto 2018, eq. 12.3: n-step returns, the longest takes the rest."""
    found = np.zeros_like(reward)
    length, num_envs = reward.shape
    for env in range(num_envs):
        for t in range(length):
            total, summed, weight = 0.0, 0.0, 1.0
            for i in range(t, length):
                summed += gamma ** (i - t) * reward[i, env]
                tail = 0.0 if terminated[i, env] else next_value[i, env]
                n_step = summed + gamma ** (i + 1 - t) * tail
                if terminated[i, env] or truncated[i, env] or i == length - 1:
                    total += weight * n_step
                    break
                total += weight * (1 - lambda_) * n_step
                weight *= lambda_
            found[t, env] = total
    return found


@pytest.mark.parametrize(
    ("gamma", "lambda_"), [(0.9, 0.65), (1.0, 0.3), (0.9, 0.0), (0.9, 1.0)]
)
def test_they_are_the_mixture_of_n_step_returns(gamma, lambda_):
    """With lambda 0 the one-step returns, with 1 the longest ones."""
    reward, _, *rest = random_rollout(0)
    found = jax.jit(lambda_returns)(reward, *rest, gamma, lambda_)
    assert found.dtype == jnp.float32
    expected = mixture(reward, *rest, gamma, lambda_)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    if lambda_ == 0:
        one_step = reward + gamma * np.where(rest[1], 0, rest[0])
        np.testing.assert_allclose(found, one_step, rtol=1e-5, atol=1e-5)


def test_without_ends_they_are_advantages_plus_values():
    reward, value, next_value, *_ = random_rollout(1)
    next_value[:-1] = value[1:]
    no = np.zeros(reward.shape, bool)
    advantage = gae(reward, value, next_value, no, no, 0.9, 0.7)
    found = lambda_returns(reward, next_value, no, no, 0.9, 0.7)
    np.testing.assert_allclose(found, advantage + value, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rubbish", [100.0, np.nan, np.inf])
def test_a_termination_has_no_successor_and_a_truncation_its_own(rubbish):
    # gamma .5, lambda .5. Step 1 is cut, its successor is worth 8; step 3 terminates.
    # G_4 = 5 + .5 * 6                        = 8     (the last step)
    # G_3 = 4                                 = 4     (terminated)
    # G_2 = 3 + .5 * (.5 * 2 + .5 * 4)        = 4.5
    # G_1 = 2 + .5 * 8                        = 6     (cut)
    # G_0 = 1 + .5 * (.5 * 4 + .5 * 6)        = 3.5
    found = lambda_returns(
        reward=np.array([1, 2, 3, 4, 5], F),
        next_value=np.array([4, 8, 2, rubbish, 6], F),
        terminated=np.array([0, 0, 0, 1, 0], bool),
        truncated=np.array([0, 1, 0, 0, 0], bool),
        gamma=0.5,
        lambda_=0.5,
    )
    np.testing.assert_array_equal(found, [3.5, 6, 4.5, 4, 8])
