"""Checks of arguments name the argument, its value and the rule."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_par import checks, make


def refused(check, *args):
    with pytest.raises(ValueError) as error:
        check("size", *args)
    return str(error.value)


@pytest.mark.parametrize("value", [1, 7, np.int64(3)])
def test_whole_numbers_pass(value):
    checks.positive_int("size", value)
    checks.optional_positive_int("size", value)


@pytest.mark.parametrize("value", [0, -1, 1.0, 2.5, True, "3", None, [1]])
def test_other_sizes_are_refused(value):
    rule = f"size {value!r} must be a whole number of at least 1"
    assert refused(checks.positive_int, value) == rule
    if value is not None:
        assert refused(checks.optional_positive_int, value) == rule


def test_none_is_an_optional_size():
    checks.optional_positive_int("size", None)


@pytest.mark.parametrize(
    "value", [0.1, 1, np.float32(2), jnp.float32(2), np.array([0.1, 3.0])]
)
def test_rates_may_be_arrays(value):
    checks.positive("rate", value)
    checks.not_negative("rate", value)


@pytest.mark.parametrize(
    "value", [-0.1, np.nan, np.inf, "0.1", None, True, np.array([0.1, -3.0])]
)
def test_other_rates_are_refused(value):
    assert "must be a finite number above 0" in refused(checks.positive, value)
    assert "must be a finite number of at least 0" in refused(
        checks.not_negative, value
    )


def test_zero_is_not_negative_and_not_positive():
    checks.not_negative("rate", 0.0)
    assert refused(checks.positive, 0.0) == "size 0.0 must be a finite number above 0"


def test_between_includes_both_ends():
    for value in (0.0, 0.5, 1.0, np.array([0.0, 1.0])):
        checks.between("gamma", value, 0.0, 1.0)
    for value in (-0.01, 1.01, np.nan, np.array([0.5, 1.5])):
        assert "must be in [0.0, 1.0]" in refused(checks.between, value, 0.0, 1.0)


def test_traced_rates_are_not_checked():
    def function(rate):
        checks.positive("rate", rate)
        checks.between("rate", rate, 0.0, 1.0)
        return rate

    assert jax.jit(function)(-5.0) == -5.0


def test_unknown_names_are_answered_with_the_nearest():
    names = ["CartPole-v1", "Pendulum-v1", "Acrobot-v1"]
    checks.known("environment", "CartPole-v1", names)
    message = re.escape("no environment 'cartpole'; nearest: CartPole-v1")
    with pytest.raises(ValueError, match=message):
        checks.known("environment", "cartpole", names)
    with pytest.raises(ValueError, match="nearest: CartPole-v1, Pendulum-v1, Acrobot"):
        checks.known("environment", "zzzzz", names)


def test_an_environment_has_its_members():
    checks.environment("env", make("CartPole-v1"))
    with pytest.raises(ValueError, match=r"use jaxrl_par.make\('CartPole-v1'\)"):
        checks.environment("env", "CartPole-v1")
    with pytest.raises(ValueError, match="must have `spec`"):
        checks.environment("env", object())
