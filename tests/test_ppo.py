"""PPO within the engine: rates, ratios, limits on the KL, normalisers, refusals.

One gradient step an update (`ONE_STEP`) makes what a step does exact to check.
"""

from __future__ import annotations

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys

from jaxrl_par import normalize
from jaxrl_par.algorithms.ppo import PPO
from jaxrl_par.envs.batched import BatchedEnv
from jaxrl_par.envs.cartpole import CartPole
from jaxrl_par.envs.pendulum import Pendulum
from jaxrl_par.envs.probes import CountingEnv
from jaxrl_par.networks import base
from jaxrl_par.networks.actor_critic import MLP
from jaxrl_par.spaces import Box
from jaxrl_par.train import step
from jaxrl_par.train.evaluate import Evaluator
from jaxrl_par.train.loop import TrainConfig, Trainer, train
from jaxrl_par.types import pytree, static

ENVS, LENGTH = 4, 8
STEPS = ENVS * LENGTH
SMALL = MLP((8,))
ONE_STEP = PPO(
    network=SMALL,
    rollout_length=LENGTH,
    num_epochs=1,
    num_minibatches=1,
    learning_rate=0.1,
    normalize_obs=True,
    normalize_reward=True,
)


def run(algorithm, env, updates, num_envs=ENVS, seed=0):
    return toys.trained(algorithm, env, updates, num_envs, seed)


def finite(tree):
    return all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(tree))


def different(one, other):
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all((x != y).any() for x, y in pairs)


@pytest.fixture(scope="module")
def steady():
    """19 updates on Steady: (rows, states after each, trainer)."""
    config = TrainConfig(
        num_envs=ENVS, total_steps=19 * STEPS, eval_every=STEPS, eval_episodes=0
    )
    trainer = Trainer(ONE_STEP, toys.Steady(), config)
    rows, states = [], []

    def keep(progress):
        rows.extend(progress.rows)
        states.append(progress.state.algorithm)

    trainer.run([keep])
    return rows, states, trainer


def test_learning_rate_is_a_staircase_an_update(steady):
    """lr 0.1, 19 updates: 0.1, 0.0947368, ..., 0.0052632; after the end 0, not less."""
    rows, _, trainer = steady
    rates = [row["learning_rate"] for row in rows]
    np.testing.assert_allclose(rates, 0.1 * (1 - np.arange(19) / 19), rtol=1e-5)
    np.testing.assert_allclose(rates[1::17], [0.0947368, 0.0052632], rtol=1e-5)
    before = jax.tree.map(np.asarray, trainer.state.algorithm.params)
    late = trainer.advance(2)[0]
    assert [row["learning_rate"] for row in late] == [0, 0]
    toys.assert_equal(before, trainer.state.algorithm.params)


def test_the_logged_rate_is_the_one_used(steady):
    """Change of the parameters = -rate * m / (sqrt(v) + eps), Adam's own m and v."""
    rows, states, _ = steady
    for update in (1, 2, 10, 18):
        adam = states[update].opt_state
        count = update + 1
        assert adam.count == count
        m, v = adam.mu / (1 - 0.9**count), adam.nu / (1 - 0.999**count)
        expected = -rows[update]["learning_rate"] * m / (np.sqrt(v) + 1e-5)
        old, new = (
            np.concatenate([x.ravel() for x in jax.tree.leaves(states[i].params)])
            for i in (update - 1, update)
        )
        np.testing.assert_allclose(new - old, expected, rtol=1e-3, atol=1e-6)


def test_the_first_gradient_step_has_ratio_one(steady):
    """What acted is what is differentiated: normaliser, sample and all."""
    rows, _, _ = steady
    assert len(rows) == 19
    for row in rows:
        assert row["approx_kl"] < 1e-9
        assert row["clip_fraction"] == 0
        assert row["gradient_steps"] == 1


def test_the_network_sees_normalised_observations(steady):
    _, states, trainer = steady
    state, obs = states[-1], jnp.array([[0.5, 0.1], [0.9, 0.7]])
    spec = trainer.env.spec
    noise = jnp.full(2, 0.5)
    _, _, extras = ONE_STEP.act(state, (), obs, noise, greedy=False)
    seen = normalize.normalize(state.obs_moments, obs)
    assert (jnp.abs(seen - obs) > 0.1).any()
    outputs, value = base.build(SMALL, spec).apply(state.params, seen)
    np.testing.assert_allclose(extras["value"], value, rtol=1e-6)
    _, action, _ = ONE_STEP.act(state, (), obs, None, greedy=True)
    np.testing.assert_array_equal(action, outputs.argmax(-1))


def test_evaluation_reports_raw_rewards(steady):
    """Ten steps of reward 1 are 10.0, though training saw normalised rewards."""
    _, states, _ = steady
    state, env = states[-1], BatchedEnv(toys.Steady(max_steps=10))
    assert abs(state.return_moments.var - 1) > 0.1
    before = jax.tree.map(np.asarray, state)
    result = Evaluator(100)(ONE_STEP, env, state, jax.random.key(0))
    np.testing.assert_array_equal(result.returns, np.full(100, 10.0))
    toys.assert_equal(before, state)


def test_rewards_are_scaled_by_the_deviation_of_returns():
    """So their scale is of no effect: 1 or 1000, the same losses and gradients."""
    (one, few), (thousand, many) = (
        run(ONE_STEP, toys.Steady(pay=pay), 6) for pay in (1.0, 1000.0)
    )
    for name in ("value_loss", "policy_loss", "grad_norm"):
        np.testing.assert_allclose(few[name], many[name], rtol=0.01, atol=1e-4)
    small, large = (s.algorithm.return_moments.var for s in (one, thousand))
    np.testing.assert_allclose(large, 1e6 * small, rtol=1e-3)


def test_counts_and_sums_are_exact_after_a_thousand_updates():
    """Where numbers of 8 bits would stick at 256."""
    state, metrics = run(ONE_STEP, toys.Steady(), 1000)
    state = state.algorithm
    assert state.opt_state.count == 1000
    assert state.obs_moments.count == state.return_moments.count == 1000 * STEPS
    count = metrics["episode_count"]
    np.testing.assert_array_equal(metrics["episode_return_sum"], 300 * count)
    np.testing.assert_array_equal(metrics["episode_length_sum"], 300 * count)
    assert count.sum() == ENVS * (8000 // 300)
    dtypes = {leaf.dtype for leaf in jax.tree.leaves(state.params)}
    assert dtypes == {np.dtype(np.float32)}


def test_vmapped_seeds_are_the_single_runs():
    """Of seeds 0, 1, 2 side by side, the last after 10 updates; and they differ."""
    env = BatchedEnv(toys.Steady())

    @toys.quick_jit
    @jax.vmap
    def side_by_side(key):
        state = step.init_state(ONE_STEP, env, ENVS, key)
        count = jnp.int32(10)
        return step.chunk(ONE_STEP, env, state, jnp.float32(10), count, 10, ())[:2]

    def work():
        with jax.debug_key_reuse(False):  # it misreads keys that vmap transposes
            seeds = jnp.arange(3)
            keys = jax.vmap(lambda s: jax.random.split(jax.random.key(s))[0])(seeds)
            return jax.device_get(jax.tree.map(toys.host, side_by_side(keys)))

    states, table = toys.within(120, work)
    single, metrics = run(ONE_STEP, toys.Steady(), 10, seed=2)
    rows = [jax.tree.map(lambda x, i=i: x[i], states.algorithm.params) for i in (0, 2)]
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5),
        rows[1],
        single.algorithm.params,
    )
    np.testing.assert_allclose(table["entropy"][2], metrics["entropy"], 1e-5)
    assert different(*rows)


def test_minibatches_of_one_and_nothing_to_learn_stay_finite():
    """One environment, one sample a minibatch, zero observations and rewards."""
    algorithm = PPO(
        network=SMALL,
        rollout_length=4,
        num_minibatches=4,
        normalize_obs=True,
        normalize_reward=True,
    )
    state, metrics = run(algorithm, toys.Nothing(), 10, num_envs=1)
    assert finite(jax.tree.map(toys.host, state))
    assert finite(metrics)
    assert (metrics["gradient_steps"] == 16).all()
    assert state.update == 10


def test_running_returns_start_afresh_at_a_truncation():
    """gamma 0.9, cut after 3: 1, 1.9, 2.71, 1, 1.9; mean 1.702, variance 0.4160."""
    algorithm = dataclasses.replace(ONE_STEP, rollout_length=5, gamma=0.9)
    env = BatchedEnv(CountingEnv(max_steps=3))

    @toys.quick_jit
    def first_update(key):
        state = step.init_state(algorithm, env, 1, key)
        state, *_ = step.train_step(algorithm, env, state, jnp.float32(1), ())
        return state.algorithm.return_moments, state.algorithm.running_return

    moments, carried = first_update(jax.random.key(0))
    np.testing.assert_allclose(moments.mean, 1.702, rtol=1e-5)
    np.testing.assert_allclose(moments.var, 0.4160, atol=5e-5)
    np.testing.assert_allclose(carried, [1.9], rtol=1e-6)


def kl_limited(target_kl, adaptive_kl):
    algorithm = PPO(
        network=SMALL,
        rollout_length=LENGTH,
        learning_rate=0.02,
        anneal=False,
        target_kl=target_kl,
        adaptive_kl=adaptive_kl,
    )
    return run(algorithm, toys.Steady(), 5)


def test_target_kl_stops_the_gradient_steps():
    """The first step (KL 0) is made, and the one that exceeds; no other."""
    (_, free), (state, limited) = kl_limited(1e9, 1e9), kl_limited(1e-9, 1e-9)
    assert (free["gradient_steps"] == 16).all()
    steps = limited["gradient_steps"]
    assert (steps >= 1).all() and (steps <= 3).all()
    assert state.algorithm.opt_state.count == steps.sum()
    # Means are over the steps that were made.
    entropy = limited["entropy"]
    assert (entropy > 0.9).all() and (entropy <= np.log(3) + 1e-5).all()


def test_adaptive_kl_moves_the_rate():
    """By 1.5 an update: up far below the wanted KL, down far above."""
    (_, low), (_, high) = kl_limited(1e9, 1e9), kl_limited(1e9, 1e-9)
    powers = 1.5 ** np.arange(5)
    np.testing.assert_allclose(low["learning_rate"], 0.02 * powers, rtol=1e-5)
    np.testing.assert_allclose(high["learning_rate"], 0.02 / powers, rtol=1e-5)


def no_policy_loss(log_ratio, advantage, clip_eps):
    return 0 * log_ratio


def test_the_policy_loss_is_a_field():
    """One that is always 0, without entropy: the actor stays, the critic learns."""
    algorithm = PPO(
        network=SMALL,
        rollout_length=LENGTH,
        num_epochs=1,
        policy_loss=no_policy_loss,
        entropy_coef=0.0,
        value_clip=0.5,
        normalize_advantage=False,
        microbatch_size=3,
    )
    before, _ = run(algorithm, toys.Steady(), 0)
    after, metrics = run(algorithm, toys.Steady(), 3)
    before, after = (s.algorithm.params["params"] for s in (before, after))
    assert (metrics["policy_loss"] == 0).all()
    actor = [name for name in after if "actor" in name]
    critic = [name for name in after if "critic" in name]
    assert actor and critic
    for name in actor:
        toys.assert_equal(before[name], after[name])
    for name in critic:
        assert not np.allclose(
            jax.tree.leaves(before[name])[-1], jax.tree.leaves(after[name])[-1]
        )


WRONG = {
    "learning_rate": (0.0, -1.0, float("nan"), float("inf"), "fast", True),
    "gamma": (-0.1, 1.1, float("nan")),
    "gae_lambda": (2.0,),
    "entropy_coef": (-0.01,),
    "max_grad_norm": (0.0,),
    "target_kl": (0.0, -1.0),
    "adaptive_kl": (float("nan"),),
    "value_clip": (0.0,),
    "rollout_length": (0, 1.5, True),
    "num_epochs": (0,),
    "num_minibatches": (0, -2),
    "num_groups": (0,),
    "microbatch_size": (0,),
    "clip_eps": (-0.1, np.array([0.1, 0.2]), [0.1]),
    "anneal": ("no", None),
    "normalize_obs": (1,),
    "policy_loss": (None, "clip", lambda a, b: a, lambda a, b, c: a.mean()),
}


@pytest.mark.parametrize(
    ("name", "value"), [(k, v) for k, values in WRONG.items() for v in values]
)
def test_settings_out_of_range_are_refused(name, value):
    algorithm = dataclasses.replace(PPO(), **{name: value})
    with pytest.raises(ValueError, match=re.escape(f"{name} {value!r} must be")):
        train(algorithm, CartPole())


def test_minibatches_must_divide_the_samples():
    message = r"num_minibatches 7 must divide .*128 \* 8; nearest: \[4, 8\]"
    with pytest.raises(ValueError, match=message):
        train(PPO(num_minibatches=7), CartPole(), num_envs=64)


@pytree
class Unbounded(Pendulum):
    """Pendulum with a wrong action space."""

    bounds: tuple = static(default=(-np.inf, np.inf, (2,)))

    @property
    def spec(self):
        return dataclasses.replace(super().spec, action_space=Box(*self.bounds))


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ((-np.inf, np.inf, (2,)), r"dimension \(0,\) .* low -inf, high inf"),
        ((0.0, np.inf, (1,)), r"dimension \(0,\) .* low 0\.0, high inf"),
        (
            ((0.0, 0.0), (1.0, 0.0)),
            r"dimension \(1,\).* low 0\.0, high 0\.0",
        ),
    ],
    ids=["infinite", "one-sided", "empty"],
)
def test_squashing_needs_bounds(bounds, message):
    env = Unbounded(bounds=bounds)
    with pytest.raises(ValueError, match=message):
        train(PPO(squash=True), env)
    PPO().validate(env.spec, 64)  # without squash it may run
