"""What a run's `config.json` says of its parts is enough to make them again."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl_par as jp
from jaxrl_par.envs.adapters import gymnax
from jaxrl_par.envs.wrappers import ActionRepeat, Instances
from jaxrl_par.train.describe import describe, rebuild


def again(value):
    """Through text, as a file would have it."""
    return rebuild(json.loads(json.dumps(describe(value))), "env")


def assert_same(new, old):
    assert jax.tree.structure(new) == jax.tree.structure(old)
    for a, b in zip(jax.tree.leaves(new), jax.tree.leaves(old), strict=True):
        np.testing.assert_array_equal(a, b)
        assert np.asarray(a).dtype == np.asarray(b).dtype


@pytest.mark.parametrize(
    "name, parameters",
    [
        ("CartPole-v1", {"gravity": 5.0, "max_steps": 70}),
        ("gymnax:Catch-bsuite", {"rows": 6, "columns": 4}),
        ("gymnax:Catch-bsuite", {"max_steps": 7}),
        ("gymnax:Catch-bsuite", {"max_steps": None}),
        ("gymnax:PointRobot-misc", {"goal_radius": 0.5}),
        ("Breakout-MinAtar", {}),
    ],
)
def test_environments(name, parameters):
    env = jp.make(name, **parameters)
    assert_same(again(env), env)
    assert again(env).spec == env.spec


def test_wrapped_environments():
    physics = jp.make("CartPole-v1", gravity=jnp.linspace(5.0, 15.0, 3))
    assert_same(again(Instances(physics)), Instances(physics))
    repeated = ActionRepeat(jp.make("Pendulum-v1"), 2)
    assert_same(again(repeated), repeated)


def test_an_environment_of_the_users_must_be_passed_again():
    """Even where it bears the name of one that could be made."""
    made = jp.make("gymnax:Catch-bsuite")
    own = gymnax.wrap(made.env, name="Catch-bsuite")
    with pytest.raises(
        ValueError, match=r"env.* is not part of jaxrl_par: .*jaxrl_par.load"
    ):
        again(own)


@pytest.mark.parametrize(
    "policy", [jp.PPO(), jp.PPO(network=jp.CNN(channels=(8, 8)), target_kl=0.02)]
)
def test_algorithms(policy):
    assert again(policy) == policy


@pytest.mark.parametrize(
    "path",
    ["os:system", "jaxrl_par.cli.main:main", "jaxrl_par.train.loop:train",
     "jaxrl_par.networks.base:partial", "jaxrl_par:train", "jaxrl_par.envs:os"],
)  # fmt: skip
def test_nothing_but_the_parts_of_agents_and_environments_is_found(path):
    with pytest.raises((ValueError, ImportError), match=r"is not part of|No module"):
        rebuild({"path": path}, "algorithm.network")
