"""What holds for every algorithm: the protocol, devices, what is taken of a run."""

from __future__ import annotations

import functools

import jax
import numpy as np
import pytest
import toys
from every import EVERY

import jaxrl_par as jp
from jaxrl_par.presets import ALGORITHMS

ENVS = 8


@functools.cache
def trained(name, data, out=None):
    """Seven updates: (run, what a callback took of it)."""
    algorithm, env = EVERY[name]
    taken = []
    run = jp.train(
        *(algorithm, jp.make(env)),
        num_envs=ENVS,
        total_steps=ENVS * algorithm.rollout_length * 7,
        eval_episodes=0,
        data=data,
        out=out,
        callbacks=[lambda progress: taken.append(progress.params)],
    )
    return run, taken[-1]


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


def test_every_algorithm_is_here():
    assert set(ALGORITHMS) <= set(EVERY)
    for name, make in ALGORITHMS.items():
        assert type(EVERY[name][0]) is type(make())


@pytest.mark.parametrize("name", EVERY)
def test_it_keeps_the_protocol(name):
    algorithm, env = EVERY[name]
    jp.check_algorithm(algorithm, jp.make(env), num_envs=ENVS)


@pytest.mark.parametrize("name", EVERY)
def test_a_run_gives_its_parameters_policy_and_metrics(name, directories):
    """In a callback, at the end, and loaded from its directory."""
    run, taken = trained(name, 1, directories / name)
    toys.assert_equal(taken, run.params)
    loaded = jp.load(directories / name)
    toys.assert_equal(loaded.params, run.params)
    assert loaded.metrics.keys() == run.metrics.keys()
    obs = toys.host(run.state.obs)
    actions = np.asarray(run.policy(obs))
    np.testing.assert_array_equal(actions, loaded.policy(obs))
    assert all(run.env.spec.action_space.contains(action) for action in actions)


@pytest.mark.parametrize("name", EVERY)
def test_learning_does_not_depend_on_the_number_of_devices(name, directories):
    """Parameters after five updates with gradient steps, and what was logged."""
    one, many = trained(name, 1, directories / name)[0], trained(name, 4)[0]
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, 1e-5, 1e-5),
        *(one.params, many.params),
    )
    for column, values in one.metrics.items():
        found = many.metrics[column]
        np.testing.assert_allclose(found, values, 1e-3, 1e-4, err_msg=column)
    for leaf in jax.tree.leaves(many.params):
        copies = [np.asarray(shard.data) for shard in leaf.addressable_shards]
        assert all((copy == copies[0]).all() for copy in copies)
