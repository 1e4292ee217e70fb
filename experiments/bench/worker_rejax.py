"""One setting of rejax, asked over a pipe. See `common.serve`.

Runs in rejax's own environment (README.md says how to make it).
"""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Callable
from typing import Any

import common


def set_up(settings: dict[str, Any]) -> tuple[dict[str, Any], Callable]:
    """Compile rejax's whole training function, evaluation taken out."""
    common.use_cores(settings["cores"])
    start = time.perf_counter()
    import jax
    import rejax

    import_seconds = time.perf_counter() - start
    name = settings.get("algorithm", "ppo")
    algo = rejax.get_algo(name).create(**config(settings), **SETTINGS[name](settings))
    algo = algo.replace(eval_callback=lambda *_: ())
    start = time.perf_counter()
    train = jax.jit(algo.train).lower(jax.random.PRNGKey(0)).compile()
    compile_seconds = time.perf_counter() - start
    play = jax.jit(greedy_returns(algo, MODES[name]), static_argnums=2)

    def run(request: dict[str, Any]) -> dict[str, Any]:
        key = jax.random.PRNGKey(request["seed"])
        start = time.perf_counter()
        state, _ = jax.block_until_ready(train(key))
        seconds = time.perf_counter() - start
        steps = int(state.global_step)
        answer = {"steps": steps, "seconds": seconds, **common.memory()}
        if request.get("episodes"):
            learner = state.q_ts if hasattr(state, "q_ts") else state.actor_ts
            returns = play(learner.params, key, request["episodes"])
            answer["return"] = float(returns.mean())
        return answer

    about = {
        **common.device_about(),
        "engine": f"rejax {importlib.metadata.version('rejax')}",
        "gymnax": importlib.metadata.version("gymnax"),
        "import_seconds": import_seconds,
        "compile_seconds": compile_seconds,
        "devices": 1,
        "program_bytes": common.program_memory(train),
    }
    return about, run


def config(settings: dict[str, Any]) -> dict[str, Any]:
    """The run, by rejax's names."""
    total = settings["total_steps"]
    return {
        "env": settings["env"],
        "num_envs": settings["num_envs"],
        "total_timesteps": total,
        "eval_freq": total,
    }


def ppo(_: dict[str, Any]) -> dict[str, Any]:
    """The shared settings by rejax's names."""
    ppo = common.PPO
    return {
        "agent_kwargs": {
            "activation": ppo["activation"],
            "hidden_layer_sizes": ppo["hidden"],
        },
        "num_steps": ppo["rollout_length"],
        "num_epochs": ppo["num_epochs"],
        "num_minibatches": ppo["num_minibatches"],
        "learning_rate": ppo["learning_rate"],
        "gamma": ppo["gamma"],
        "gae_lambda": ppo["gae_lambda"],
        "clip_eps": ppo["clip_eps"],
        "ent_coef": ppo["entropy_coef"],
        "vf_coef": ppo["value_coef"],
        "max_grad_norm": ppo["max_grad_norm"],
    }


def pqn(_: dict[str, Any]) -> dict[str, Any]:
    """The same; its network is always 64-64 with layer norm."""
    pqn = common.PQN
    return {
        "num_steps": pqn["rollout_length"],
        "num_epochs": pqn["num_epochs"],
        "num_minibatches": pqn["num_minibatches"],
        "learning_rate": pqn["learning_rate"],
        "gamma": pqn["gamma"],
        "td_lambda": pqn["lambda_"],
        "eps_end": pqn["final_epsilon"],
        "exploration_fraction": pqn["exploration_fraction"],
        "max_grad_norm": pqn["max_grad_norm"],
    }


def dqn(settings: dict[str, Any]) -> dict[str, Any]:
    """The same; its network is always 64-64."""
    return {
        **off_policy(common.DQN, settings),
        "agent_kwargs": {"activation": common.DQN["activation"]},
        "target_update_freq": common.DQN["target_every"],
        "eps_end": common.DQN["final_epsilon"],
        "exploration_fraction": common.DQN["exploration_fraction"],
        "ddqn": True,
    }


def sac(settings: dict[str, Any]) -> dict[str, Any]:
    """The same."""
    return {
        **off_policy(common.SAC, settings),
        "hidden_layer_sizes": tuple(settings.get("hidden") or common.SAC["hidden"]),
        "agent_kwargs": {"activation": common.SAC["activation"]},
        "polyak": 1 - common.SAC["tau"],
    }


def off_policy(shared: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """A gradient step for a step of all environments."""
    return {
        "num_epochs": 1,
        "buffer_size": settings.get("capacity") or shared["capacity"],
        "fill_buffer": shared["learning_starts"],
        "batch_size": shared["batch_size"],
        "learning_rate": shared["learning_rate"],
        "gamma": shared["gamma"],
    }


SETTINGS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "ppo": ppo,
    "pqn": pqn,
    "dqn": dqn,
    "sac": sac,
}


def likeliest(algo: Any, params: Any, obs: Any) -> Any:
    """The greedy action of a network that gives a distribution."""
    actor = algo.actor
    return actor.apply(params, obs, method=lambda m, x: m._action_dist(x)).mode()


def best(algo: Any, params: Any, obs: Any) -> Any:
    """The greedy action of a network that gives action values."""
    return algo.agent.apply(params, obs).argmax(-1)


def middle(algo: Any, params: Any, obs: Any) -> Any:
    """The greedy action of a squashed Gaussian."""
    import jax.numpy as jnp

    actor = algo.actor
    law = actor.apply(params, obs, method=lambda m, x: m._action_dist(x))
    low, high = actor.action_range
    return (low + high) / 2 + jnp.tanh(law.loc) * (high - low) / 2


MODES: dict[str, Callable] = {
    "ppo": likeliest,
    "pqn": best,
    "dqn": best,
    "sac": middle,
}


def greedy_returns(algo: Any, mode: Callable) -> Callable:
    """rejax's own evaluation, with the likeliest action instead of a drawn one."""
    import jax
    from rejax.evaluate import evaluate_single

    def play(params: Any, key: Any, episodes: int) -> Any:
        def act(obs: Any, _: Any) -> Any:
            return mode(algo, params, obs[None])[0]

        def one(key: Any) -> Any:
            limit = algo.env_params.max_steps_in_episode
            return evaluate_single(act, algo.env, algo.env_params, key, limit)[1]

        return jax.vmap(one)(jax.random.split(key, episodes))

    return play


if __name__ == "__main__":
    common.serve(set_up)
