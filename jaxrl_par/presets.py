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
from jaxrl_par.algorithms.ppo import PPO
from jaxrl_par.algorithms.pqn import PQN
from jaxrl_par.networks.actor_critic import CNN, MLP
from jaxrl_par.networks.body import Body

ALGORITHMS = {"ppo": PPO, "pqn": PQN}

NETWORKS = {"mlp": MLP, "cnn": CNN}


@dataclasses.dataclass(frozen=True)
class Preset:
    """An algorithm, and settings of a run (fields of `TrainConfig`)."""

    algorithm: Any
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

_OWN_PQN = "tuned here over five seeds; from purejaxql, pqn_cartpole.yaml"
_OWN_PQN_MINATAR = "tried here for 500,000 steps; from purejaxql, pqn_minatar.yaml"

_PQN_MINATAR = PQN(
    network=Body(hidden=(128, 128), channels=(), layer_norm=True),
    learning_rate=1e-3,
)

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
    ("pqn", "CartPole-v1"): Preset(
        PQN(
            network=Body(hidden=(64, 64), layer_norm=True),
            num_epochs=4,
            num_minibatches=8,
            learning_rate=2e-3,
            lambda_=0.95,
            exploration_fraction=0.3,
        ),
        {"num_envs": 32, "total_steps": 200_000},
        _OWN_PQN,
    ),
    **{
        ("pqn", f"{game}-MinAtar"): Preset(
            _PQN_MINATAR, {"num_envs": 64, "total_steps": 10_000_000}, _OWN_PQN_MINATAR
        )
        for game in ("Asterix", "Breakout")
    },
}
