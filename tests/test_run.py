"""What a run leaves: its policy, its directory, and the same again in a new process."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys

import jaxrl_par as jp
from jaxrl_par import normalize
from jaxrl_par.envs.batched import BatchedEnv
from jaxrl_par.envs.cartpole import CartPole
from jaxrl_par.envs.probes import (
    ContinuousEcho,
    EchoEnv,
    MaskedAction,
    MultiDiscreteEcho,
)
from jaxrl_par.spaces import ACTION_MASK
from jaxrl_par.train import step
from jaxrl_par.train.describe import describe

SMALL = {"num_envs": 4, "total_steps": 32, "eval_episodes": 0}
ALGORITHM = jp.PPO(
    network=jp.MLP((8,)),
    rollout_length=8,
    num_epochs=1,
    num_minibatches=1,
    normalize_obs=True,
    normalize_reward=True,
)
OBS = np.linspace(-0.1, 0.1, 12, dtype=np.float32).reshape(3, 4)


@pytest.fixture(scope="module")
def run():
    return jp.train(ALGORITHM, jp.make("CartPole-v1"), **SMALL)


@pytest.fixture(scope="module")
def directory(run, tmp_path_factory):
    path = tmp_path_factory.mktemp("run")
    run.save(path)
    return path


def test_policy_takes_one_observation_or_a_batch(run):
    batch = run.policy(OBS)
    assert (batch.shape, batch.dtype) == ((3,), jnp.int32)
    for obs, action in zip(OBS, batch, strict=True):
        assert run.policy(obs) == action
        assert run.policy(obs.astype(np.float64)) == action
        assert run.policy(list(obs)) == action
    assert run.policy(OBS[0]).shape == ()


def test_policy_uses_the_normaliser(run):
    """The network is asked about (obs - mean) / deviation, and not about obs."""
    state = run.state.algorithm
    assert state.obs_moments.count == 32
    obs = np.asarray(jax.random.normal(jax.random.key(0), (200, 4)))
    network = ALGORITHM.network(run.env.spec)
    raw, seen = (
        network.apply(state.params, x)[0].argmax(-1)
        for x in (obs, normalize.normalize(state.obs_moments, obs))
    )
    assert (raw != seen).any()
    np.testing.assert_array_equal(run.policy(obs), seen)


def test_evaluate_repeats_and_leaves_the_statistics_alone(run):
    before = jax.tree.map(toys.host, run.state)
    one, again, other = (run.evaluate(20, seed=s) for s in (0, 0, 1))
    np.testing.assert_array_equal(one.returns, again.returns)
    assert (one.returns != other.returns).any()
    toys.assert_equal(before, run.state)
    assert one.returns.min() >= 1  # CartPole's own rewards, not the normalised ones


@pytest.mark.parametrize(("name", "value"), [("seed", 2**40), ("episodes", 10**9)])
def test_an_evaluation_that_cannot_be_made_is_refused(run, name, value):
    with pytest.raises(ValueError, match=f"{name} {value} must be"):
        run.evaluate(**{name: value})


def test_a_run_says_what_it_is_in_one_line(run):
    assert repr(run) == "<Run of PPO on CartPole-v1: 32 steps>"


def test_a_run_is_saved_to_a_fresh_place_alone(run, directory):
    with pytest.raises(ValueError, match="is not empty: it holds a run, with which"):
        run.save(directory)


def test_a_loaded_run_is_the_same(run, directory):
    loaded = jp.load(directory)
    toys.assert_equal(loaded.state, run.state)
    assert jax.tree.structure(loaded.state) == jax.tree.structure(run.state)
    assert describe(loaded.algorithm) == describe(run.algorithm)
    assert loaded.env_steps == run.env_steps == 32
    np.testing.assert_array_equal(loaded.evaluate(10).returns, run.evaluate(10).returns)
    for leaf in jax.tree.leaves(loaded.state):
        assert not jax.typeof(leaf).weak_type


def test_a_new_process_acts_the_same_to_the_bit(run, directory):
    """Normalised observations, logits and values, and actions."""
    code = f"""
import sys, json, numpy as np, jax, jaxrl_par as jp
from jaxrl_par import normalize
run = jp.load({str(directory)!r})
obs = np.array({OBS.tolist()}, np.float32)
state = run.state.algorithm
normalised = normalize.normalize(state.obs_moments, obs)
print(json.dumps([np.asarray(normalised).view("i4").tolist(),
    np.asarray(run.policy(obs)).tolist()]))
"""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    normalised, actions = json.loads(result.stdout)
    mine = normalize.normalize(run.state.algorithm.obs_moments, OBS)
    np.testing.assert_array_equal(np.asarray(mine).view("i4"), normalised)
    np.testing.assert_array_equal(run.policy(OBS), actions)


def test_steps_of_a_loaded_run_do_not_wrap(run, tmp_path):
    """2,605,056 updates of 1024 steps are 2,667,577,344."""
    state = dataclasses.replace(run.state, update=jnp.int32(2_605_056))
    algorithm = dataclasses.replace(run.algorithm, rollout_length=256)
    late = dataclasses.replace(run, state=state, algorithm=algorithm)
    late.save(tmp_path)
    assert jp.load(tmp_path).env_steps == 2_667_577_344


@pytest.mark.parametrize(
    ("env", "obs", "allowed"),
    [
        (EchoEnv(), np.zeros((5, 1)), {10, 11}),
        (MultiDiscreteEcho(), np.ones((5, 2)), {0, 1, 2}),
        (ContinuousEcho(), np.ones((5, 1)), None),
    ],
    ids=["offset", "multi-discrete", "continuous"],
)
def test_policy_answers_in_the_environments_units(env, obs, allowed):
    run = untrained(env)
    actions = np.asarray(run.policy(obs))
    assert env.spec.action_space.contains(actions)
    assert actions.shape == (5, *env.spec.action_space.shape)
    assert allowed is None or set(actions.ravel().tolist()) <= allowed


def test_policy_obeys_the_mask():
    run = untrained(MaskedAction())
    masks = np.array([[1, 0, 0, 0], [1, 0, 0, 1], [0, 1, 0, 0], [1, 1, 1, 1]], bool)
    obs = {"obs": np.zeros((4, 1)), ACTION_MASK: masks}
    actions = np.asarray(run.policy(obs))
    assert masks[np.arange(4), actions].all()
    single = run.policy({"obs": np.zeros(1), ACTION_MASK: masks[2]})
    assert single == 1


def untrained(env):
    """An untrained PPO on an environment, as a run."""
    algorithm = jp.PPO(network=jp.MLP((8,)))
    state = step.init_state(algorithm, BatchedEnv(env), 4, jax.random.key(0))
    return jp.Run(algorithm, env, {}, state, {})


def test_instances_come_back(tmp_path):
    """Each environment's physics; and the run can be evaluated."""
    gravity = jnp.linspace(1.0, 20.0, 4)
    env = jp.Instances.of(CartPole(), 4, gravity=gravity)
    run = jp.train(toys.Tally(), env, num_envs=4, total_steps=16, eval_episodes=0)
    run.save(tmp_path)
    loaded = jp.load(tmp_path, algorithm=toys.Tally())
    np.testing.assert_array_equal(loaded.env.env.gravity, gravity)
    toys.assert_equal(loaded.state, run.state)
    one, two = (r.evaluate(8).returns for r in (run, loaded))
    np.testing.assert_array_equal(one, two)


def test_what_the_user_wrote_must_be_passed(tmp_path):
    env = toys.Fate(end=0.5)
    run = jp.train(toys.Tally(), env, num_envs=4, total_steps=16, eval_episodes=0)
    run.save(tmp_path)
    with pytest.raises(
        ValueError, match=r"algorithm toys:Tally .*with the object itself"
    ):
        jp.load(tmp_path)
    with pytest.raises(ValueError, match=r"env toys:Fate .*with the object itself"):
        jp.load(tmp_path, algorithm=toys.Tally())
    loaded = jp.load(tmp_path, toys.Tally(), env)
    toys.assert_equal(loaded.state, run.state)


def test_config_is_json_and_complete(directory):
    """Every field of the algorithm, the environment and the run; devices, versions."""
    config = json.loads((directory / "config.json").read_text())
    algorithm = config["algorithm"]["fields"]
    assert set(algorithm) == {f.name for f in dataclasses.fields(jp.PPO)}
    assert algorithm["normalize_obs"] is True and algorithm["rollout_length"] == 8
    for field in dataclasses.fields(jp.TrainConfig):
        assert field.name in config
    assert config["num_envs"] == 4 and config["eval_episodes"] == 0
    assert config["env"]["fields"]["max_steps"] == 500
    assert set(config["versions"]) >= {"jax", "jaxrl_par", "python"}
    assert len(config["devices"]) == 1


def test_a_run_keeps_its_own_state(run):
    """The state is not used up by another run of the same algorithm."""
    params = jax.tree.map(toys.host, run.params)
    again = jp.train(ALGORITHM, jp.make("CartPole-v1"), **SMALL)
    toys.assert_equal(params, run.params)
    toys.assert_equal(again.state, run.state)
