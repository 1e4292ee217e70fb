"""Environments by name."""

from __future__ import annotations

import subprocess
import sys

import jax.numpy as jnp
import pytest

from jaxrl_par.envs import CartPole, env_names, make
from jaxrl_par.envs.registry import OWN


@pytest.mark.parametrize("name", OWN)
def test_own_names(name):
    assert make(name).spec.name == name
    assert make(name, max_steps=7).spec.max_steps == 7


def test_parameters_are_set():
    assert make("CartPole-v1", gravity=5.0) == CartPole(gravity=5.0)
    assert make("CartPole-v1", max_steps=None).spec.max_steps is None


def test_names_are_listed_once():
    names = env_names()
    assert len(set(names)) == len(names) == 7 + 25
    assert "CartPole-v1" in names
    assert "Breakout-MinAtar" in names
    assert "gymnax:Catch-bsuite" in names
    assert "gymnax:Breakout-MinAtar" not in names  # it has the short name


def test_listing_imports_no_suite():
    code = (
        "import sys; from jaxrl_par.envs import env_names, make; env_names();"
        "make('CartPole-v1'); print('gymnax' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stdout.strip() == "False", run.stderr


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("CartPole-v2", {}, r"no environment 'CartPole-v2'; nearest: CartPole-v1"),
        ("Breakout", {}, r"no environment 'Breakout'; nearest: Breakout-MinAtar"),
        ("Catch-bsuite", {}, r"nearest: gymnax:Catch-bsuite"),
        ("xyz", {}, r"nearest: CartPole-v1, .*Pendulum-v1"),
        ("brix:ant", {}, r"no suite 'brix' in \[.*'gymnax'"),
        (
            "CartPole-v1",
            {"gravty": 1.0},
            r"no parameter 'gravty'; nearest: \['gravity'",
        ),
        (
            "CartPole-v1",
            {"zzz": 1.0},
            r"no parameter 'zzz'; nearest: \['gravity', 'cart",
        ),
    ],
)
def test_unknown_names_are_refused_with_the_nearest(name, parameters, message):
    with pytest.raises(ValueError, match=message):
        make(name, **parameters)


def test_parameters_may_be_arrays():
    assert make("CartPole-v1", gravity=jnp.ones(3)).gravity.shape == (3,)
