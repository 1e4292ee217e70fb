"""Presets: complete, consistent, and buildable."""

from __future__ import annotations

import dataclasses

import jax
import pytest

import jaxrl_par as jp
from jaxrl_par.presets import ALGORITHMS, PRESETS


def test_every_common_environment_has_one() -> None:
    games = ("Asterix", "Breakout", "Freeway", "Seaquest", "SpaceInvaders")
    classic = (
        "CartPole-v1", "Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0",
        "Pendulum-v1",
    )  # fmt: skip
    for env in (*classic, *(f"{game}-MinAtar" for game in games)):
        assert ("ppo", env) in PRESETS


@pytest.mark.parametrize(("algorithm", "env_name"), list(PRESETS))
def test_a_preset_fits_its_environment(algorithm: str, env_name: str) -> None:
    found = jp.preset(algorithm, env_name)
    assert type(found.algorithm) is type(ALGORITHMS[algorithm]())
    assert found.source
    fields = {field.name for field in dataclasses.fields(jp.TrainConfig)}
    assert set(found.settings) <= fields - {"seed", "device", "data"}
    config = jp.TrainConfig(**found.settings)
    spec = jp.make(env_name).spec
    found.algorithm.validate(spec, config.num_envs)
    key = jax.random.key(0)
    jax.eval_shape(lambda: found.algorithm.init(key, spec, config.num_envs))


def test_unknown_names_are_refused_with_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"'po'.*ppo"):
        jp.preset("po", "CartPole-v1")
    with pytest.raises(ValueError, match=r"CartPole.*CartPole-v1"):
        jp.preset("ppo", "CartPole")
