"""DQN: its targets by hand, its counts in steps, its replay in one place."""

from __future__ import annotations

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import stories
import toys

import jaxrl_par as jp
from jaxrl_par import spaces
from jaxrl_par.algorithms import dqn
from jaxrl_par.envs.probes import MaskedAction
from jaxrl_par.networks import base
from jaxrl_par.networks.body import Body
from jaxrl_par.train.config import TrainConfig
from jaxrl_par.train.loop import Trainer
from jaxrl_par.types import EnvSpec, StepResult, pytree

SMALL = jp.DQN(
    network=Body((8,)), capacity=64, batch_size=8, learning_starts=16, train_every=4
)
# Values of four states, numbered by the observation's last entry.
TABLE = jnp.array([[1.0, 2.0, 3.0], [6.0, 5.0, 4.0], [7.0, 9.0, 8.0], [0.0, 0.0, 1.0]])


def look_up(params, obs):
    return params[obs[:, 2].astype(int)]


LOOK_UP = base.Network(lambda key: jnp.zeros((4, 3)), look_up)


def transitions_of(rows):
    """Transitions of (state, action, reward, discount, next state, weight) rows."""
    state, action, reward, discount, after, weight = map(
        jnp.array, zip(*rows, strict=True)
    )
    obs = jnp.zeros((len(rows), 3))
    steps = dqn.ring.Transitions(
        obs=obs.at[:, 2].set(state.astype(float)),
        action=action,
        reward=reward,
        discount=discount,
        next_obs=obs.at[:, 2].set(after.astype(float)),
        weight=weight,
    )
    return steps


@pytest.mark.parametrize(
    ("double", "errors"),
    # targets r + d * Q'(s', a'), with Q' = -Q: of state 1 the network's best action is
    # 0, worth -6 there; the target network's own best is 2, worth -4.
    [(True, [1 + 0.9 * -6 - 2, 3 - 7]), (False, [1 + 0.9 * -4 - 2, 3 - 7])],
)
def test_targets_by_hand(double, errors):
    algorithm = jp.DQN(network=LOOK_UP, double=double, huber_delta=None)
    state = algorithm.init(jax.random.key(0), stories.spec(), 8)
    state = dataclasses.replace(state, target_params=-TABLE)
    steps = transitions_of([(0, 1, 1.0, 0.9, 1, 1.0), (2, 0, 3.0, 0.0, 3, 0.5)])
    steps = jax.tree.map(lambda x: x[None], steps)
    batches = algorithm._with_targets(state, steps, None, ())
    batch = jax.tree.map(lambda x: x[0], batches)
    target = algorithm._target(state.spec, TABLE, batch)
    loss, (metrics, priority) = algorithm._loss(state.spec, TABLE, (batch, target))
    np.testing.assert_allclose(priority, np.abs(errors), rtol=1e-6)
    expected = (errors[0] ** 2 + 0.5 * errors[1] ** 2) / 4
    np.testing.assert_allclose(loss, expected, rtol=1e-6)
    np.testing.assert_allclose(metrics["q_value"], (2 + 7) / 2)


def test_dueling_values_are_the_state_and_the_advantages():
    """Wang et al. 2016, eq. 9: the mean over actions is the state's value."""
    spec = jp.make("CartPole-v1").spec
    network = dqn.q_network.q_network(Body((8,)), spec, 1, dueling=True)
    params = jax.tree.map(lambda x: x + 0.1, network.init(jax.random.key(0)))
    obs = jax.random.normal(jax.random.key(1), (5, 4))
    values = network.apply(params, obs, None)[..., 0]
    layers = params["params"]["layers"]["Dense_0"]
    hidden = jax.nn.relu(obs @ layers["kernel"] + layers["bias"][None])
    head = params["params"]["q_head"]
    raw = hidden @ head["kernel"].T + head["bias"][None]
    np.testing.assert_allclose(values.mean(1), raw[:, 0], rtol=1e-5)
    np.testing.assert_allclose(
        values[:, 0] - values[:, 1], raw[:, 1] - raw[:, 2], rtol=1e-4
    )


def test_noisy_layers_are_the_papers():
    """Fortunato et al. 2018, eq. 9 to 11: weights mu + sigma * f(e_in) f(e_out)."""
    spec = jp.make("CartPole-v1").spec
    network = dqn.q_network.q_network(Body(()), spec, 1, noisy=True)
    params = network.init(jax.random.key(0))
    assert network.noise_size == 4 + 2
    obs = jax.random.normal(jax.random.key(1), (3, 4))
    noise = jax.random.normal(jax.random.key(2), (3, 6))
    head = jax.tree.map(np.asarray, params["params"]["q_head"])
    shaped = np.sign(noise) * np.sqrt(np.abs(noise))
    for i in range(3):
        into, out = shaped[i, :4], shaped[i, 4:]
        kernel = head["kernel"] + 0.25 * np.outer(into, out)  # 0.5 / sqrt(4)
        expected = np.asarray(obs[i]) @ kernel + 0.25 * out
        found = network.apply(params, obs, noise)[i, :, 0]
        np.testing.assert_allclose(found, expected, rtol=1e-5)
    still = network.apply(params, obs, None)[..., 0]
    np.testing.assert_allclose(still, obs @ head["kernel"], rtol=1e-5)


def test_exploration_takes_the_share_it_should_and_no_masked_action():
    values = jnp.tile(jnp.array([[0.0, 3.0, 1.0, 2.0]]), (100_000, 1))
    noise = jax.random.uniform(jax.random.key(0), (100_000, 2))
    act = partial(dqn.epsilon_greedy.act, values, noise=noise, epsilon=0.4)
    shares = np.bincount(act(None), minlength=4) / 1e5
    np.testing.assert_allclose(shares, [0.1, 0.7, 0.1, 0.1], atol=0.01)
    mask = jnp.tile(jnp.array([[1, 0, 1, 1]]), (100_000, 1))
    shares = np.bincount(act(mask), minlength=4) / 1e5
    np.testing.assert_allclose(shares, [0.4 / 3, 0, 0.4 / 3, 0.6 + 0.4 / 3], atol=0.01)


def test_masked_actions_are_no_targets():
    env = MaskedAction()
    algorithm = dataclasses.replace(SMALL, rollout_length=4)
    run = jp.train(algorithm, env, num_envs=4, total_steps=160, eval_episodes=4)
    assert np.isfinite(run.metrics["q_value"][-1])
    assert run.evaluations[-1][1].unfinished == 0


@pytest.fixture(scope="module")
def counted():
    """10,000 steps of 4 environments, as a run that is logged."""
    algorithm = dataclasses.replace(
        SMALL,
        rollout_length=25,
        capacity=1000,
        learning_starts=1000,
        train_every=50,
        target_every=501,
        exploration_fraction=0.5,
        learning_rate=3e-4,
        anneal=True,
    )
    settings = {"num_envs": 4, "total_steps": 10_000, "eval_episodes": 0}
    return jp.train(algorithm, toys.Fate(), **settings).metrics


def test_counts_are_on_the_log(counted):
    assert counted["target_updates"].sum() == 19
    assert counted["gradient_steps"].sum() == 2 * 91  # at 1,000 and after it
    np.testing.assert_allclose(
        counted["replay_size"], np.minimum(counted["env_steps"], 1000)
    )


def test_before_the_warm_up_nothing_is_learned_and_no_loss_is_logged(counted):
    warm = counted["env_steps"] >= 1000
    assert (counted["gradient_steps"][~warm] == 0).all()
    assert np.isnan(counted["loss"][~warm]).all()
    assert np.isfinite(counted["loss"][warm]).all()


def test_epsilon_and_the_learning_rate_fall_with_the_steps(counted):
    before = (counted["env_steps"] - 100) / 10_000
    epsilon = np.maximum(1 - before / 0.5, 0) * 0.95 + 0.05
    np.testing.assert_allclose(counted["epsilon"], epsilon, rtol=1e-5)
    np.testing.assert_allclose(counted["learning_rate"], 3e-4 * (1 - before), rtol=1e-4)


def test_a_run_that_goes_on_keeps_its_schedules(tmp_path):
    """Stopped in the middle: epsilon is .05, and the first rate half of 3e-4."""
    algorithm = dataclasses.replace(
        SMALL, exploration_fraction=0.5, learning_rate=3e-4, anneal=True
    )
    settings = {"num_envs": 4, "total_steps": 400, "eval_episodes": 0}
    stop = lambda progress: jp.STOP if progress.update == 50 else None  # noqa: E731
    jp.train(
        *(algorithm, jp.make("CartPole-v1")),
        out=tmp_path / "run",
        callbacks=[stop],
        eval_every=200,
        **settings,
    )
    metrics = jp.resume(tmp_path / "run").metrics
    assert metrics["env_steps"].tolist() == list(range(4, 401, 4))
    np.testing.assert_allclose(metrics["epsilon"][50:], 0.05, rtol=1e-6)
    np.testing.assert_allclose(metrics["learning_rate"][50], 1.5e-4, rtol=1e-6)


def test_one_step():
    """A run of one step, and of none."""
    env = jp.make("CartPole-v1")
    settings = {"num_envs": 1, "eval_episodes": 0}
    run = jp.train(SMALL, env, total_steps=1, **settings)
    assert run.metrics["gradient_steps"].tolist() == [0]
    with pytest.raises(ValueError, match="total_steps 0 must be"):
        jp.train(SMALL, env, total_steps=0, **settings)


def test_a_state_can_be_donated_as_it_was_made():
    """No buffer is in it twice."""
    spec = stories.spec(7)
    rainbow = dataclasses.replace(SMALL, prioritized=True)
    state = rainbow.init(jax.random.key(0), spec, 4)
    rollout = stories.rollout(stories.tell(3, 4, 7), 0, 1, 1)
    update = jax.jit(rainbow.update, static_argnums=3, donate_argnums=0)
    new, _ = update(state, rollout, jax.random.key(1), ())
    assert state.replay.obs.is_deleted() and not new.replay.obs.is_deleted()


def test_many_minibatches_are_made_one_by_one():
    """What an update needs does not grow with the number of its gradient steps."""
    sizes = []
    for steps in (4, 2048):
        algorithm = dataclasses.replace(SMALL, batch_size=512, capacity=65_536)
        config = TrainConfig(num_envs=4 * steps, total_steps=8192, eval_episodes=0)
        trainer = Trainer(algorithm, jp.make("CartPole-v1"), config)
        trainer.compile()
        memory = trainer.executable.call.memory_analysis()
        sizes.append(memory.temp_size_in_bytes)
    assert sizes[1] < sizes[0] + 16e6  # all together are 2048 * 512 * 48 = 50e6


@pytest.mark.parametrize("train_every", [4, 40])  # batches together, or one by one
@pytest.mark.parametrize(
    ("prioritized", "on_nonfinite"), [(False, "stop"), (True, "stop"), (True, "skip")]
)
def test_the_replay_is_never_copied(prioritized, on_nonfinite, train_every):
    """A chunk needs less memory beside the state than the replay takes."""
    algorithm = dataclasses.replace(
        SMALL,
        capacity=400_000,
        prioritized=prioritized,
        rollout_length=2,
        train_every=train_every,
    )
    config = TrainConfig(
        num_envs=4, total_steps=800, eval_episodes=0, on_nonfinite=on_nonfinite, data=1
    )
    trainer = Trainer(algorithm, jp.make("CartPole-v1"), config)
    trainer.compile()
    memory = trainer.executable.call.memory_analysis()
    size = dqn.ring.size_in_bytes(trainer.state.algorithm.replay)
    assert size > 400_000 * 28  # obs 16, action, reward and end 4 each
    assert memory.temp_size_in_bytes < size / 20
    assert memory.alias_size_in_bytes > size  # the state is updated in place


@pytree
class Sick:
    """Observation: [tag of the episode, its step]. Step 5 of some pays NaN."""

    spec = EnvSpec("sick", spaces.Box(0.0, np.inf, (2,)), spaces.Discrete(3), 50)

    def reset(self, key):
        obs = jnp.stack([jax.random.uniform(key), 0.0])
        return obs, obs

    def step(self, key, state, action):
        obs = state + jnp.array([0.0, 1.0])
        faulty = (state[1] == 5) & (state[0] < 0.2)
        reward = jnp.where(faulty, jnp.nan, 1.0)
        return obs, StepResult(obs, reward, jax.random.bernoulli(key, 0.05))


@pytest.mark.filterwarnings("ignore:update .* it was skipped")
def test_a_skipped_update_leaves_no_transition_across_it():
    """Environments that were well are steps further then: also theirs are cut."""
    algorithm = dataclasses.replace(SMALL, capacity=320, rollout_length=2)
    run = jp.train(
        *(algorithm, Sick()),
        num_envs=8,
        total_steps=8 * 2 * 40,
        eval_episodes=0,
        on_nonfinite="skip",
    )
    assert 3 < run.metrics["skipped"].sum() < 20
    replay = run.state.algorithm.replay
    found = dqn.ring.transitions(replay, stories.places(replay)[1], 1, 0.9)
    step = np.asarray(found.next_obs - found.obs)
    known = (np.asarray(found.discount) > 0) & (np.asarray(found.weight) > 0)
    np.testing.assert_allclose(step[known], [[0, 1]] * known.sum(), atol=1e-6)
    assert known.mean() > 0.7


def test_bad_settings_are_refused():
    env = jp.make("CartPole-v1")
    pair = (lambda key: jnp.zeros(3), lambda params, obs: obs[:, :3])
    for fields, message in (
        ({"capacity": 1001}, r"capacity 1001 must divide by num_envs 4"),
        ({"batch_size": 0}, r"batch_size 0 must be"),
        ({"learning_starts": 0}, r"learning_starts 0 must be"),
        ({"train_every": 2.5}, r"train_every 2.5 must be"),
        ({"target_every": 0}, r"target_every 0 must be"),
        ({"tau": 0.0}, r"tau 0.0 must be"),
        ({"epsilon": 1.5}, r"epsilon 1.5 must be in \[0"),
        ({"n_step": 0}, r"n_step 0 must be"),
        ({"prioritized": 1}, r"prioritized 1 must be True or False"),
        ({"priority_exponent": -1.0}, r"priority_exponent -1.0 must be in"),
        ({"max_grad_norm": 0.0}, r"max_grad_norm 0.0 must be"),
        ({"network": pair, "dueling": True}, r"dueling True needs `network` to be a"),
        (
            {"network": pair},
            r"batch of 1, apply must return action values, .*\[1",
        ),
        ({"n_step": 17}, r"n_step 17 must be at most .* = 16"),
        ({"v_min": "x"}, r"v_min 'x' must be"),
        ({"head": "c51", "v_min": 1e8, "v_max": 1e8 + 1}, r"v_min 1.* less than v_max"),
        ({"head": "c51", "v_min": -3e38, "v_max": 3e38}, r"v_max - v_min 6e\+38 must"),
        ({"prioritized": True, "capacity": 2_040_000_000}, r"less, with priorities"),
        ({"network": Body((8,), channels=(4,))}, r"channels \(4,\) need an image"),
    ):
        algorithm = dataclasses.replace(SMALL, **fields)
        with pytest.raises(ValueError, match=message):
            jp.train(algorithm, env, num_envs=4, total_steps=8)
    with pytest.raises(ValueError, match=r"action space Box.* must be Discrete"):
        jp.train(SMALL, jp.make("Pendulum-v1"), num_envs=4, total_steps=8)


def test_a_replay_that_cannot_fit_is_refused_before_it_is_made():
    algorithm = dataclasses.replace(SMALL, capacity=2_000_000_000)
    rule = r"needs [\d,]{14} bytes, and cpu:0 has [\d,]+ free; .* algorithm.replay.obs"
    with pytest.raises(ValueError, match=rule):
        jp.train(algorithm, jp.make("CartPole-v1"), num_envs=4, total_steps=8)
