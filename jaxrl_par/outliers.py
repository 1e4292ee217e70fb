"""A filter for transitions whose reward, observation or TD error is far off.

A value is an outlier if it lies more than `bound` spreads from the median of this
rollout's values: of all steps, environments and devices, and of each number of an
observation apart. The spread is the distance of the 1 % and 99 % quantiles, and
never less than `spread`: a reward may be constant, or 0 nearly always, and then the
rare 1 is all there is to learn from.

Found are faults that are rare, at most 1 % of the values on a side, and far off.
More frequent ones widen the bounds until they lie within. And a true reward as rare
and as far off is taken for a fault: where there are such, raise `spread`.

What is not finite is no outlier. It stays as it is, for the guards against it to
see, is not counted, and is no part of the quantiles.

An algorithm learns from what is left; the episodes that are logged stay as they were.
Arrays are time-major: T steps, B environments.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_par import checks, collectives, spaces
from jaxrl_par.types import Array, Axes, PyTree, Rollout, pytree, static

Mode = Literal["drop", "clip"]


@pytree
class Filter:
    """What is done with outliers; without a mode nothing, at no cost.

    "clip" brings rewards, the numbers of observations and TD errors to the nearest
    bound. "drop" puts the median in the place of the first two, so that running
    statistics see nothing unusual; the TD error of a transition with an outlier
    becomes 0, and `kept` says to give its sample no weight. An outlying observation
    drops the transition to it and the one from it.
    """

    mode: Mode | None = static()
    bound: Array | float  # in spreads
    spread: Array | float  # the least spread, in the units of the values

    def validate(self) -> None:
        """Raise ValueError for settings that are none."""
        if self.mode not in ("drop", "clip", None):
            raise ValueError(f"outliers {self.mode!r} must be 'drop', 'clip' or None")
        checks.positive("outlier_bound", self.bound)
        checks.not_negative("outlier_spread", self.spread)

    def rollout(
        self,
        rollout: Rollout,
        axes: Axes,
        value_of: Callable[[PyTree], Array] | None = None,
    ) -> tuple[Rollout, Array | None, dict[str, Array]]:
        """Replace outlying rewards and observations: (rollout, kept, metrics).

        `kept` [T, B] bool is None where nothing is dropped. Action masks and
        observations of integers stay as they are. With `value_of` ([N, ...] -> [N])
        the value in `extras` of a clipped observation is computed anew; its action
        keeps the probability with which it was drawn.
        """
        if self.mode is None:
            return rollout, None, {}
        bounds = self._bounds([rollout.reward, *_numbers(rollout.obs).values()], axes)
        reward, far_reward = self._replace(rollout.reward, bounds[0])
        obs, far = self._replace_obs(rollout.obs, 2, bounds[1:])
        last_obs, far_last = self._replace_obs(rollout.last_obs, 1, bounds[1:])
        cut_obs, far_cut = self._replace_obs(rollout.cut_obs, 2, bounds[1:])
        metrics = _counts({"outlier_rewards": far_reward, "outlier_obs": far}, axes)
        marks = dataclasses.replace(
            rollout, obs=far, last_obs=far_last, cut_obs=far_cut
        )
        rollout = dataclasses.replace(
            rollout, reward=reward, obs=obs, last_obs=last_obs, cut_obs=cut_obs
        )
        if self.mode == "clip":
            if value_of is not None:
                any_far = metrics["outlier_obs"] > 0
                rollout = _revalue(rollout, far, any_far, value_of)
            return rollout, None, metrics
        dropped = far_reward | far | (marks.next_obs() & ~rollout.terminated)
        # With a TD error of 0 a reward that is not finite would pass unseen.
        return rollout, ~dropped | ~jnp.isfinite(reward), metrics

    def td_errors(
        self, td_error: Array, kept: Array | None, axes: Axes
    ) -> tuple[Array, Array | None, dict[str, Array]]:
        """Clip or drop outlying TD errors [T, B]: (TD errors, kept, metrics).

        Those of dropped transitions have no part in the bounds.
        """
        if self.mode is None:
            return td_error, None, {}
        if kept is not None:
            td_error = jnp.where(kept, td_error, jnp.nan)
        clipped, far = self._replace(td_error, self._bounds([td_error], axes)[0])
        metrics = _counts({"outlier_td_errors": far}, axes)
        if kept is None:
            return clipped, None, metrics
        kept &= ~far
        return jnp.where(kept, td_error, 0.0), kept, metrics

    def _bounds(self, values: list[Array], axes: Axes) -> list[Array]:
        """Lower bound, median and upper bound [3, ...] of each array [T, B, ...]."""
        shapes = [x.shape[2:] for x in values]
        columns = [_columns(x.astype(jnp.float32)) for x in values]
        low, middle, high = quantiles(jnp.concatenate(columns), axes)
        reach = self.bound * jnp.maximum(high - low, self.spread)
        bounds = jnp.stack([middle - reach, middle, middle + reach])
        ends = np.cumsum([len(x) for x in columns])[:-1]
        parts = zip(jnp.split(bounds, ends, axis=1), shapes, strict=True)
        return [part.reshape(3, *shape) for part, shape in parts]

    def _replace(self, x: Array, bounds: Array) -> tuple[Array, Array]:
        """x [..., *features] without outliers, and where they were."""
        low, middle, high = (
            jax.lax.broadcast_to_rank(bound.astype(x.dtype), x.ndim) for bound in bounds
        )
        far = jnp.isfinite(x) & ((x < low) | (x > high))
        instead = middle if self.mode == "drop" else jnp.clip(x, low, high)
        return jnp.where(far, instead, x), far

    def _replace_obs(
        self, obs: PyTree, axes: int, bounds: list[Array]
    ) -> tuple[PyTree, Array]:
        """Observations with so many leading axes, and which of them had outliers."""
        leaves, structure = jax.tree.flatten(obs)
        any_far = jnp.zeros(leaves[0].shape[:axes], bool)
        for (place, leaf), bound in zip(_numbers(obs).items(), bounds, strict=True):
            leaves[place], far = self._replace(leaf, bound)
            any_far |= far.any(range(axes, far.ndim))
        return jax.tree.unflatten(structure, leaves), any_far


def quantiles(x: Array, axes: Axes) -> Array:
    """The 1 %, 50 % and 99 % quantiles [3, F] of the finite numbers of x [F, N].

    Values that occur, of n the (n // 100)-th from below, the (n // 2)-th, and the
    (n // 100)-th from above; NaN where there is none. Of the samples of all devices
    and to the bit the same on any number of them: found by bisection over unsigned
    integers of the same order (negative floats with all bits flipped, others with
    the sign set), so that the size of the values plays no part.
    """
    finite = jnp.isfinite(x)
    n = collectives.total(finite.sum(1), axes)
    ranks = jnp.stack([n // 100, n // 2, n - 1 - n // 100])
    sign = jnp.uint32(1 << 31)
    bits = jax.lax.bitcast_convert_type(x, jnp.uint32)
    order = jnp.where(bits < sign, bits | sign, ~bits)
    order = jnp.where(finite, order, ~jnp.uint32(0))[None]  # above all numbers

    def halve(i: Array, found: Array) -> Array:
        trial = found | (sign >> i.astype(jnp.uint32))
        below = collectives.total((order < trial[..., None]).sum(2), axes)
        return jnp.where(below <= ranks, trial, found)

    found = jax.lax.fori_loop(0, 32, halve, jnp.zeros(ranks.shape, jnp.uint32))
    bits = jnp.where(found < sign, ~found, found ^ sign)
    return jax.lax.bitcast_convert_type(bits, jnp.float32)


def blank(tree: PyTree, kept: Array | None) -> PyTree:
    """Leaves [T, B, ...] with 0 where a transition is dropped.

    What a policy made of an outlier may be infinite: times a weight of 0, NaN.
    """
    if kept is None:
        return tree
    return jax.tree.map(
        lambda x: jnp.where(
            kept.reshape(kept.shape + (1,) * (x.ndim - 2)), x, jnp.zeros_like(x)
        ),
        tree,
    )


def weights(kept: Array | None, axes: Axes) -> Array | None:
    """Weights [M, N] of mean 1 in each minibatch, 0 where not kept; None: all 1."""
    if kept is None:
        return None
    share = collectives.mean(kept.mean(1, keepdims=True), axes)
    return jnp.where(kept, 1.0 / share, 0.0)  # a share of 0 is never used


def mean(x: Array, weight: Array | None) -> Array:
    """Mean of samples [N] with weights of mean 1."""
    return x.mean() if weight is None else (weight * x).mean()


def moments(x: Array, weight: Array | None, axes: Axes) -> tuple[Array, Array]:
    """Mean and population variance [M] of samples [M, N] with weights of mean 1."""
    if weight is None:
        return collectives.moments(x, 1, axes)
    centre = collectives.mean((weight * x).mean(1), axes)
    spread = weight * jnp.square(x - centre[:, None])
    return centre, collectives.mean(spread.mean(1), axes)


def _numbers(obs: PyTree) -> dict[int, Array]:
    """Leaves of floats by their place among the leaves; an action mask is none."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(obs)
    mask = jax.tree_util.DictKey(spaces.ACTION_MASK)
    return {
        place: leaf
        for place, (path, leaf) in enumerate(leaves)
        if jnp.issubdtype(leaf.dtype, jnp.floating) and mask not in path
    }


def _columns(x: Array) -> Array:
    """[T, B, ...] as [F, N]."""
    return x.reshape(x.shape[0] * x.shape[1], -1).T


def _counts(marks: dict[str, Array], axes: Axes) -> dict[str, Array]:
    """Numbers of marked transitions over all devices, float32."""
    return collectives.total(
        {name: mark.sum().astype(jnp.float32) for name, mark in marks.items()}, axes
    )


def _revalue(
    rollout: Rollout,
    far: Array,
    any_far: Array,
    value_of: Callable[[PyTree], Array],
) -> Rollout:
    """The values of marked observations [T, B], where there are any, anew."""
    value = rollout.extras["value"]

    def anew() -> Array:
        flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), rollout.obs)
        return value_of(flat).reshape(value.shape).astype(value.dtype)

    new = jax.lax.cond(any_far, anew, lambda: value)
    extras = {**rollout.extras, "value": jnp.where(far, new, value)}
    return dataclasses.replace(rollout, extras=extras)
