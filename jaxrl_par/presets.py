"""Algorithms by name, and settings with which they are known to learn.

A preset is a starting point: replace what you like.

>>> preset = preset("ppo", "CartPole-v1")
>>> train(preset.algorithm, make("CartPole-v1"), **preset.settings, seed=0)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from jaxrl_par import checks
from jaxrl_par.algorithms.ddpg import DDPG
from jaxrl_par.algorithms.ppo import PPO
from jaxrl_par.algorithms.sac import SAC
from jaxrl_par.algorithms.td3 import TD3
from jaxrl_par.networks.actor_critic import CNN, MLP
from jaxrl_par.networks.body import Body
from jaxrl_par.types import Algorithm

ALGORITHMS = {"ppo": PPO, "sac": SAC, "td3": TD3, "ddpg": DDPG}

NETWORKS = {"mlp": MLP, "cnn": CNN}


@dataclasses.dataclass(frozen=True)
class Preset:
    """An algorithm, and settings of a run (fields of `TrainConfig`)."""

    algorithm: Algorithm
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    source: str = ""


def preset(algorithm: str, env: str) -> Preset:
    """The preset for an algorithm and an environment, both by name.

    Raises ValueError, with the nearest that exist, if there is none.
    """
    checks.known("algorithm", algorithm, ALGORITHMS)
    names = [name for kind, name in PRESETS if kind == algorithm]
    checks.known(f"preset of {algorithm} for", env, names)
    return PRESETS[algorithm, env]


_OWN = "tuned here over several seeds; from rl-baselines3-zoo, hyperparams/ppo.yml"
_OWN_MINATAR = "tuned here on Breakout-MinAtar; from purejaxrl"

_MINATAR = PPO(
    network=MLP(hidden=(128, 64), activation="relu", shared=True),
    rollout_length=64,
    num_minibatches=8,
    learning_rate=2.5e-3,
)

_OWN_OFF_POLICY = "tuned here over 5 seeds; from rl-baselines3-zoo"
_SMALL: dict[str, Any] = {
    "network": Body((64, 64)),
    "capacity": 100_000,
    "learning_rate": 1e-3,
}
# The car is only paid at the goal, so what is explored must persist.
_CAR: dict[str, Any] = _SMALL | {"train_every": 4, "noise_correlation": 0.95}
_SWING = {"num_envs": 4, "total_steps": 20_000}
_DRIVE = {"num_envs": 4, "total_steps": 100_000}

PRESETS: dict[tuple[str, str], Preset] = {
    ("ppo", "CartPole-v1"): Preset(
        PPO(learning_rate=2e-3, normalize_reward=True),
        {"num_envs": 64, "total_steps": 500_000},
        _OWN,
    ),
    ("ppo", "Acrobot-v1"): Preset(
        PPO(
            learning_rate=1e-3,
            gae_lambda=0.94,
            entropy_coef=0.0,
            normalize_obs=True,
        ),
        {"num_envs": 16, "total_steps": 500_000},
        _OWN,
    ),
    ("ppo", "MountainCar-v0"): Preset(
        PPO(
            learning_rate=1e-3,
            gae_lambda=0.98,
            entropy_coef=0.0,
            normalize_obs=True,
            normalize_reward=True,
        ),
        {"num_envs": 16, "total_steps": 1_000_000},
        _OWN,
    ),
    ("ppo", "MountainCarContinuous-v0"): Preset(
        PPO(
            learning_rate=1e-3,
            gamma=0.999,
            gae_lambda=0.98,
            entropy_coef=0.01,
            normalize_obs=True,
            normalize_reward=True,
        ),
        {"num_envs": 16, "total_steps": 1_000_000},
        _OWN,
    ),
    ("ppo", "Pendulum-v1"): Preset(
        PPO(
            num_epochs=10,
            num_minibatches=8,
            learning_rate=1e-3,
            gamma=0.95,
            entropy_coef=0.0,
            normalize_reward=True,
        ),
        {"num_envs": 16, "total_steps": 500_000},
        _OWN,
    ),
    **{
        ("ppo", f"{game}-MinAtar"): Preset(
            _MINATAR, {"num_envs": 64, "total_steps": 10_000_000}, _OWN_MINATAR
        )
        for game in ("Asterix", "Breakout", "Freeway", "Seaquest", "SpaceInvaders")
    },
    ("sac", "Pendulum-v1"): Preset(SAC(**_SMALL), _SWING, _OWN_OFF_POLICY),
    ("td3", "Pendulum-v1"): Preset(TD3(**_SMALL, gamma=0.98), _SWING, _OWN_OFF_POLICY),
    ("ddpg", "Pendulum-v1"): Preset(
        DDPG(**_SMALL, gamma=0.98, tau=0.005), _SWING, _OWN_OFF_POLICY
    ),
    ("sac", "MountainCarContinuous-v0"): Preset(SAC(**_CAR), _DRIVE, _OWN_OFF_POLICY),
    ("td3", "MountainCarContinuous-v0"): Preset(
        TD3(**_CAR, exploration_noise=0.5), _DRIVE, _OWN_OFF_POLICY
    ),
}
