"""One setting of stable-baselines3 or sbx, asked over a pipe. See `common.serve`.

Runs in an environment of its own that has both (README.md says how to make it). They
take a gradient step for a step of all environments, as rejax does.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import time
from collections.abc import Callable
from typing import Any

import common

PACKAGES = {"sb3": "stable_baselines3", "sbx": "sbx"}


def set_up(settings: dict[str, Any]) -> tuple[dict[str, Any], Callable]:
    """Import the engine; it compiles, where it does, in the first run."""
    common.use_cores(settings["cores"])
    package = PACKAGES[settings["engine"]]
    name = settings["algorithm"].upper()
    shared = common.SHARED[settings["algorithm"]]
    kind = getattr(importlib.import_module(package), name)
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy

    def run(request: dict[str, Any]) -> dict[str, Any]:
        env = make_vec_env(settings["env"], settings["num_envs"])
        fields = DQN() if name == "DQN" else SAC()
        model = kind(
            "MlpPolicy",
            env,
            learning_rate=shared["learning_rate"],
            buffer_size=settings.get("capacity") or shared["capacity"],
            learning_starts=shared["learning_starts"],
            batch_size=shared["batch_size"],
            gamma=shared["gamma"],
            train_freq=1,
            gradient_steps=1,
            seed=request["seed"],
            device="cpu",
            **fields,
        )
        start = time.perf_counter()
        model.learn(settings["total_steps"])
        seconds = time.perf_counter() - start
        answer = {"steps": model.num_timesteps, "seconds": seconds}
        if request.get("episodes"):
            answer["return"] = float(
                evaluate_policy(model, env, request["episodes"])[0]
            )
        return answer

    distribution = {"sb3": "stable-baselines3", "sbx": "sbx-rl"}[settings["engine"]]
    version = importlib.metadata.version(distribution)
    return {"engine": f"{distribution} {version}", "devices": 1}, run


def DQN() -> dict[str, Any]:  # noqa: N802  (the peers' name)
    """What only DQN has."""
    return {
        "target_update_interval": common.DQN["target_every"],
        "exploration_final_eps": common.DQN["final_epsilon"],
        "exploration_fraction": common.DQN["exploration_fraction"],
        "policy_kwargs": {"net_arch": list(common.DQN["hidden"])},
    }


def SAC() -> dict[str, Any]:  # noqa: N802
    """What only SAC has."""
    hidden = list(common.SAC["hidden"])
    return {"tau": common.SAC["tau"], "policy_kwargs": {"net_arch": hidden}}


if __name__ == "__main__":
    common.serve(set_up)
