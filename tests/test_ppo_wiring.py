"""PPO hands its parts what they need: each could be right alone, and used wrongly."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import toys

from jaxrl_par.algorithms.ppo import PPO, Batch
from jaxrl_par.envs.batched import BatchedEnv
from jaxrl_par.envs.cartpole import CartPole
from jaxrl_par.envs.probes import CountingEnv
from jaxrl_par.networks.actor_critic import MLP
from jaxrl_par.spaces import Box, Discrete
from jaxrl_par.train import step
from jaxrl_par.train.loop import train
from jaxrl_par.types import EnvSpec, StepResult, pytree

SMALL = PPO(
    network=MLP((8,)),
    rollout_length=8,
    num_epochs=1,
    num_minibatches=1,
    normalize_obs=True,
    normalize_reward=True,
)


def linear(dtype=jnp.float32):
    """Logits that are parameters, and the observation itself as value, in a dtype."""

    def apply(params, obs):
        logits, value = (params[name].astype(dtype) for name in ("logits", "value"))
        logits = jnp.broadcast_to(logits, (len(obs), 2))
        return logits, obs[:, 0].astype(dtype) + value

    return lambda key: {"logits": jnp.zeros(2), "value": jnp.zeros(())}, apply


def test_a_time_limit_is_no_termination():
    """Obs 0, 1, 2, cut at 3 (value 3), 0, 1; gamma .9, lambda .95, V(s) = s.

    Deltas 1 + .9 V' - V: 1.9, 1.8, 1.7, 1.9. Advantages, from the right: 1.9, 1.7,
    1.8 + .855 * 1.7 = 3.2535, 1.9 + .855 * 3.2535 = 4.6817. Value loss: half the
    mean of their squares, 4.8755 (1.6045 were the cut a termination).
    """
    ppo = PPO(
        network=linear(),
        rollout_length=4,
        num_epochs=1,
        num_minibatches=1,
        gamma=0.9,
        gae_lambda=0.95,
    )
    _, metrics = toys.trained(ppo, CountingEnv(max_steps=3), 1, 2)
    advantages = np.array([4.6817425, 3.2535, 1.7, 1.9])
    expected = 0.5 * np.square(advantages).mean()
    np.testing.assert_allclose(metrics["value_loss"], [expected], rtol=1e-5)


def test_values_are_clipped_around_the_acting_critic():
    """v 0, v_old -4, target 9, c .2: max(9^2, (-3.8 - 9)^2) = 163.84; times .5 * .5."""
    ppo = PPO(network=linear(), value_clip=0.2, entropy_coef=0.0)
    batch = Batch(
        obs=jnp.zeros((1, 1)),
        mask=None,
        sample=jnp.zeros(1, jnp.int32),
        log_prob=jnp.log(jnp.full(1, 0.5)),
        value=jnp.full(1, -4.0),
        advantage=jnp.zeros(1),
        target=jnp.full(1, 9.0),
    )
    spec = EnvSpec("one", Box(-1.0, 1.0, (1,)), Discrete(2))
    loss, _ = ppo._loss(spec, linear()[0](None), batch)
    np.testing.assert_allclose(loss, 40.96, rtol=1e-6)


def test_the_key_reaches_the_first_parameters():
    init = jax.jit(lambda key: step.init_state(SMALL, BatchedEnv(CartPole()), 4, key))
    one, other = (init(jax.random.key(seed)).algorithm.params for seed in (0, 1))
    kernels = [
        (x, y)
        for x, y in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
        if x.ndim == 2
    ]
    assert len(kernels) == 4
    assert all((x != y).any() for x, y in kernels)


def test_evaluating_changes_nothing():
    """Neither parameters nor statistics, though the policy uses them."""
    settings = {"num_envs": 4, "total_steps": 320, "eval_episodes": 3}
    never, often = (
        train(SMALL, CartPole(), eval_every=every, **settings).state
        for every in (None, 64)
    )
    toys.assert_equal(never, often)


@pytree
class Image:
    """A picture of bytes, drawn anew at every step."""

    spec = EnvSpec("image", Box(0, 255, (2, 2, 1), np.uint8), Discrete(2), 4)

    def reset(self, key):
        return (), jax.random.randint(key, (2, 2, 1), 0, 256).astype(jnp.uint8)

    def step(self, key, state, action):
        _, obs = self.reset(key)
        return state, StepResult(obs, jnp.float32(1), jnp.bool_(False))


def test_bytes_are_kept_as_bytes():
    """A rollout of images takes a quarter of what it would as float32."""
    for normalize in (False, True):
        ppo = dataclasses.replace(SMALL, normalize_obs=normalize)
        state, _ = toys.trained(toys.Recorder(ppo), Image(), 1, 2)
        obs = state.algorithm.last["obs"]
        assert obs.dtype == jnp.uint8
        assert obs.max() > 200


def test_a_network_may_compute_in_half_precision():
    """Parameters, and all that is summed, stay float32."""
    ppo = dataclasses.replace(SMALL, network=linear(jnp.bfloat16))
    state, metrics = toys.trained(ppo, CartPole(), 5, 4)
    for leaf in jax.tree.leaves(state.algorithm.params):
        assert leaf.dtype == jnp.float32
        assert np.isfinite(leaf).all()
        assert (leaf != 0).any()
    assert np.isfinite(metrics["loss"]).all()
