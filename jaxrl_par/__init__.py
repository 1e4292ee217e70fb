"""jaxrl_par: parallel reinforcement learning in JAX, one compiled program a run.

>>> import jaxrl_par as jp
>>> run = jp.train(jp.PPO(), jp.make("CartPole-v1"), total_steps=500_000, seed=0)
>>> run.policy(obs)
"""

from jaxrl_par.algorithms.base import check_algorithm
from jaxrl_par.algorithms.ddpg import DDPG
from jaxrl_par.algorithms.dqn import DQN
from jaxrl_par.algorithms.ppo import PPO
from jaxrl_par.algorithms.pqn import PQN
from jaxrl_par.algorithms.q_learning import QLearning
from jaxrl_par.algorithms.sac import SAC
from jaxrl_par.algorithms.sarsa import SARSA
from jaxrl_par.algorithms.td3 import TD3
from jaxrl_par.envs import ActionRepeat, Instances, check_env, env_names, make
from jaxrl_par.envs.batched import BatchedEnv
from jaxrl_par.networks.actor_critic import CNN, MLP
from jaxrl_par.networks.body import Body
from jaxrl_par.presets import Preset, preset
from jaxrl_par.spaces import Box, Dict, Discrete, MultiDiscrete
from jaxrl_par.train.callbacks import STOP, Progress
from jaxrl_par.train.config import TrainConfig
from jaxrl_par.train.evaluate import Evaluation
from jaxrl_par.train.guards import DivergedError
from jaxrl_par.train.loggers import Logger
from jaxrl_par.train.loop import train
from jaxrl_par.train.plan import Plan, use_cpu_cores
from jaxrl_par.train.resume import resume
from jaxrl_par.train.run import Run, load
from jaxrl_par.types import (
    Algorithm,
    Environment,
    EnvSpec,
    Rollout,
    StepResult,
    TimeStep,
    TrainState,
    pytree,
    static,
)

__version__ = "0.1.0"

__all__ = [
    "CNN",
    "DDPG",
    "DQN",
    "MLP",
    "PPO",
    "PQN",
    "SAC",
    "SARSA",
    "STOP",
    "TD3",
    "ActionRepeat",
    "Algorithm",
    "BatchedEnv",
    "Body",
    "Box",
    "Dict",
    "Discrete",
    "DivergedError",
    "EnvSpec",
    "Environment",
    "Evaluation",
    "Instances",
    "Logger",
    "MultiDiscrete",
    "Plan",
    "Preset",
    "Progress",
    "QLearning",
    "Rollout",
    "Run",
    "StepResult",
    "TimeStep",
    "TrainConfig",
    "TrainState",
    "check_algorithm",
    "check_env",
    "env_names",
    "load",
    "make",
    "preset",
    "pytree",
    "resume",
    "static",
    "train",
    "use_cpu_cores",
]
