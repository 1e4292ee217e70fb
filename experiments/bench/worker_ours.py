"""One setting of jaxrl_par, asked over a pipe. See `common.serve`."""

from __future__ import annotations

import atexit
import tempfile
import time
from collections.abc import Callable
from typing import Any

import common


def set_up(settings: dict[str, Any]) -> tuple[dict[str, Any], Callable]:
    """Compile for `num_envs` environments; a run is `jaxrl_par.train`'s own path."""
    common.use_cores(settings["cores"])
    start = time.perf_counter()
    import jaxrl_par as jp
    from jaxrl_par.cli.startup import prepare_backend
    from jaxrl_par.train.loop import Trainer

    algorithm = ALGORITHMS[settings.get("algorithm", "ppo")](settings)
    samples = settings["num_envs"] * algorithm.rollout_length
    prepare_backend(samples, data=None, device="auto")  # as the command line does
    use_empty_cache()
    import_seconds = time.perf_counter() - start
    env = jp.make(settings["env"])

    def trainer(seed: int, total_steps: int) -> Trainer:
        config = jp.TrainConfig(
            num_envs=settings["num_envs"],
            total_steps=total_steps,
            seed=seed,
            eval_episodes=0,
        )
        return Trainer(algorithm, env, config)

    def run(request: dict[str, Any]) -> dict[str, Any]:
        current = trainer(request["seed"], settings["total_steps"])
        start = time.perf_counter()
        result = current.run()
        seconds = time.perf_counter() - start - current.compile_seconds
        answer = {"steps": result.env_steps, "seconds": seconds, **common.memory()}
        if request.get("episodes"):
            evaluation = result.evaluate(request["episodes"], request["seed"])
            answer["return"] = evaluation.mean_return
        return answer

    first = trainer(0, 1)
    first.run()
    about = {
        **common.device_about(),
        "engine": f"jaxrl_par {jp.__version__}",
        "import_seconds": import_seconds,
        "compile_seconds": first.compile_seconds,
        "devices": len(first.layout.devices),
        "program_bytes": common.program_memory(first.executable.call),
    }
    return about, run


def use_empty_cache() -> None:
    """Compile afresh, and once for all seeds."""
    import jax

    cache = tempfile.TemporaryDirectory()
    atexit.register(cache.cleanup)
    jax.config.update("jax_compilation_cache_dir", cache.name)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def ppo(settings: dict[str, Any]) -> Any:
    """PPO with the shared settings, and rejax's choices where it has no other."""
    import jaxrl_par as jp

    shared = {k: v for k, v in common.PPO.items() if k not in ("hidden", "activation")}
    mlp = jp.MLP(common.PPO["hidden"], common.PPO["activation"])
    return jp.PPO(
        network=jp.CNN() if settings.get("network") == "cnn" else mlp,
        **shared,
        anneal=False,
        value_clip=common.PPO["clip_eps"],
        adam_eps=1e-8,
    )


def pqn(settings: dict[str, Any]) -> Any:
    """PQN with the shared settings."""
    import jaxrl_par as jp
    from jaxrl_par.networks.body import Body

    shared = {k: v for k, v in common.PQN.items() if k != "hidden"}
    channels = None if settings.get("network") == "cnn" else ()
    body = Body(common.PQN["hidden"], channels, layer_norm=True)
    return jp.PQN(network=body, **shared, anneal=False)


def dqn(settings: dict[str, Any]) -> Any:
    """Double DQN with the shared settings."""
    import jaxrl_par as jp

    fields = off_policy(common.DQN, settings)
    return jp.DQN(**fields, huber_delta=None, max_grad_norm=None)


def sac(settings: dict[str, Any]) -> Any:
    """SAC with the shared settings."""
    import jaxrl_par as jp

    return jp.SAC(**off_policy(common.SAC, settings))


def off_policy(shared: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """The shared settings, with a gradient step for a step of all environments."""
    from jaxrl_par.networks.body import Body

    fields = {k: v for k, v in shared.items() if k not in ("hidden", "activation")}
    hidden = tuple(settings.get("hidden") or shared["hidden"])
    fields["network"] = Body(hidden, activation=shared["activation"])
    fields["train_every"] = settings["num_envs"]
    fields["capacity"] = settings.get("capacity") or shared["capacity"]
    return fields


ALGORITHMS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "ppo": ppo,
    "pqn": pqn,
    "dqn": dqn,
    "sac": sac,
}

if __name__ == "__main__":
    common.serve(set_up)
