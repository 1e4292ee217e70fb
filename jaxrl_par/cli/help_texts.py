"""One line for each flag of `train`."""

RUN = {
    "num_envs": "environments that run at once",
    "total_steps": "environment steps, over all environments; rounded up to updates",
    "seed": "the same seed gives the same run",
    "eval_every": "steps between greedy evaluations (None: only at the end; "
    "with --stop-at-return, a twentieth of the run)",
    "eval_episodes": "episodes of an evaluation (0: none)",
    "reset": "pool: starts drawn from a few per environment; exact: a new one each",
    "pool_size": "starts per environment and rollout, for --reset pool",
    "data": "devices to split the environments over (None: as many as pay)",
    "device": "a demand: without such a device the run is refused",
    "stop_at_return": "end at the first evaluation whose mean return reaches it",
    "max_seconds": "end this process's part of the run after so long",
    "on_nonfinite": "what becomes of an update with numbers that are not finite: "
    "stop before it; skip it; or go back to the last checkpoint with another key",
    "max_rollbacks": "how often, for --on-nonfinite rollback",
    "chunk_seconds": "between looks at the run: shown, stopped, saved",
    "save_every": "seconds between checkpoints (0: at every look)",
    "keep_checkpoints": "newest checkpoints that are kept, beside the best",
}

ALGORITHM = {
    "rollout_length": "steps of each environment between updates",
    "num_epochs": "passes over a rollout",
    "num_minibatches": "gradient steps in a pass",
    "num_groups": "strata of a minibatch; the most devices that can share a run",
    "learning_rate": "of Adam",
    "anneal": "lower the learning rate linearly to zero",
    "gamma": "discount of a step, in [0, 1]",
    "gae_lambda": "of generalised advantage estimation, in [0, 1]",
    "clip_eps": "how far the probability ratio may move",
    "value_clip": "how far a value may move (None: not bounded)",
    "value_coef": "weight of the value loss",
    "entropy_coef": "weight of the entropy bonus",
    "max_grad_norm": "gradients are clipped to this norm",
    "adam_eps": "Adam's epsilon",
    "target_kl": "end an update once its approximate KL exceeds this",
    "adaptive_kl": "move the learning rate to keep the KL near this",
    "normalize_advantage": "to mean 0 and deviation 1 in each minibatch",
    "normalize_obs": "by running mean and deviation",
    "normalize_reward": "by the running deviation of the discounted return",
    "squash": "tanh-squashed actions, for a Box of actions",
    "microbatch_size": "samples of a partial gradient, to save memory (None: all)",
    "outliers": "drop or clip transitions with values far off (None: as they are)",
    "outlier_bound": "how far, in spreads (1 % to 99 % quantile) from the median",
    "outlier_spread": "the least spread; rare rewards of its size are kept",
}

NETWORK = {
    "hidden": "sizes of the dense layers",
    "activation": "between layers",
    "shared": "one body for actor and critic",
    "initial_log_std": "of a Gaussian policy",
    "channels": "of the 3x3 convolutions",
}
