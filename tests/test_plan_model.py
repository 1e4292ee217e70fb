"""Parameters split over devices: what is learned does not depend on it."""

from __future__ import annotations

import re
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxrl_par as jp
from jaxrl_par import collectives
from jaxrl_par.collectives import Split, whole
from jaxrl_par.networks.partition import Partition
from jaxrl_par.train import guards
from jaxrl_par.train.loop import Trainer

UPDATES = 5
PPO = jp.PPO(network=jp.MLP((128, 128)), rollout_length=8, num_minibatches=2)
BODY = jp.Body((128, 128))
OFF_POLICY = {"capacity": 512, "batch_size": 16, "learning_starts": 32}
ALGORITHMS = {
    "ppo": (PPO, "CartPole-v1"),
    "dqn": (
        jp.DQN(network=BODY, rollout_length=4, train_every=8, **OFF_POLICY),
        "CartPole-v1",
    ),
    "sac": (
        jp.SAC(network=BODY, rollout_length=4, train_every=8, **OFF_POLICY),
        "Pendulum-v1",
    ),
}
# (data, model, zero)
CASES = [
    *(("ppo", *mesh) for mesh in ((8, 1, 1), (8, 1, 3), (4, 2, 0), (2, 4, 1))),
    *(("ppo", *mesh) for mesh in ((2, 4, 3), (1, 8, 0))),
    *(("dqn", *mesh) for mesh in ((8, 1, 3), (4, 2, 1), (1, 8, 0))),
    *(("sac", *mesh) for mesh in ((8, 1, 1), (2, 4, 3), (1, 8, 0))),
]


def run(name, data, model, **settings):
    algorithm, env = ALGORITHMS[name]
    return jp.train(
        algorithm,
        jp.make(env),
        num_envs=16,
        total_steps=UPDATES * 16 * algorithm.rollout_length,
        data=data,
        model=model,
        min_split=32,
        eval_episodes=4,
        **settings,
    )


@pytest.fixture(scope="module")
def one_device():
    return {name: run(name, 1, 1) for name in ALGORITHMS}


@pytest.mark.parametrize(("name", "data", "model", "zero"), CASES)
def test_parameters_agree_on_every_mesh(one_device, name, data, model, zero):
    expected, found = one_device[name], run(name, data, model, zero=zero)
    assert len(found.config["devices"]) == 8
    check_parts(found.params, model * (data if zero == 3 else 1))
    learned = found.state.algorithm
    adam = getattr(learned, "learner", learned).opt_state
    check_parts(adam.mu, model * (data if zero else 1))
    for a, b in zip(
        *map(jax.tree.leaves, (expected.params, found.params)), strict=True
    ):
        np.testing.assert_allclose(a, b, atol=1e-5)
    assert found.evaluations[-1][1].mean_return == pytest.approx(
        expected.evaluations[-1][1].mean_return, rel=1e-3
    )


def check_parts(tree, parts):
    """Hidden layers' kernels lie in so many parts, each on its own devices."""
    kernels = [leaf for leaf in jax.tree.leaves(tree) if leaf.shape[-2:] == (128, 128)]
    assert kernels
    for leaf in kernels:
        assert np.prod(leaf.sharding.shard_shape(leaf.shape)) * parts == leaf.size


def test_built_in_layers_are_split_by_outputs_then_by_inputs():
    partition = Partition(min_size=1)
    kernel = "params/actor_torso/Dense_%d/kernel"
    assert partition.dimension(kernel % 0, (4, 64), 4) == 1
    assert partition.dimension(kernel % 1, (64, 64), 4) == 0
    assert partition.dimension("critics/" + kernel % 1, (2, 64, 64), 4) == 1
    assert partition.dimension("1/mu/" + kernel % 12, (64, 64), 4) == 1


def test_other_parameters_are_split_along_the_largest_dimension_that_divides():
    partition = Partition(min_size=100)
    assert partition.dimension("w", (6, 10, 9), 2) == 1
    assert partition.dimension("w", (12, 10, 9), 3) == 0
    assert partition.dimension("w", (7, 11, 5), 2) is None
    assert partition.dimension("w", (9, 11), 3) is None  # 99 elements
    assert partition.dimension("w", (64, 64), 4) == 0  # of equals the first


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (("Dense_0/kernel", 5), "has no dimension 5"),
        (("Dense_0/kernel", 0), "must divide by model 8"),
        (("Dense_0/(", 0), "must be a pair"),
        (("Dense_0/kernel",), "must be a pair"),
        (("Dense_0/kernel", 1.0), "must be a pair"),
    ],
)
def test_impossible_rules_are_refused(rule, words):
    with pytest.raises(ValueError, match=words):
        run("ppo", 1, 8, split=(rule,))


def test_a_rule_may_keep_a_parameter_whole():
    partition = Partition((("torso", None), ("kernel", -1)), min_size=1)
    assert partition.dimension("actor_torso/Dense_0/kernel", (4, 64), 4) is None
    assert partition.dimension("policy_head/kernel", (4, 64), 4) == 1


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"data": 4, "model": 4}, r"data \* model = 4 \* 4 must be at most"),
        ({"data": 1, "model": 3}, "model 3 splits nothing"),
        ({"data": 1, "model": 0}, "model 0 must be a whole number"),
        ({"data": 1, "model": 1, "zero": 1}, "zero 1 splits nothing over data 1"),
        ({"data": 8, "model": 1, "zero": 2}, "zero 2 must be one of 0, 1, 3"),
    ],
)
def test_impossible_meshes_are_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        run("ppo", **settings)


def test_a_run_goes_on_over_another_mesh(tmp_path, one_device):
    """Saved in parts, restored in others."""
    begin = run("ppo", 2, 2, zero=1, out=tmp_path / "run")
    longer = {"total_steps": 2 * begin.env_steps}
    found = jp.resume(tmp_path / "run", data=2, model=4, zero=3, **longer)
    assert len(found.config["devices"]) == 8
    other = run("ppo", 1, 1, out=tmp_path / "one")
    expected = jp.resume(tmp_path / "one", **longer)
    del other
    for a, b in zip(
        *map(jax.tree.leaves, (expected.params, found.params)), strict=True
    ):
        np.testing.assert_allclose(a, b, atol=1e-4)


def collectives_of(zero):
    """How often the compiled program of PPO over 8 devices has each."""
    algorithm, env = ALGORITHMS["ppo"]
    settings = {"num_envs": 16, "total_steps": 1000, "eval_episodes": 0}
    config = jp.TrainConfig(**settings, data=8, zero=zero, min_split=1024)
    trainer = Trainer(algorithm, jp.make(env), config)
    trainer.compile()
    text = trainer.executable.call.as_text()
    return Counter(re.findall(r" (all-reduce|reduce-scatter|all-gather)\(", text))


def test_the_program_has_no_collective_that_it_need_not_have():
    # Of the advantages' mean and variance, of the gradient, of the update's sums.
    assert collectives_of(zero=0) == {"all-reduce": 4}
    # Two kernels of the hidden layers are split; XLA may join all-reduces.
    assert (
        collectives_of(zero=1).items() >= {"reduce-scatter": 2, "all-gather": 2}.items()
    )


@pytest.mark.parametrize("zero", [1, 3])
def test_a_gradient_in_parts_is_the_whole_one(zero):
    """By plain descent, of which a wrong factor would be seen."""
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(16, 8)).astype(np.float32)
    inputs = rng.normal(size=(64, 16)).astype(np.float32)

    def loss(params, batch):
        value = jnp.square(batch @ whole(params)).mean()
        return value, ({"loss": value}, ())

    def found(weights, batch):
        params = Split(weights, 0, ("data",)) if zero == 3 else weights
        part = jnp.zeros((2, 8))
        gradient, metrics, _ = collectives.gradient_and_each(
            loss, params, batch, ("data",), like=Split(part, 0, ("data",))
        )
        return gradient.part, collectives.norm(gradient), metrics["loss"]

    split = P("data") if zero == 3 else P()
    program = jax.shard_map(
        found,
        mesh=mesh,
        in_specs=(split, P("data")),
        out_specs=(P("data"), P(), P()),
        check_vma=False,
    )
    placed = jax.device_put(weights, NamedSharding(mesh, split))
    gradient, norm, value = jax.jit(program)(placed, inputs)
    expected = jax.grad(lambda w: jnp.square(inputs @ w).mean())(weights)
    np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(norm, optax.tree.norm(expected), rtol=1e-5)
    np.testing.assert_allclose(value, np.square(inputs @ weights).mean(), rtol=1e-5)


def test_a_fault_in_one_devices_part_is_a_fault():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))

    def count(state):
        faulty = jnp.zeros((3, 1), bool)
        return guards.total(faulty, {}, {"weights": state}, {}, ("data",))[0].state

    program = jax.shard_map(
        count, mesh=mesh, in_specs=P("data"), out_specs=P(), check_vma=False
    )
    state = np.zeros(16, np.float32)
    assert jax.jit(program)(state) == 0
    state[5] = np.nan
    assert jax.jit(program)(state) == 1
