"""Cliff walking against Gymnasium's, and the windy gridworld by hand."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.envs.toy_text.cliffwalking import CliffWalkingEnv

from jaxrl_par.envs import CliffWalking, WindyGridworld

UP, RIGHT, DOWN, LEFT = range(4)


def model(env):
    """The result of each action in each cell, [S, 4]."""
    cells = jnp.arange(env.spec.obs_space.n)
    step = jax.vmap(jax.vmap(env.step, (None, None, 0)), (None, 0, None))
    state, result = jax.device_get(jax.jit(step)(None, cells, jnp.arange(4)))
    np.testing.assert_array_equal(state, result.obs)
    return result


def walk(env, actions):
    """The cells of a path from the start, and whether its end is the goal."""
    result, cell, path = model(env), int(env.reset(None)[0]), []
    terminated = False
    for action in actions:
        assert not terminated
        terminated = result.terminated[cell, action]
        assert result.reward[cell, action] == -1
        cell = int(result.obs[cell, action])
        path.append(cell)
    return path, terminated


def test_cliff_walking_equals_gymnasiums():
    """Every action in every cell, and the start."""
    reference, result = CliffWalkingEnv(), model(CliffWalking())
    assert CliffWalking().reset(None)[1] == reference.reset(seed=0)[0]
    for cell in range(48):
        for action in range(4):
            reference.s = cell
            obs, reward, terminated, truncated, _ = reference.step(action)
            found = (x[cell, action] for x in (result.obs, result.reward))
            assert tuple(found) == (obs, reward)
            assert result.terminated[cell, action] == terminated
            assert not truncated
    assert reference.observation_space.n == CliffWalking().spec.obs_space.n
    assert reference.action_space.n == CliffWalking().spec.action_space.n


def test_the_cliffs_reward_is_a_leaf():
    reward = model(CliffWalking(cliff_reward=-7.0)).reward
    falls = np.argwhere(reward[:37] == -7).tolist()  # from the cells that one can be in
    assert falls == [*([cell, DOWN] for cell in range(25, 35)), [36, RIGHT]]


def test_the_best_path_through_the_wind():
    """15 steps, and none shorter: right 9 times, down 4, left 2 (example 6.5)."""
    env = WindyGridworld()
    actions = [RIGHT] * 9 + [DOWN] * 4 + [LEFT] * 2
    path, terminated = walk(env, actions)
    assert terminated
    # Rows fall by the wind of the columns that are left: 0 0 0 1 1 1 2, then the edge.
    assert path[:9] == [31, 32, 33, 24, 15, 6, 7, 8, 9]
    assert path[9:] == [19, 29, 39, 49, 48, 37]
    result, steps, reached = model(env), 0, {30}
    while 37 not in reached:
        reached = {int(cell) for at in reached for cell in result.obs[at]}
        steps += 1
    assert steps == 15


def test_each_column_has_its_wind():
    """From the bottom row, where nothing is in the way: one up, and the wind."""
    bottom = np.arange(60, 70)
    rise = (bottom - model(WindyGridworld()).obs[bottom, UP]) // 10
    assert rise.tolist() == [1, 1, 1, 2, 2, 2, 3, 3, 2, 1]


@pytest.mark.parametrize(
    ("cell", "action", "after"),
    [
        (38, LEFT, 27),  # the book: from right of the goal to the cell above it
        (0, UP, 0),
        (0, LEFT, 0),
        (69, DOWN, 69),
        (69, RIGHT, 69),
        (66, DOWN, 56),  # one down and two up are one up, at the edge too
        (16, UP, 6),
    ],
)
def test_steps_by_hand(cell, action, after):
    assert model(WindyGridworld()).obs[cell, action] == after
