"""Categorical policies, against NumPy and hand-worked numbers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from policies import everything, random_outputs, values_and_jacobian

from jaxrl_par import distributions
from jaxrl_par.distributions import Categorical, MultiCategorical
from jaxrl_par.spaces import Discrete, MultiDiscrete

F = np.float32
HIGHEST = np.float32(1 - 2**-23)  # of jax.random.uniform


def chi_square(counts, expected):
    return ((counts - expected) ** 2 / expected).sum()


def softmax(logits):
    weight = np.exp(logits - logits.max(-1, keepdims=True))
    return weight / weight.sum(-1, keepdims=True)


@pytest.mark.parametrize("n", [1, 2, 8, 33])
def test_categorical_matches_numpy(n):
    logits = np.random.default_rng(n).normal(size=(50, n)).astype(np.float32) * 3
    p = softmax(logits.astype(np.float64))
    sample = np.arange(50) % n
    distribution = Categorical(n)

    @jax.jit
    def both(logits, sample):
        return distribution.log_prob(logits, sample), distribution.entropy(logits)

    log_prob, found_entropy = both(logits, sample.astype(np.int32))
    np.testing.assert_allclose(
        log_prob, np.log(p[np.arange(50), sample]), rtol=1e-5, atol=1e-6
    )
    entropy = -(p * np.log(p)).sum(-1)
    np.testing.assert_allclose(found_entropy, entropy, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(distribution.mode(jnp.asarray(logits)), p.argmax(-1))


def test_samples_have_the_policy_s_frequencies():
    logits = jnp.array([0.5, -1.0, 2.0, 0.0, -3.0])
    number = 200_000
    noise = Categorical(5).noise(jax.random.key(0), (number,))
    outputs = jnp.broadcast_to(logits, (number, 5))
    samples = jax.jit(Categorical(5).sample)(outputs, noise)
    counts = np.bincount(samples, minlength=5)
    # 0.999 quantile of chi-square with 4 degrees of freedom: 18.5.
    assert chi_square(counts, number * softmax(np.asarray(logits))) < 18.5


@pytest.mark.parametrize("n", [2, 8, 64, 100])
@pytest.mark.parametrize("u", [0.0, 2**-23, 0.5, HIGHEST])
def test_any_uniform_gives_a_possible_index(n, u):
    rng = np.random.default_rng(n)
    logits = rng.normal(size=(2000, n)) * 5
    mask = rng.random((2000, n)) < 0.4
    mask[np.arange(2000), rng.integers(0, n, 2000)] = True
    outputs = distributions.mask_outputs(
        jnp.asarray(logits, jnp.float32), jnp.asarray(mask)
    )
    sample = np.asarray(jax.jit(Categorical(n).sample)(outputs, np.full(2000, u, F)))
    assert sample.dtype == np.int32
    assert ((sample >= 0) & (sample < n)).all()
    assert mask[np.arange(2000), sample].all()
    # The share before it ends at or below u, and its own above, but for rounding.
    cumulative = softmax(np.where(mask, logits, -np.inf)).cumsum(-1)
    before = np.concatenate([np.zeros((2000, 1)), cumulative], -1)
    assert (before[np.arange(2000), sample] <= u + 1e-6).all()
    assert (cumulative[np.arange(2000), sample] >= u - 1e-6).all()


def random_masked_logits(rows, n):
    rng = np.random.default_rng(0)
    mask = rng.random((rows, n)) < 0.5
    mask[:, 0] = True
    return np.where(mask, rng.normal(size=mask.shape), -np.inf).astype(F), mask


def test_no_uniform_of_few_actions_gives_an_impossible_index():
    # The uniforms beside every boundary, where rounding decides.
    logits, mask = random_masked_logits(1000, 16)
    grid = np.round(softmax(logits).cumsum(-1) * 2**23) / 2**23
    sample = jax.jit(Categorical(16).sample)
    for step in range(-4, 5):
        for k in range(16):
            u = np.clip(grid[:, k] + step * 2.0**-23, 0, HIGHEST).astype(F)
            assert mask[np.arange(1000), np.asarray(sample(logits, u))].all()


def test_no_uniform_of_many_actions_gives_an_impossible_index():
    # `cumsum` of 300 is not flat over impossible actions; the uniforms where it is not.
    logits, mask = random_masked_logits(4000, 300)
    weight = jnp.exp(logits - logits.max(-1, keepdims=True))
    cumulative = np.asarray(jax.jit(jnp.cumsum, static_argnums=1)(weight, 1))
    rises = (np.diff(cumulative) != 0) & ~mask[:, 1:]
    rows = np.flatnonzero(rises.any(-1))
    if len(rows) == 0:
        pytest.skip("flat on this platform")
    k = rises[rows].argmax(-1)
    grid = np.round(cumulative[rows, k] / cumulative[rows, -1] * 2**23) / 2**23
    sample = jax.jit(Categorical(300).sample)
    for step in range(-8, 9):
        u = np.clip(grid + step * 2.0**-23, 0, HIGHEST).astype(F)
        assert mask[rows, np.asarray(sample(logits[rows], u))].all()


def test_masked_entropy_and_log_prob():
    # p = [1, e] / (1 + e) = [.2689414, .7310586];
    # H = -.2689414 * -1.3132617 - .7310586 * -.3132617 = .5822031
    mask = jnp.array([True, True, False])
    distribution = Categorical(3)

    def both(logits):
        outputs = distributions.mask_outputs(logits, mask)
        sample = jnp.arange(3, dtype=jnp.int32)
        rows = jnp.broadcast_to(outputs, (3, 3))
        return distribution.entropy(outputs), distribution.log_prob(rows, sample)

    logits = jnp.array([1.0, 2.0, 3.0])
    entropy, log_prob = jax.jit(both)(logits)
    np.testing.assert_allclose(entropy, 0.5822031, rtol=1e-6)
    np.testing.assert_allclose(log_prob[:2], [-1.3132617, -0.3132617], rtol=1e-6)
    np.testing.assert_allclose(jnp.exp(log_prob), [0.2689414, 0.7310586, 0], rtol=1e-6)
    for gradient in jax.tree.leaves(jax.jit(jax.jacobian(both))(logits)):
        assert np.isfinite(gradient).all()


def test_a_masked_action_is_never_drawn():
    number = 1_000_000
    outputs = distributions.mask_outputs(
        jnp.array([1.0, 2.0, 30.0]), jnp.array([True, True, False])
    )

    noise = Categorical(3).noise(jax.random.key(0), (number,))
    sample = jax.jit(Categorical(3).sample)(
        jnp.broadcast_to(outputs, (number, 3)), noise
    )
    counts = np.bincount(sample, minlength=3)
    assert counts[2] == 0 and counts.sum() == number
    # 0.999 quantile of chi-square with 1 degree of freedom: 10.8.
    assert chi_square(counts[:2], number * np.array([0.2689414, 0.7310586])) < 10.8


def test_a_row_with_every_action_masked_is_uniform():
    def both(logits):
        outputs = distributions.mask_outputs(logits, jnp.zeros(4, bool))
        return Categorical(4).entropy(outputs), Categorical(4).log_prob(
            outputs, jnp.int32(1)
        )

    logits = jnp.array([1.0, 2.0, 3.0, 4.0])
    np.testing.assert_allclose(
        jax.jit(both)(logits), [np.log(4), -np.log(4)], rtol=1e-6
    )
    assert np.isfinite(jax.jit(jax.jacobian(both))(logits)).all()
    rows = np.full((4, 4), -1e9, F)
    u = np.array([0.0, 0.3, 0.6, 0.9], F)
    np.testing.assert_array_equal(Categorical(4).sample(rows, u), [0, 1, 2, 3])


def test_extreme_logits_have_finite_values_and_gradients():
    def all_of(logits):
        sample = jnp.arange(2, dtype=jnp.int32)
        rows = jnp.broadcast_to(logits, (2, 2))
        return Categorical(2).entropy(logits), Categorical(2).log_prob(rows, sample)

    both = jax.jit(values_and_jacobian(all_of))
    inf = np.inf
    for logits in ([0, -inf], [1e4, -1e4], [3e8, 0], [-1e30, -1e30], [-inf, -inf]):
        for x in jax.tree.leaves(both(np.array(logits, F))):
            assert np.isfinite(x).all()


def test_actions_begin_at_start():
    # Discrete(3, start=-1): the environment is sent -1, 0 or 1.
    distribution = distributions.for_space(Discrete(3, start=-1))
    noise = distribution.noise(jax.random.key(0), (100,))
    sample = distribution.sample(jnp.zeros((100, 3)), noise)
    assert set(np.unique(sample)) == {0, 1, 2}  # log_prob's indices
    action = distribution.to_action(sample)
    assert action.dtype == jnp.int32
    assert set(np.unique(action)) == {-1, 0, 1}
    outputs = jnp.array([[9.0, 0, 0], [0, 9, 0], [0, 0, 9]])
    greedy = distribution.to_action(distribution.mode(outputs))
    np.testing.assert_array_equal(greedy, [-1, 0, 1])


# MultiCategorical


def test_multi_categorical_is_a_product():
    distribution = MultiCategorical((2, 3, 4))
    outputs = random_outputs(distribution, (40,))
    noise = distribution.noise(jax.random.key(1), (40,))
    sample, log_prob, entropy, mode, action = everything(distribution, outputs, noise)
    outputs, noise = np.asarray(outputs), np.asarray(noise)
    parts = zip((2, 3, 4), np.split(outputs, [2, 5], -1), noise.T, strict=True)
    singles = [everything(Categorical(n), x, u) for n, x, u in parts]
    one_by_one = [np.stack(found, -1) for found in zip(*singles, strict=True)]
    np.testing.assert_array_equal(sample, one_by_one[0])
    np.testing.assert_allclose(log_prob, one_by_one[1].sum(-1), rtol=1e-6)
    np.testing.assert_allclose(entropy, one_by_one[2].sum(-1), rtol=1e-6)
    np.testing.assert_array_equal(mode, one_by_one[3])
    assert MultiDiscrete((2, 3, 4)).contains(action)
