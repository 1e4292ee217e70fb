"""What holds for every algorithm: the protocol, and the promise over devices."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from every import EVERY, params_of

import jaxrl_par as jp
from jaxrl_par.presets import ALGORITHMS

ENVS = 8


def test_every_algorithm_is_here():
    assert set(ALGORITHMS) <= set(EVERY)
    for name, make in ALGORITHMS.items():
        assert type(EVERY[name][0]) is type(make())


@pytest.mark.parametrize("name", EVERY)
def test_it_keeps_the_protocol(name):
    algorithm, env = EVERY[name]
    jp.check_algorithm(algorithm, jp.make(env), num_envs=ENVS)


@pytest.mark.parametrize("name", EVERY)
def test_learning_does_not_depend_on_the_number_of_devices(name):
    """Parameters after five updates with gradient steps, and what was logged."""
    algorithm, env = EVERY[name]

    def run(data):
        steps = ENVS * algorithm.rollout_length * 7
        settings = {"num_envs": ENVS, "total_steps": steps, "eval_episodes": 0}
        return jp.train(algorithm, jp.make(env), data=data, **settings)

    one, many = run(1), run(4)
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, 1e-5, 1e-5),
        params_of(one.state.algorithm),
        params_of(many.state.algorithm),
    )
    for column, values in one.metrics.items():
        found = many.metrics[column]
        np.testing.assert_allclose(found, values, 1e-3, 1e-4, err_msg=column)
    for leaf in jax.tree.leaves(params_of(many.state.algorithm)):
        copies = [np.asarray(shard.data) for shard in leaf.addressable_shards]
        assert all((copy == copies[0]).all() for copy in copies)
