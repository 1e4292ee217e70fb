"""Normal policies, and what all distributions share, against NumPy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from policies import everything, random_outputs, values_and_jacobian

from jaxrl_par import distributions
from jaxrl_par.distributions import Categorical, MultiCategorical, Normal, TanhNormal
from jaxrl_par.spaces import Box, Dict, Discrete, MultiDiscrete

F = np.float32
UNIT = Box(-1.0, 1.0, (1,))
EACH = [
    Categorical(5),
    MultiCategorical((2, 3, 4)),
    Normal(Box(-1.0, 1.0, (3,))),
    TanhNormal(Box(-1.0, 1.0, (3,))),
]
each = pytest.mark.parametrize("distribution", EACH, ids=lambda d: type(d).__name__)


# Normal and TanhNormal


def test_normal_matches_numpy():
    distribution = Normal(Box(-1.0, 1.0, (3,)))
    outputs = random_outputs(distribution, (40,))
    noise = distribution.noise(jax.random.key(0), (40,))
    found, log_prob, entropy, mode, _ = everything(distribution, outputs, noise)
    mean, log_std = np.split(np.asarray(outputs, np.float64), 2, -1)
    std, noise = np.exp(log_std), np.asarray(noise)
    sample = mean + std * noise
    np.testing.assert_allclose(found, sample, rtol=1e-5, atol=1e-6)
    density = np.exp(-(((sample - mean) / std) ** 2) / 2) / (std * np.sqrt(2 * np.pi))
    np.testing.assert_allclose(log_prob, np.log(density).sum(-1), rtol=1e-4)
    expected = np.log(std * np.sqrt(2 * np.pi * np.e)).sum(-1)
    np.testing.assert_allclose(entropy, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(mode, mean, rtol=1e-6)


def test_normal_draws_have_mean_and_deviation():
    outputs = jnp.broadcast_to(jnp.array([1.0, -2.0, 0.0, -1.0]), (100_000, 4))
    distribution = Normal(Box(-9.0, 9.0, (2,)))
    noise = distribution.noise(jax.random.key(0), (100_000,))
    sample = np.asarray(distribution.sample(outputs, noise))
    np.testing.assert_allclose(sample.mean(0), [1, -2], atol=0.015)
    np.testing.assert_allclose(sample.std(0), [1, np.exp(-1)], atol=0.01)


def test_tanh_normal_density_integrates_to_one():
    # Midpoint rule in a = tanh(u) over (-1, 1), where the density lives.
    edges = np.linspace(-1, 1, 20_001)
    sample = np.arctanh((edges[1:] + edges[:-1]) / 2)[:, None].astype(F)
    log_prob = jax.jit(TanhNormal(UNIT).log_prob)
    for mean, std in ((0.0, 0.3), (1.0, 0.3), (0.0, 1.0), (1.0, 1.0)):
        outputs = np.full((20_000, 2), [mean, np.log(std)], F)
        density = np.exp(log_prob(outputs, sample))
        np.testing.assert_allclose((density * np.diff(edges)).sum(), 1, atol=1e-3)


def test_tanh_normal_is_the_change_of_variables():
    distribution = TanhNormal(Box(-1.0, 1.0, (3,)))
    outputs = random_outputs(distribution, (40,))
    noise = distribution.noise(jax.random.key(0), (40,))
    sample, log_prob, *_ = everything(distribution, outputs, noise)
    _, normal, *_ = everything(Normal(distribution.box), outputs, noise)
    slope = 1 - np.tanh(np.asarray(sample, np.float64)) ** 2
    expected = normal - np.log(slope).sum(-1)
    np.testing.assert_allclose(log_prob, expected, rtol=1e-4, atol=1e-4)


def test_log_prob_of_a_saturated_sample():
    # mu 10, sigma .1, u 10, of which tanh is 1.0 in float32.
    # log N = -log .1 - .5 log 2 pi = 2.3025851 - .9189385      =   1.3836466
    # log(1 - tanh^2) = 2 (log 2 - 10 - softplus(-20))          = -18.6137056
    distribution = TanhNormal(UNIT)
    sample = jnp.array([10.0])
    assert jnp.tanh(sample) == 1.0

    outputs = np.array([10.0, np.log(0.1)], F)
    both = jax.jit(jax.value_and_grad(distribution.log_prob))
    log_prob, gradient = both(outputs, sample)
    np.testing.assert_allclose(log_prob, 19.9973522, atol=1e-3)
    assert np.isfinite(gradient).all()


def test_tanh_normal_entropy_is_the_mean_of_minus_log_prob():
    z = np.linspace(-8, 8, 1001)  # a grid of quantiles instead of draws: no noise
    weight = np.exp(-(z**2) / 2)
    for std, within in ((0.3, 1e-3), (1.0, 1e-3), (2.0, 0.03)):
        for mean in (0.0, 1.0, -3.0):
            outputs = np.full((1001, 2), [mean, np.log(std)], F)
            noise = z[:, None].astype(F)
            _, log_prob, entropy, *_ = everything(TanhNormal(UNIT), outputs, noise)
            expected = -np.average(log_prob, weights=weight)
            np.testing.assert_allclose(entropy[0], expected, atol=within)


@pytest.mark.parametrize("distribution", [Normal(UNIT), TanhNormal(UNIT)], ids=repr)
def test_extreme_deviations_have_finite_values_and_gradients(distribution):
    def all_of(outputs):
        sample = distribution.sample(outputs, jnp.array([1.5]))
        elsewhere = distribution.log_prob(outputs, jnp.array([3.0]))
        log_prob = distribution.log_prob(outputs, sample)
        return elsewhere, log_prob, distribution.entropy(outputs)

    both = jax.jit(values_and_jacobian(all_of))
    for log_std in (-1e3, -30.0, 0.0, 30.0, 1e3):
        for x in jax.tree.leaves(both(np.array([1e3, log_std], F))):
            assert np.isfinite(x).all()


# All of them


@each
def test_leading_axes_are_free(distribution):
    outputs = random_outputs(distribution)
    noise = distribution.noise(jax.random.key(0), (7, 6))
    grid = everything(distribution, outputs, noise)
    assert grid[1].shape == grid[2].shape == (7, 6)
    outputs, noise = np.asarray(outputs), np.asarray(noise)
    one = everything(distribution, outputs[2, 3], noise[2, 3])
    for found, expected in zip(grid, one, strict=True):
        np.testing.assert_allclose(found[2, 3], expected, rtol=1e-5)


@each
def test_the_score_has_mean_zero(distribution):
    # E[grad log p] = 0 for any normalised density: draws and density are of one law.
    number = 50_000
    outputs = np.asarray(random_outputs(distribution, (), seed=3))
    rows = np.broadcast_to(outputs, (number, distribution.num_outputs))
    noise = distribution.noise(jax.random.key(5), (number,))

    @jax.jit
    def scores(rows, noise):
        sample = distribution.sample(rows, noise)
        return jax.vmap(jax.grad(distribution.log_prob))(rows, sample)

    score = np.asarray(scores(rows, noise))
    error = score.std(0) / np.sqrt(number)
    assert (abs(score.mean(0)) < 4.5 * error + 1e-6).all()


@each
def test_statistics_are_float32_when_fed_half_precision(distribution):
    half = np.asarray(random_outputs(distribution).astype(jnp.bfloat16))
    noise = distribution.noise(jax.random.key(0), (7, 6))
    found = everything(distribution, half, noise)
    assert {str(x.dtype) for x in found} <= {"float32", "int32"}
    exact = everything(distribution, half.astype(F), noise)
    for x, y in zip(found, exact, strict=True):
        np.testing.assert_array_equal(x, y)


# To the environment's units


@pytest.mark.parametrize("squash", [False, True])
def test_actions_are_scaled_to_each_dimension_of_a_box(squash):
    # -1, 0, .5, 1 become 0, 2.5, 3.75, 5 in [0, 5]; 0, .5, .75, 1 in [0, 1];
    # -1, 1, 2, 3 in [-1, 3]. Before tanh: .5 is atanh(.5), and +-20 is +-1 to the bit.
    box = Box(np.array([0.0, 0.0, -1.0]), np.array([5.0, 1.0, 3.0]))
    unit = [-20, 0, np.arctanh(0.5), 20] if squash else [-1, 0, 0.5, 1]
    sample = jnp.asarray(np.repeat(np.array(unit, F)[:, None], 3, axis=1))
    action = distributions.for_space(box, squash).to_action(sample)
    expected = [[0, 0, -1], [2.5, 0.5, 1], [3.75, 0.75, 2], [5, 1, 3]]
    np.testing.assert_allclose(action, expected, rtol=1e-6)


@pytest.mark.parametrize("squash", [False, True])
def test_actions_never_leave_the_box(squash):
    box = Box(np.array([[-0.1, 0.3], [-7.0, 1.0]]), np.array([[0.7, 0.9], [7.0, 1.1]]))
    distribution = distributions.for_space(box, squash)
    outputs = 30 * random_outputs(distribution, (200,))
    noise = distribution.noise(jax.random.key(0), (200,))
    *_, action = everything(distribution, outputs, noise)
    assert (action.shape, action.dtype) == ((200, 2, 2), jnp.float32)
    assert box.contains(np.asarray(action))


def test_an_unbounded_box_is_clipped_to_the_bounds_it_has():
    box = Box(np.array([-np.inf, 0.0]), np.array([np.inf, np.inf]))
    sample = jnp.array([[-5.0, -5.0], [7.0, 7.0]])
    action = distributions.for_space(box).to_action(sample)
    np.testing.assert_array_equal(action, [[-5, 0], [7, 7]])


@pytest.mark.parametrize(
    ("box", "message"),
    [
        (Box(-np.inf, np.inf, (2,)), r"dimension \(0,\).* low -inf, high inf"),
        (Box(0.0, np.array([1.0, np.inf])), r"dimension \(1,\).* low 0.0, high inf"),
        (Box(1.0, 1.0, (1,)), r"dimension \(0,\).* low 1.0, high 1.0"),
        (Box(-3e38, 3e38, (1,)), r"dimension \(0,\).* low -3.0+5\d*e\+38, high 3.0+5"),
    ],
    ids=repr,
)
def test_squashing_needs_finite_bounds(box, message):
    with pytest.raises(ValueError, match=message):
        distributions.for_space(box, squash=True)


@pytest.mark.parametrize(
    "space",
    [Box(0, 3, (2,), np.dtype(np.int32)), Dict((("a", Discrete(2)),))],
    ids=["integers", "dictionary"],
)
def test_other_action_spaces_are_refused(space):
    with pytest.raises(ValueError, match="must be Discrete, MultiDiscrete or a float"):
        distributions.for_space(space)


def test_distributions_are_equal_by_value():
    for space in (Discrete(3), MultiDiscrete((2, 3)), Box(-1.0, 1.0, (2,))):
        one, other = distributions.for_space(space), distributions.for_space(space)
        assert one == other and hash(one) == hash(other)
