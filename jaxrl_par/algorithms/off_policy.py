"""What algorithms that learn from a replay share: when they learn, and the loop."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_par import checks, collectives
from jaxrl_par.algorithms import counting
from jaxrl_par.replay import ring, uniform
from jaxrl_par.types import Array, Axes, Key, PyTree, Rollout, pytree

_SIZES = (
    *("rollout_length", "capacity", "batch_size", "num_groups"),
    *("n_step", "learning_starts", "train_every"),
)

# Of an update's observations, up to which its minibatches are made together.
_MOST_BYTES = 2**23

# make(key, count) -> so many batches, [count, N, ...]
Make = Callable[[Key, int], PyTree]
# step(learner, batch) -> (learner, metrics of scalars, something of each sample)
Step = Callable[[Any, PyTree], tuple[Any, dict[str, Array], PyTree]]


@pytree
class Clock:
    """Environment steps, as far as they matter; equal on all devices."""

    steps: Array  # () int32, counted up to the warm-up's end
    since_step: Array  # () int32, since a gradient step was due


def start() -> Clock:
    """Before the first step."""
    return Clock(jnp.int32(0), jnp.int32(0))


def tick(
    clock: Clock, steps: int, learning_starts: int, train_every: int
) -> tuple[Clock, Array]:
    """After so many more steps: (clock, gradient steps that are due, () int32).

    One at each crossing of a multiple of `train_every`, once `learning_starts` steps
    have been made.
    """
    made = counting.up_to(clock.steps, steps, learning_starts)
    due, since = counting.crossings(clock.since_step, steps, train_every)
    return Clock(made, since), jnp.where(made >= learning_starts, due, 0)


def max_devices(algorithm: Any, num_envs: int) -> int:
    """The number of strata: the number of devices must divide it."""
    return uniform.count_groups(num_envs, algorithm.batch_size, algorithm.num_groups)


def remember(
    algorithm: Any, state: Any, rollout: Rollout, action: PyTree, axes: Axes
) -> tuple[ring.Ring, Clock, Array]:
    """Store a rollout with its actions [T, B, ...]: (replay, clock, steps due)."""
    steps = counting.steps_of(rollout, axes)
    clock, due = tick(
        state.clock, steps, algorithm.learning_starts, algorithm.train_every
    )
    return ring.add(state.replay, rollout, action), clock, due


def most_steps(algorithm: Any, rollout: Rollout, axes: Axes) -> int:
    """K, the most gradient steps of an update."""
    steps = counting.steps_of(rollout, axes)
    return counting.most_crossings(steps, algorithm.train_every)


def at_once(algorithm: Any, replay: ring.Ring, rollout: Rollout, axes: Axes) -> bool:
    """Whether an update's minibatches are made together, before its gradient steps.

    That is 1.05 times faster. Not if many updates have no step, for which it would be
    in vain, and not if the observations are large together. Equal on any number of
    devices, as other numbers are drawn.
    """
    if counting.steps_of(rollout, axes) < algorithm.train_every:
        return False
    samples = most_steps(algorithm, rollout, axes) * algorithm.batch_size
    each = sum(
        math.prod(x.shape[2:]) * x.dtype.itemsize for x in jax.tree.leaves(replay.obs)
    )
    return 2 * samples * each <= _MOST_BYTES


def draw(
    algorithm: Any, replay: ring.Ring, key: Key, count: int, axes: Axes
) -> ring.Transitions:
    """This device's share of `count` minibatches, [K, M, ...]."""
    groups = max_devices(algorithm, replay.count.shape[0] * collectives.size(axes))
    shape = (count, algorithm.batch_size)
    place = uniform.draw(replay, key, shape, groups, axes)
    return ring.transitions(replay, place, algorithm.n_step, algorithm.gamma)


def learn(
    step: Step,
    learner: Any,
    make: Make,
    key: Key,
    count: int,
    due: Array,
    together: bool,
) -> tuple[Any, dict[str, Array], PyTree]:
    """Take `due` gradient steps, at most K = `count`, on batches of `make`.

    These are made `together`, or each when it is needed (see `at_once`).

    Gives (learner, sums over the steps of the metrics, what there is of each batch
    [K, ...], zeros where no step was taken). A loop of no steps costs nothing, and
    copies nothing, where a `cond` copies all that it may change.
    """
    shapes = jax.eval_shape(lambda key: make(key, 1), key)
    first = jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape[1:], s.dtype), shapes)
    _, metrics, each = jax.eval_shape(step, learner, first)
    zero = lambda s: jnp.zeros(s.shape, s.dtype)  # noqa: E731
    room = lambda s: jnp.zeros((count, *s.shape), s.dtype)  # noqa: E731
    several = make(key, count) if together else None

    def batch_of(i: Array) -> PyTree:
        if several is not None:
            return jax.tree.map(lambda x: x[i], several)
        # Without the number XLA would move it out of the loop.
        one = make(jax.random.fold_in(key, i), 1)
        return jax.tree.map(lambda x: x[0], one)

    def body(i: Array, carry: tuple) -> tuple:
        learner, sums, kept = carry
        learner, metrics, each = step(learner, batch_of(i))
        sums = jax.tree.map(jnp.add, sums, metrics)
        return learner, sums, jax.tree.map(lambda k, x: k.at[i].set(x), kept, each)

    begin = (learner, jax.tree.map(zero, metrics), jax.tree.map(room, each))
    learner, sums, kept = jax.lax.fori_loop(0, due, body, begin)
    sums = {f"{name}_sum": x for name, x in sums.items()}
    return learner, sums | {"gradient_steps": due.astype(jnp.float32)}, kept


def move(target: PyTree, params: PyTree, rate: Array | float) -> PyTree:
    """The target network, moved by `rate` of its distance to the parameters."""
    return jax.tree.map(lambda t, p: t + rate * (p - t), target, params)


def stored(replay: ring.Ring, axes: Axes) -> Array:
    """Transitions stored over all devices, () float32: all rings are equally full.

    Not by a reduction. On CPUs (jax 0.10.2) one that nothing orders against those of
    the gradient steps may meet one of them, and ends the process.
    """
    envs = replay.count.shape[0] * collectives.size(axes)
    return replay.count[0].astype(jnp.float32) * envs


def replay_size(replay: ring.Ring, axes: Axes) -> dict[str, Array]:
    """`stored`, as a metric."""
    return {"replay_size": stored(replay, axes)}


def check_sizes(algorithm: Any, num_envs: int) -> None:
    """Raise ValueError for sizes that every algorithm with a replay has."""
    for name in _SIZES:
        checks.positive_int(name, getattr(algorithm, name))
    ring.slots_of(algorithm.capacity, num_envs, algorithm.rollout_length)
    most = algorithm.capacity // num_envs
    if algorithm.n_step > most:
        raise ValueError(
            f"n_step {algorithm.n_step} must be at most the steps that are kept of an "
            f"environment, capacity / num_envs = {most}"
        )
