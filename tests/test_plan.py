"""Runs laid over devices: what is drawn and learned does not depend on their number."""

from __future__ import annotations

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys
from jax.sharding import PartitionSpec as P

from jaxrl_par import collectives
from jaxrl_par.algorithms.ppo import PPO
from jaxrl_par.checks import nearest_divisors
from jaxrl_par.envs.cartpole import CartPole
from jaxrl_par.envs.pendulum import Pendulum
from jaxrl_par.envs.wrappers import Instances
from jaxrl_par.networks.actor_critic import MLP
from jaxrl_par.train import plan
from jaxrl_par.train.callbacks import STOP
from jaxrl_par.train.layout import Layout
from jaxrl_par.train.loop import train
from jaxrl_par.train.plan import DeviceError, Plan, find_devices

ENVS, LENGTH, EPOCHS, MINIBATCHES = 16, 16, 2, 4
STEPS = ENVS * LENGTH
SMALL_PPO = PPO(
    network=MLP((16,)),
    rollout_length=LENGTH,
    num_epochs=EPOCHS,
    num_minibatches=MINIBATCHES,
    normalize_obs=True,
    normalize_reward=True,
)


@pytest.fixture(scope="module")
def runs():
    """Of 1, 2, 4, 8 devices: (the state after 1 update, after 5, the run).

    The run on 4 devices has 20 updates, the others stop at 5.
    """
    return {data: _run(data) for data in (1, 2, 4, 8)}


def _run(data):
    states = {}

    def keep(progress):
        states[progress.update] = progress.state
        return STOP if progress.update == 5 and data != 4 else None

    run = train(
        toys.Recorder(SMALL_PPO),
        CartPole(),
        num_envs=ENVS,
        total_steps=20 * STEPS,
        data=data,
        eval_every=5 * STEPS,  # so that a call ends at update 5
        eval_episodes=0,
        callbacks=[keep],
    )
    return states[1], states[5], run


@pytest.mark.parametrize("data", [2, 4, 8])
def test_first_rollout_is_the_same_to_the_bit(runs, data):
    one, many = runs[1][0].algorithm.last, runs[data][0].algorithm.last
    toys.assert_equal(one, many)
    assert one["terminated"].any()  # new episodes began
    assert len(np.unique(one["obs"][:, 0], axis=0)) == ENVS


@pytest.mark.parametrize("data", [2, 4, 8])
def test_parameters_agree_after_five_updates(runs, data):
    one, many = runs[1][1].algorithm, runs[data][1].algorithm
    for name, tolerance in (("params", 1e-5), ("obs_moments", 1e-4)):
        jax.tree.map(
            lambda x, y, tol=tolerance: np.testing.assert_allclose(x, y, tol, tol),
            getattr(one.learned, name),
            getattr(many.learned, name),
        )
    for name in ("loss", "approx_kl", "entropy", "episode_return", "grad_norm"):
        x, y = (runs[n][2].metrics[name][:5] for n in (1, data))
        np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-6)


def test_continuous_actions_are_the_same_to_the_bit():
    """They show the last bit of the network's output, which a discrete one hides."""
    last = [
        train(
            toys.Recorder(PPO(network=MLP((64, 64)), rollout_length=8)),
            Pendulum(),
            num_envs=ENVS,
            total_steps=8 * ENVS,
            data=data,
            eval_episodes=0,
        ).state.algorithm.last
        for data in (1, 4)
    ]
    toys.assert_equal(*last)


def test_replicas_stay_equal(runs):
    """After 20 updates on 4 devices: parameters, optimiser and normalisers, exactly."""
    state = runs[4][2].state
    assert int(state.update) == 20
    for leaf in jax.tree.leaves((state.algorithm.learned, state.update)):
        copies = [np.asarray(shard.data) for shard in leaf.addressable_shards]
        assert len(copies) == 4
        assert all((copy == copies[0]).all() for copy in copies)
    assert state.algorithm.learned.opt_state.count == 20 * EPOCHS * MINIBATCHES
    assert state.algorithm.learned.obs_moments.count == 20 * STEPS


def test_environments_are_split(runs):
    """Each of 4 devices holds a quarter of what belongs to environments."""
    state = runs[4][2].state
    parts = (
        state.env,
        state.obs,
        state.first,
        state.episode_return,
        state.algorithm.last,
    )
    parts += (state.algorithm.last, state.algorithm.running_return)
    for leaf in jax.tree.leaves(parts):
        shapes = {shard.data.shape[0] for shard in leaf.addressable_shards}
        assert shapes == {ENVS // 4}


def test_steps_are_counted_over_all_devices(runs):
    """2 devices x 8 environments x 16 steps x 5 updates."""
    _, state, run = runs[2]
    assert run.env_steps == 1280
    assert run.metrics["env_steps"][-1] == 1280
    assert int(state.update) == len(run.metrics["update"]) == 5
    assert run.metrics["gradient_steps"].sum() == 5 * EPOCHS * MINIBATCHES


@pytest.mark.parametrize("data", [2, 4, 8])
def test_gradient_is_the_mean_over_all_samples(data):
    """By plain differences of a quadratic; a sum would be `data` times as large."""
    layout = Layout(tuple(jax.devices()[:data]))
    inputs = jax.random.normal(jax.random.key(0), (16, 3))
    targets = jax.random.normal(jax.random.key(1), (16,))

    def loss(params, batch):
        x, y = batch
        return jnp.square(x @ params["w"] + params["b"] - y).mean(), {"mean": y.mean()}

    params = {"w": jnp.arange(3.0), "b": jnp.float32(0.5)}
    expected = jax.grad(lambda p: loss(p, (inputs, targets))[0])(params)
    alone = collectives.gradient(loss, params, (inputs, targets), ())
    for check_vma in (False, True):
        shared = jax.jit(
            jax.shard_map(
                lambda p, batch: collectives.gradient(loss, p, batch, layout.axes),
                mesh=layout.mesh,
                in_specs=(P(), P(layout.axes)),
                out_specs=P(),
                check_vma=check_vma,
            )
        )(params, (inputs, targets))
        for gradient, aux in (alone, shared):
            jax.tree.map(
                lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-6),
                gradient,
                expected,
            )
            np.testing.assert_allclose(aux["mean"], targets.mean(), rtol=1e-6)


def test_instances_keep_their_physics_on_any_device():
    """Eight gravities: the same rollouts and evaluation on one device and on two."""
    env = Instances.of(CartPole(), 8, gravity=jnp.linspace(1.0, 30.0, 8))
    settings = {"num_envs": 8, "total_steps": 4 * 8 * 12, "eval_episodes": 16}
    both = [
        train(toys.Tally(rollout_length=12), env, data=data, **settings)
        for data in (1, 2)
    ]
    np.testing.assert_array_equal(*(run.evaluation.returns for run in both))
    one, two = (run.state for run in both)
    toys.assert_equal(one.algorithm.last, two.algorithm.last)
    toys.assert_equal(one.env, two.env)
    last = one.algorithm.last
    steps = jax.vmap(
        lambda physics, state, action: physics.step(None, state, action)[1].obs,
        (None, 0, 0),
    )
    obs = jax.jit(jax.vmap(steps))(env.env, last["obs"], last["action"])
    on = ~last["terminated"]
    np.testing.assert_allclose(obs[on], last["next_obs"][on], rtol=1e-5, atol=1e-6)


def test_instances_must_be_as_many_as_environments():
    env = Instances.of(CartPole(), 8)
    with pytest.raises(ValueError, match=r"num_envs 4 must be the number of Instances"):
        train(toys.Tally(), env, num_envs=4)


def test_sizes_that_do_not_divide_are_refused_with_the_nearest():
    algorithm = PPO()
    with pytest.raises(ValueError, match=r"data 3 must divide 8.*nearest: \[2, 4\]"):
        Plan(data=3).settle(algorithm, 16)
    with pytest.raises(ValueError, match=r"data 8 .*num_envs 12 .*nearest: \[4\]"):
        Plan(data=8).settle(algorithm, 12)
    with pytest.raises(ValueError, match=r"data 16 .* at most .*cpu devices, 8"):
        Plan(data=16).settle(algorithm, 64)
    for data in (0, -1, 2.5, True, "2"):
        with pytest.raises(ValueError, match=f"data {data!r} must be a whole number"):
            Plan(data=data)


def test_a_device_that_is_not_there_is_refused_with_the_cause():
    with pytest.raises(DeviceError, match=r"no gpu backend, only cpu.*cuda12") as error:
        Plan(device="gpu").settle(PPO(), 64)
    assert jax.__version__ in str(error.value)
    with pytest.raises(DeviceError, match=r"tpu.*jaxrl_par\[tpu\]"):
        find_devices("tpu")
    with pytest.raises(ValueError, match="device 'cuda' must be one of auto, cpu, gpu"):
        Plan(device="cuda")
    assert {d.platform for d in find_devices("auto")} == {"cpu"}


def test_a_missing_gpu_is_explained_by_the_drivers_version(monkeypatch):
    text = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  390.48\nGCC version: 7"
    monkeypatch.setattr(plan.Path, "read_text", lambda path: text)
    with pytest.raises(DeviceError, match=r"driver says .*390\.48'"):
        find_devices("gpu")


def test_automatic_layout_uses_devices_that_pay():
    algorithm = PPO(rollout_length=128)
    sizes = {n: len(Plan().settle(algorithm, n).devices) for n in (1, 8, 32, 64, 256)}
    assert sizes == {1: 1, 8: 1, 32: 2, 64: 4, 256: 8}
    assert len(Plan().settle(algorithm, 12 * 33).devices) == 4


def test_nearest_divisors():
    assert nearest_divisors(3, 8) == [2, 4]
    assert nearest_divisors(9, 8) == [8]
    assert nearest_divisors(7, 12) == [6, 12]


@pytest.mark.parametrize(
    ("flags", "expected"),
    [("", 3), ("--xla_force_host_platform_device_count=2", 2)],
)
def test_cpu_cores_become_devices_unless_the_user_chose(flags, expected):
    code = (
        "import jaxrl_par as jp; jp.use_cpu_cores(3); import jax; "
        "print(len(jax.devices())); jp.use_cpu_cores(5); print(len(jax.devices()))"
    )
    environment = {**os.environ, "XLA_FLAGS": flags}
    result = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.split() == [str(expected)] * 2
