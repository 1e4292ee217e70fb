"""SAC of Brax on Pendulum, asked over a pipe. See `common.serve`.

Runs in an environment of its own that has Brax (README.md says how to make it). Brax
has no Pendulum, so Gymnasium's stands here in Brax's form: the angle's cosine and sine
and the speed are observed, an action of -1 to 1 is a torque of -2 to 2.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from functools import partial
from typing import Any

import common

EPISODE = 200
# Brax compiles when it trains, in the first of the parts between its evaluations.
PARTS = 4


def set_up(settings: dict[str, Any]) -> tuple[dict[str, Any], Callable]:
    """Import Brax; it compiles in every run, which is not counted."""
    common.use_cores(settings["cores"])
    from brax.training.agents.sac import networks, train

    if (settings["algorithm"], settings["env"]) != ("sac", "Pendulum-v1"):
        raise ValueError("Brax is compared on SAC and Pendulum-v1 alone")
    shared = common.SAC
    hidden = tuple(settings.get("hidden") or shared["hidden"])
    env = pendulum()

    def run(request: dict[str, Any]) -> dict[str, Any]:
        seen: list[tuple[int, dict[str, Any]]] = []
        train.train(
            env,
            num_timesteps=settings["total_steps"],
            episode_length=EPISODE,
            num_envs=settings["num_envs"],
            num_eval_envs=request.get("episodes", 1),
            num_evals=PARTS + 1,
            deterministic_eval=True,
            learning_rate=shared["learning_rate"],
            discounting=shared["gamma"],
            tau=shared["tau"],
            batch_size=shared["batch_size"],
            min_replay_size=shared["learning_starts"],
            max_replay_size=settings.get("capacity") or shared["capacity"],
            network_factory=partial(
                networks.make_sac_networks, hidden_layer_sizes=hidden
            ),
            seed=request["seed"],
            progress_fn=lambda steps, metrics: seen.append((steps, metrics)),
        )
        (first, _), *_, (last, metrics) = seen[1:]
        warm = [metrics["training/sps"] for _, metrics in seen[2:]]
        return {
            "steps": last - first,
            "seconds": (last - first) / len(warm) * sum(1 / speed for speed in warm),
            "return": float(metrics["eval/episode_reward"]),
        }

    version = importlib.metadata.version
    engine = f"brax {version('brax')} on jax {version('jax')}"  # older than the others'
    return {**common.device_about(), "engine": engine}, run


def pendulum() -> Any:
    """Pendulum-v1 (Gymnasium), without its time limit, which Brax adds."""
    import jax
    import jax.numpy as jnp
    from brax.envs.base import Env, State

    def observe(angle: Any, speed: Any) -> Any:
        return jnp.stack([jnp.cos(angle), jnp.sin(angle), speed])

    class Pendulum(Env):
        observation_size, action_size, backend = 3, 1, "none"

        def reset(self, rng: Any) -> State:
            high = jnp.array([jnp.pi, 1.0])
            angle, speed = jax.random.uniform(rng, (2,), minval=-high, maxval=high)
            zero = jnp.zeros(())
            return State(jnp.stack([angle, speed]), observe(angle, speed), zero, zero)

        def step(self, state: State, action: Any) -> State:
            angle, speed = state.pipeline_state
            torque = 2.0 * jnp.clip(action[0], -1.0, 1.0)
            turned = (angle + jnp.pi) % (2 * jnp.pi) - jnp.pi
            reward = -(turned**2 + 0.1 * speed**2 + 0.001 * torque**2)
            speed += (15.0 * jnp.sin(angle) + 3.0 * torque) * 0.05
            speed = jnp.clip(speed, -8.0, 8.0)
            angle += speed * 0.05
            return state.replace(
                pipeline_state=jnp.stack([angle, speed]),
                obs=observe(angle, speed),
                reward=reward,
            )

    return Pendulum()


if __name__ == "__main__":
    common.serve(set_up)
