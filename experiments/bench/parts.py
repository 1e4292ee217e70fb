"""The parts of one update of PPO, each to be timed alone; see breakdown.py."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import common
import jax
import jax.numpy as jnp

import jaxrl_par as jp
from jaxrl_par import collectives, minibatches
from jaxrl_par.envs.batched import Draws
from jaxrl_par.returns import gae
from jaxrl_par.train import step

WHOLE = "whole"
# The whole again, its metrics left out: what they cost is the difference.
BARE = "whole without metrics"


@dataclasses.dataclass(frozen=True)
class Part:
    """`call(inputs, key)` does one update's worth of it; `of` is where it belongs."""

    name: str
    of: str
    inputs: Any
    call: Callable[[Any, Any], Any]


def measure(
    algorithm: jp.PPO, env: jp.Environment, num_envs: int, steps: float, rounds: int
) -> dict[str, Any]:
    """Nanoseconds per environment step of each part, and its share of the whole."""
    parts = make_parts(algorithm, jp.BatchedEnv(env), num_envs)
    per_update = num_envs * algorithm.rollout_length
    times = max(2, int(steps) // per_update)
    programs = {part.name: repeat(part, times) for part in parts}
    seconds: dict[str, list[float]] = {part.name: [] for part in parts}
    for turn in range(1 + rounds):
        for part in parts:
            start = time.perf_counter()
            jax.block_until_ready(programs[part.name](part.inputs))
            if turn:  # the first warms up
                seconds[part.name].append(time.perf_counter() - start)
    scale = 1e9 / (times * per_update)
    cost = {name: scale * common.median(found) for name, found in seconds.items()}
    owner = {part.name: part.of for part in parts if part.name != BARE}
    cost["metrics"] = cost[WHOLE] - cost.pop(BARE)
    owner["metrics"] = WHOLE
    for of in ("rollout", "update", WHOLE):
        name = f"rest of {of}"
        cost[name] = cost[of] - sum(cost[part] for part in owner if owner[part] == of)
        owner[name] = of
    return {
        "ns_per_step": cost,
        "share": {name: value / cost[WHOLE] for name, value in cost.items()},
        "part_of": owner,
        "updates_per_timing": times,
        "seconds": seconds,
    }


def repeat(part: Part, times: int) -> Callable:
    """A compiled loop over `part` whose turns cannot be merged, moved or left out.

    Each turn's inputs depend on the last turn's results (by adding a zero that the
    compiler cannot know to be one), and all results are kept to the end.
    """

    def turn(inputs: Any, zero: Any, i: Any) -> Any:
        key = jax.random.fold_in(jax.random.key(1), i)
        return part.call(jax.tree.map(partial(_plus, zero), inputs), key)

    def run(inputs: Any) -> Any:
        def body(i: Any, carry: Any) -> Any:
            _, zero = carry
            results = turn(inputs, zero, i)
            floats = (x for x in jax.tree.leaves(results) if x.dtype == jnp.float32)
            return results, 0.0 * next(floats).reshape(-1)[0]

        shapes = jax.eval_shape(turn, inputs, jnp.float32(0), 0)
        start = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        return jax.lax.fori_loop(0, times, body, (start, jnp.float32(0)))

    return jax.jit(run).lower(part.inputs).compile()


def _plus(zero: Any, leaf: Any) -> Any:
    return leaf + zero if leaf.dtype == jnp.float32 else leaf


def make_parts(algorithm: jp.PPO, env: jp.BatchedEnv, num_envs: int) -> list[Part]:
    """The whole update, its halves, and their parts, on one device."""
    init = partial(step.init_state, algorithm, env, num_envs)
    state = jax.jit(init)(jax.random.key(0))

    def whole(state: jp.TrainState, key: Any) -> Any:
        state = dataclasses.replace(state, key=key)
        return step.train_step(algorithm, env, state, jnp.float32(1e6), ())

    def rollout(state: jp.TrainState, key: Any) -> Any:
        share = jnp.float32(0), jnp.float32(0)
        new, collected = step.collect(algorithm, env, state, key, share, ())
        return collected, new.env, new.first

    def update(inputs: Any, key: Any) -> Any:
        return algorithm.update(*inputs, key, ())[0]

    collected = jax.jit(rollout)(state, jax.random.key(0))[0]
    return [
        Part(WHOLE, "", state, whole),
        Part(BARE, "", state, lambda state, key: whole(state, key)[0]),
        Part("rollout", WHOLE, state, rollout),
        *_rollout_parts(algorithm, env, state, collected),
        Part("update", WHOLE, (state.algorithm, collected), update),
        *_update_parts(algorithm, state.algorithm, collected),
    ]


def _rollout_parts(
    algorithm: jp.PPO, env: jp.BatchedEnv, state: jp.TrainState, rollout: jp.Rollout
) -> list[Part]:
    length, num_envs = rollout.reward.shape
    num_keys = env.num_keys(length)

    def draw(inputs: Any, key: Any) -> tuple[Draws, Any]:
        keys = jax.random.split(key, (1 + num_keys, num_envs))
        noise = jax.vmap(lambda k: algorithm.noise(inputs, k, length), out_axes=1)(
            keys[0]
        )
        return env.prepare(keys[1:], length), noise

    def forward(inputs: Any, key: Any) -> Any:
        learned, obs, noise = inputs

        def one(carry: Any, now: Any) -> Any:
            return carry, algorithm.act(learned, (), *now, greedy=False)[1:]

        return jax.lax.scan(one, (), (obs, noise))[1]

    def stepping(inputs: Any, key: Any) -> Any:
        env_state, draws, action = inputs

        def one(env_state: Any, now: Any) -> Any:
            step_key, reset_key, action = now
            drawn = Draws(step_key, reset_key, draws.pool)
            return env.step(env_state, action, drawn)

        now = (draws.step_keys, draws.reset_keys, action)
        return jax.lax.scan(one, env_state, now)

    draws, noise = jax.jit(draw)(state.algorithm, jax.random.key(0))
    return [
        Part("keys and noise", "rollout", state.algorithm, draw),
        Part("forward", "rollout", (state.algorithm, rollout.obs, noise), forward),
        Part("stepping", "rollout", (state.env, draws, rollout.action), stepping),
    ]


def _update_parts(algorithm: jp.PPO, learned: Any, rollout: jp.Rollout) -> list[Part]:
    value = rollout.extras["value"]
    sizes = minibatches.sizes_of(
        *value.shape, algorithm.num_minibatches, algorithm.num_groups, ()
    )
    batch = batch_of(rollout)
    rows = minibatches.shuffled_rows(jax.random.key(0), sizes, 1, ())[0]
    shuffled = minibatches.gather(batch, rows, sizes)

    def advantages(rollout: jp.Rollout, key: Any) -> Any:
        value, ends = rollout.extras["value"], (rollout.terminated, rollout.truncated)
        rates = (algorithm.gamma, algorithm.gae_lambda)
        return gae(rollout.reward, value, value, *ends, *rates)

    def shuffle(batch: Any, key: Any) -> Any:
        rows = minibatches.shuffled_rows(key, sizes, algorithm.num_epochs, ())

        def epoch(_: Any, rows: Any) -> Any:
            return minibatches.gather(batch, rows, sizes), None

        return jax.lax.scan(epoch, shuffled, rows)

    def gradient(inputs: Any, key: Any) -> Any:
        params, shuffled = inputs

        def one(params: Any, minibatch: Any) -> Any:
            grads = gradients(algorithm, learned.spec, params, minibatch)
            return jax.tree.map(lambda p, g: p - 1e-6 * g, params, grads), None

        def epoch(params: Any, _: Any) -> Any:
            return jax.lax.scan(one, params, shuffled)

        return jax.lax.scan(epoch, params, length=algorithm.num_epochs)

    optimizer = algorithm._optimizer()

    def optimise(inputs: Any, key: Any) -> Any:
        params, opt_state, grads = inputs

        def one(carry: Any, _: Any) -> Any:
            return optimizer.follow(grads, *carry, 1.0), None

        steps = algorithm.num_epochs * algorithm.num_minibatches
        return jax.lax.scan(one, (params, opt_state), length=steps)

    params = learned.params
    return [
        Part("advantages", "update", rollout, advantages),
        Part("shuffle", "update", batch, shuffle),
        Part("gradient", "update", (params, shuffled), gradient),
        Part("optimiser", "update", (params, learned.opt_state, params), optimise),
    ]


def batch_of(rollout: jp.Rollout) -> Any:
    """What PPO's loss reads of a rollout, any number for the advantage."""
    from jaxrl_par.algorithms.ppo import Batch

    extras = rollout.extras
    return Batch(
        obs=rollout.obs,
        mask=None,
        sample=extras["sample"],
        log_prob=extras["log_prob"],
        value=extras["value"],
        advantage=rollout.reward,
        target=rollout.reward,
    )


def gradients(algorithm: jp.PPO, spec: jp.EnvSpec, params: Any, batch: Any) -> Any:
    loss = partial(algorithm._loss, spec)
    return collectives.gradient(loss, params, batch, (), algorithm.microbatch_size)[0]
