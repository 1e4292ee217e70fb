"""What is counted in environment steps, and what happens how often."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_par.algorithms import counting, off_policy


@pytest.mark.parametrize("at_once", [1, 4, 16, 1000, 10_000])
def test_crossings_of_501_in_ten_thousand_steps_are_19(at_once):
    """Whatever the number of steps at once; a remainder test finds 1, or 4 of 4."""
    passed, total = jnp.int32(0), 0
    for _ in range(10_000 // at_once):
        count, passed = counting.crossings(passed, at_once, 501)
        assert count <= counting.most_crossings(at_once, 501)
        total += int(count)
    assert total == 19
    assert passed == 10_000 - 19 * 501


def test_a_gradient_step_is_due_for_each_multiple_after_the_warm_up():
    """10 steps at once, one gradient step for 4, from 40 steps on: at 44, 48, 52 .."""
    clock, due = off_policy.start(), []
    for _ in range(8):
        clock, count = off_policy.tick(clock, 10, 40, 4)
        due.append(int(count))
    assert due == [0, 0, 0, 3, 2, 3, 2, 3]  # at 40 all of 31 .. 40
    assert clock.steps == 40  # counted no further


@pytest.mark.parametrize(
    ("progress", "fraction", "expected"),
    [(0.0, 0.5, 1.0), (0.25, 0.5, 0.525), (0.5, 0.5, 0.05), (1.0, 0.5, 0.05),
     (0.0, 0.1, 1.0), (0.2, 0.1, 0.05), (0.0, 0.0, 0.05), (0.7, 1.0, 0.335)],
)  # fmt: skip
def test_linear(progress, fraction, expected):
    """Of 5 steps with a fraction of .1 the first is the start, the second the end."""
    found = counting.linear(jnp.float32(progress), 1.0, 0.05, fraction)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
