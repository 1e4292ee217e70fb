"""One small instance of every algorithm and its variants, with an environment."""

from __future__ import annotations

import jaxrl_par as jp
from jaxrl_par.presets import rainbow

BODY = jp.Body((8,))
REPLAY = {"network": BODY, "capacity": 64, "batch_size": 8, "learning_starts": 16}

EVERY = {
    "ppo": (jp.PPO(jp.MLP((8,)), rollout_length=8), "CartPole-v1"),
    "ppo, all options": (
        jp.PPO(
            jp.MLP((8,)),
            rollout_length=8,
            normalize_obs=True,
            normalize_reward=True,
            value_clip=0.2,
            adaptive_kl=0.01,
            target_kl=0.5,
        ),
        "CartPole-v1",
    ),
    "dqn": (jp.DQN(**REPLAY, rollout_length=2, train_every=4), "CartPole-v1"),
    "dqn, batches one by one": (
        jp.DQN(**REPLAY, prioritized=True, rollout_length=2, train_every=40),
        "CartPole-v1",
    ),
    "rainbow": (
        rainbow(**REPLAY, train_every=3, target_every=10, num_atoms=5),
        "CartPole-v1",
    ),
    "pqn": (
        jp.PQN(
            network=jp.Body((8,), layer_norm=True), rollout_length=8, num_minibatches=2
        ),
        "CartPole-v1",
    ),
    "sac": (jp.SAC(**REPLAY, rollout_length=2, train_every=4), "Pendulum-v1"),
    "sac, discrete": (jp.SAC(**REPLAY, train_every=4), "CartPole-v1"),
    "td3": (jp.TD3(**REPLAY, train_every=4, noise_correlation=0.5), "Pendulum-v1"),
    "ddpg": (jp.DDPG(**REPLAY, rollout_length=2, train_every=4), "Pendulum-v1"),
    "q_learning": (jp.QLearning(), "CliffWalking-v0"),
    "sarsa": (jp.SARSA(), "CliffWalking-v0"),
}
