"""Environments: our own in pure JAX, adapters, wrappers, and `make` by name."""

from jaxrl_par.envs.acrobot import Acrobot
from jaxrl_par.envs.base import EnvError, check_env
from jaxrl_par.envs.cartpole import CartPole
from jaxrl_par.envs.cliff_walking import CliffWalking
from jaxrl_par.envs.mountain_car import MountainCar
from jaxrl_par.envs.mountain_car_continuous import MountainCarContinuous
from jaxrl_par.envs.pendulum import Pendulum
from jaxrl_par.envs.registry import env_names, make
from jaxrl_par.envs.windy_gridworld import WindyGridworld
from jaxrl_par.envs.wrappers import ActionRepeat, Instances

__all__ = [
    "Acrobot",
    "ActionRepeat",
    "CartPole",
    "CliffWalking",
    "EnvError",
    "Instances",
    "MountainCar",
    "MountainCarContinuous",
    "Pendulum",
    "WindyGridworld",
    "check_env",
    "env_names",
    "make",
]
