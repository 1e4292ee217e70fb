"""Tables of action values: the textbook's loops, collisions, devices, learning.

The reference loops are those of Sutton & Barto 2018, sections 6.4 to 6.6, in NumPy.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys

from jaxrl_par import check_algorithm, preset, train
from jaxrl_par.algorithms import tabular
from jaxrl_par.algorithms.q_learning import QLearning
from jaxrl_par.algorithms.sarsa import SARSA
from jaxrl_par.envs import CartPole, CliffWalking, Pendulum, WindyGridworld, make
from jaxrl_par.spaces import Discrete, MultiDiscrete
from jaxrl_par.types import EnvSpec, Rollout, StepResult, pytree, static

KINDS = {
    "q": QLearning,
    "sarsa": SARSA,
    "expected": lambda **k: SARSA(expected=True, **k),
}
RATE, GAMMA, EPSILON = 0.3, 0.9, 0.2


@pytree
class TapedState:
    learned: tabular.TabularState
    step: jax.Array

    @property
    def params(self):
        return self.learned.params


@pytree
class Taped:
    """A method whose random numbers are known: of step k, row k of `tape` [N, 2]."""

    inner: Any
    tape: jax.Array

    sharded = ()
    rollout_length = 1

    def init(self, key, spec, num_envs):
        return TapedState(self.inner.init(key, spec, num_envs), jnp.int32(0))

    def initial_carry(self, spec, num_envs):
        return ()

    def noise(self, state, key, length):
        return self.tape[state.step][None]

    def act(self, state, carry, obs, noise, greedy):
        return self.inner.act(state.learned, carry, obs, noise, greedy)

    def update(self, state, rollout, key, axes):
        learned, metrics = self.inner.update(state.learned, rollout, key, axes)
        return TapedState(learned, state.step + 1), metrics


class Book:
    """One environment and its table, as the textbook has them."""

    def __init__(self, env, tape):
        states, actions = np.arange(env.spec.obs_space.n), np.arange(4)
        step = jax.vmap(jax.vmap(env.step, (None, None, 0)), (None, 0, None))
        _, self.model = jax.device_get(step(None, states, actions))
        self.start, self.limit = int(env.reset(None)[0]), env.max_steps
        self.tape, self.ends = tape, {"terminated": 0, "cut": 0}
        self.table = np.zeros((len(states), 4), np.float32)
        self.elapsed = 0

    def choose(self, state, t):
        explore, which = self.tape[t]
        return int(which * 4) if explore < EPSILON else int(self.table[state].argmax())

    def take(self, state, action):
        at = state, action
        self.elapsed += 1
        terminated = self.model.terminated[at]
        cut = not terminated and self.elapsed == self.limit
        self.ends["terminated"] += terminated
        self.ends["cut"] += cut
        self.elapsed = 0 if terminated or cut else self.elapsed
        return self.model.reward[at], self.model.obs[at], terminated, cut

    def move(self, state, action, reward, following):
        error = reward + GAMMA * following - self.table[state, action]
        self.table[state, action] += np.float32(RATE * error)

    def mean(self, state):
        """Under the epsilon-greedy policy."""
        policy = np.full(4, EPSILON / 4)
        policy[self.table[state].argmax()] += 1 - EPSILON
        return policy @ self.table[state]

    def one_step(self, value):
        """Q-learning (6.5) and expected SARSA (6.6), by the successor's `value`."""
        state = self.start
        for t in range(len(self.tape)):
            action = self.choose(state, t)
            reward, after, terminated, cut = self.take(state, action)
            self.move(state, action, reward, 0 if terminated else value(after))
            state = self.start if terminated or cut else after

    def sarsa(self):
        """Section 6.4; where an episode is cut, the mean over its next actions."""
        state, action = self.start, self.choose(self.start, 0)
        for t in range(1, len(self.tape) + 1):
            reward, after, terminated, cut = self.take(state, action)
            if terminated or cut:
                following = 0 if terminated else self.mean(after)
                self.move(state, action, reward, following)
                after = self.start
            if t == len(self.tape):
                return
            next_action = self.choose(after, t)
            if not (terminated or cut):
                self.move(state, action, reward, self.table[after, next_action])
            state, action = after, next_action


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "env", [CliffWalking(max_steps=100), WindyGridworld(max_steps=100)]
)
def test_one_environment_is_the_textbook(kind, env):
    """3,000 steps on the same random numbers, with ends of both kinds."""
    tape = np.random.default_rng(0).random((3000, 2), np.float32)
    book = Book(env, tape)
    if kind == "sarsa":
        book.sarsa()
    else:
        book.one_step({"q": lambda s: book.table[s].max(), "expected": book.mean}[kind])
    assert min(book.ends.values()) > 5
    rates = {"learning_rate": RATE, "gamma": GAMMA, "epsilon": EPSILON}
    taped = Taped(KINDS[kind](**rates), jnp.asarray(tape))
    state, _ = toys.trained(taped, env, len(tape), 1)
    np.testing.assert_allclose(state.algorithm.params, book.table, rtol=1e-6, atol=1e-6)
    assert state.env.elapsed == book.elapsed


def rollout(obs, action, reward, **parts):
    """Lists [T][B]; by default no episode ends, and none began at the first step."""
    shape = np.shape(reward)
    flags = dict.fromkeys(("terminated", "truncated", "first"), np.zeros(shape, bool))
    given = {"last_obs": np.zeros(shape[1], np.int32), "cut_obs": obs, **flags, **parts}
    given = {name: jnp.asarray(x) for name, x in given.items()}
    return Rollout(
        obs=jnp.array(obs),
        action=jnp.array(action),
        reward=jnp.array(reward, jnp.float32),
        extras={},
        initial_carry=(),
        progress=jnp.float32(0),
        next_progress=jnp.float32(1),
        **given,
    )


def learned(algorithm, steps, table, **fields):
    spec = EnvSpec("test", Discrete(len(table)), Discrete(len(table[0])))
    state = algorithm.init(jax.random.key(0), spec, steps.reward.shape[1])
    state = dataclasses.replace(state, params=jnp.array(table, jnp.float32), **fields)
    return updated(algorithm, state, steps)


@toys.quick_jit
def updated(algorithm, state, steps):
    return algorithm.update(state, steps, jax.random.key(1), ())


def test_visitors_of_one_entry_move_it_as_successive_updates_to_their_mean():
    """Four environments, rate 1/2. At (0, 0), worth 1, are three: targets 2, 4, 9.

    Their mean error is 4: three half steps towards 5 are 1 + 4 (1 - 1/8) = 4.5. The
    one at (1, 1), worth 2, has target 4: 2 + 2/2 = 3. The other entries stay.
    """
    yes = np.ones((1, 4), bool)
    entries = [[0, 0, 1, 0]]
    steps = rollout(entries, entries, [[2, 4, 4, 9]], terminated=yes, first=yes)
    for algorithm in (QLearning(), SARSA(), SARSA(expected=True)):
        state, metrics = learned(algorithm, steps, [[1, 7], [8, 2]])
        np.testing.assert_allclose(state.params, [[4.5, 7], [8, 3]], rtol=1e-6)
        assert metrics["td_error"] == 3.5  # (1 + 3 + 2 + 8) / 4


@pytest.mark.parametrize("rate", [1e-6, 0.1, 1.0])
def test_thousands_of_visitors_do_not_overshoot(rate):
    """4,000 with targets 0 and 2 by turns, mean 1: 1 - (1 - rate)^4000 from 0."""
    ends = np.ones((1, 4000), bool)
    zeros = np.zeros((1, 4000), np.int32)
    steps = rollout(zeros, zeros, [[0, 2] * 2000], terminated=ends)
    state, _ = learned(QLearning(learning_rate=rate), steps, [[0, 5]])
    exact = -np.expm1(4000 * np.log1p(-rate)) if rate < 1 else 1
    np.testing.assert_allclose(state.params, [[exact, 5]], rtol=1e-5)


def test_later_steps_see_what_earlier_ones_wrote():
    """Rate 1/2, gamma 1, from 2 to 1, and back to 2, where the episode is cut.

    Q(2, 0) = (1 + max Q(1)) / 2 = (1 + 4) / 2 = 2.5, and that is max Q(2) when
    Q(1, 1) = (4 + 1 + 2.5) / 2 = 3.75. State 3 begins another episode: of no effect.
    """
    table = [[9, 9], [2, 4], [0, 0], [6, 2]]
    cut = {"truncated": [[False], [True]], "cut_obs": [[1], [2]], "last_obs": [3]}
    steps = rollout([[2], [1]], [[0], [1]], [[1], [1]], **cut)
    half = jnp.float32(0.5)  # epsilon: the mean of Q(s) is (their mean + max Q(s)) / 2
    state, _ = learned(QLearning(), steps, table)
    np.testing.assert_allclose(state.params, [[9, 9], [2, 3.75], [2.5, 0], [6, 2]])
    # The next action is 1, of value 4; at the cut the mean is (1.25 + 2.5) / 2.
    state, _ = learned(SARSA(), steps, table, epsilon=half)
    np.testing.assert_allclose(state.params, [[9, 9], [2, 3.4375], [2.5, 0], [6, 2]])
    # Expected: (3 + 4) / 2 after state 2, and Q(2, 0) = 2.25; (1.125 + 2.25) / 2.
    state, _ = learned(SARSA(expected=True), steps, table, epsilon=half)
    np.testing.assert_allclose(state.params, [[9, 9], [2, 3.34375], [2.25, 0], [6, 2]])


@pytest.mark.parametrize(
    ("obs", "first", "value"), [(1, False, 4.0), (2, False, 0.0), (1, True, 0.0)]
)
def test_a_pending_step_is_completed_by_the_action_that_follows(obs, first, value):
    """From state 0 by action 1 to state 1, reward 2; then action 0, of value 6.

    Half of 2 + 6; nothing where another state, or a new episode, came next. Then an
    episode begins, whose first step is what is pending.
    """
    pending = [jnp.array([x]) for x in (0, 1, 2.0, 1, False)]
    pending = tabular.Transitions(*pending)
    steps = rollout([[obs], [0]], [[0], [1]], [[5], [7]], first=[[first], [True]])
    state, metrics = learned(SARSA(), steps, [[0, 0], [6, 0], [6, 0]], pending=pending)
    np.testing.assert_allclose(state.params, [[0, value], [6, 0], [6, 0]])
    assert metrics["td_error"] == 2 * value
    kept = [leaf.item() for leaf in jax.tree.leaves(state.pending)]
    assert kept == [0, 1, 7, 0, False]


@pytree
class Match:
    """One step, reward 1 if the action, from 5 on, is the first of two numbers.

    Observation: the numbers, below (2, 3); or `coded`: 10 + 3 times the first + the
    second.
    """

    coded: bool = static(default=False)

    @property
    def spec(self):
        obs_space = Discrete(6, start=10) if self.coded else MultiDiscrete((2, 3))
        return EnvSpec("match", obs_space, Discrete(2, start=5))

    def reset(self, key):
        obs = MultiDiscrete((2, 3)).sample(key)
        return obs, 10 + 3 * obs[0] + obs[1] if self.coded else obs

    def step(self, key, state, action):
        reward = jnp.float32(action - 5 == state[0])
        return state, StepResult(self.reset(key)[1], reward, jnp.bool_(True))


@pytest.mark.parametrize("coded", [False, True])
def test_spaces_are_numbered_from_their_start(coded):
    algorithm = QLearning(learning_rate=1.0, epsilon=1.0)
    state, _ = toys.trained(algorithm, Match(coded), 20, 16)
    state = state.algorithm
    np.testing.assert_array_equal(state.params, [[1, 0]] * 3 + [[0, 1]] * 3)
    obs = np.arange(10, 16) if coded else np.stack(np.divmod(np.arange(6), 3), -1)
    _, action, _ = algorithm.act(state, (), jnp.asarray(obs), None, greedy=True)
    np.testing.assert_array_equal(action, [5, 5, 5, 6, 6, 6])


@pytest.mark.parametrize(
    ("kind", "env"), [("q", Match()), ("sarsa", CliffWalking()), ("expected", Match())]
)
def test_it_conforms(kind, env):
    check_algorithm(KINDS[kind](rollout_length=3, final_epsilon=0.0), env)


def states_of_run(data):
    """After updates 1 and 5, of 16 environments on so many devices."""
    states = {}

    def keep(progress):
        states[progress.update] = jax.device_get(progress.state)

    steps = 16 * 8
    train(
        SARSA(rollout_length=8, epsilon=0.5),
        WindyGridworld(max_steps=11),
        num_envs=16,
        total_steps=5 * steps,
        data=data,
        eval_every=steps,
        eval_episodes=0,
        callbacks=[keep],
    )
    return states[1], states[5]


def test_devices_are_of_no_effect():
    """One, two, four, eight: the first rollout to the bit, the table within 1e-5."""
    first, fifth = states_of_run(1)
    assert len(np.unique(first.obs)) == 5
    for data in (2, 4, 8):
        one, five = states_of_run(data)
        for name in ("env", "obs", "episode_return"):
            toys.assert_equal(getattr(one, name), getattr(first, name))
        toys.assert_equal(one.algorithm.pending, first.algorithm.pending)
        np.testing.assert_allclose(
            five.algorithm.params, fifth.algorithm.params, rtol=1e-5, atol=1e-5
        )


def test_epsilon_falls_linearly_and_stays():
    """Five updates: over the first tenth, over half (0.5, 0.32, 0.14, 0.05), never."""
    rates = {"epsilon": 0.5, "final_epsilon": 0.05}
    cases = [
        (rates | {"exploration_fraction": 0.1}, [0.5, 0.05, 0.05, 0.05, 0.05]),
        (rates | {"exploration_fraction": 0.5}, [0.5, 0.32, 0.14, 0.05, 0.05]),
        (rates | {"exploration_fraction": 0.0}, [0.05] * 5),
        ({"epsilon": 0.5, "exploration_fraction": 0.5}, [0.5] * 5),
    ]
    for fields, expected in cases:
        _, metrics = toys.trained(QLearning(**fields), CliffWalking(), 5, 4)
        np.testing.assert_allclose(metrics["epsilon"], expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("kind", "name", "low", "high"),
    [
        ("q_learning", "CliffWalking-v0", -13, -13),
        ("sarsa", "CliffWalking-v0", -17, -15),
        ("q_learning", "WindyGridworld-v0", -15, -15),
    ],
)
def test_presets_find_the_best_path_or_the_safe_one(kind, name, low, high):
    """Seeds 0 to 4 each: -13; -15; -15. 1,024 environments, half a second."""
    found = preset(kind, name)
    run = train(found.algorithm, make(name), **found.settings, eval_episodes=4)
    returns = run.evaluation.returns
    assert len(returns) == 4
    assert low <= returns.min() == returns.max() <= high


@pytest.mark.parametrize(
    ("fields", "env", "message"),
    [
        ({"learning_rate": 0.0}, CliffWalking(), "learning_rate 0.0 must be .*above 0"),
        ({"learning_rate": 1.5}, CliffWalking(), r"learning_rate 1.5 must be in \[0"),
        ({"gamma": 1.1}, CliffWalking(), r"gamma 1.1 must be in \[0.0, 1.0\]"),
        ({"epsilon": -0.1}, CliffWalking(), r"epsilon -0.1 must be in"),
        ({"final_epsilon": 2.0}, CliffWalking(), r"final_epsilon 2.0 must be in"),
        ({"exploration_fraction": 2}, CliffWalking(), "exploration_fraction 2 must be"),
        ({"initial_value": np.inf}, CliffWalking(), "initial_value inf must be a fini"),
        ({"gamma": [0.9, 0.8]}, CliffWalking(), r"gamma \[0.9, 0.8\] must be one num"),
        ({"rollout_length": 0}, CliffWalking(), "rollout_length 0 must be a whole"),
        ({}, CartPole(), r"observation space Box.* must be Discrete or MultiDiscrete"),
        ({}, Pendulum(), r"space Box.* must be Discrete"),
    ],
)
def test_what_cannot_work_is_refused(fields, env, message):
    for algorithm in (QLearning(**fields), SARSA(**fields)):
        with pytest.raises(ValueError, match=message):
            algorithm.validate(env.spec, 4)


def test_spaces_that_make_no_table_are_refused():
    cells = Discrete(5)
    with pytest.raises(ValueError, match=r"action space MultiDiscrete.* must be Disc"):
        QLearning().validate(EnvSpec("test", cells, MultiDiscrete((2, 2))), 4)
    huge = EnvSpec("test", MultiDiscrete((2**16, 2**14)), Discrete(2))
    with pytest.raises(ValueError, match=r"less than 2\^31 .* it makes 2,147,483,648"):
        SARSA().validate(huge, 4)
    with pytest.raises(ValueError, match="expected 1 must be True or False"):
        SARSA(expected=1).validate(EnvSpec("test", cells, cells), 4)
