"""Networks of other libraries, and what `check_network` says of those that fail."""

from __future__ import annotations

from functools import partial

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxrl_par import MLP, PPO, networks
from jaxrl_par.networks.base import Network, build, check_network
from jaxrl_par.spaces import Box, Dict, Discrete
from jaxrl_par.types import EnvSpec

VECTOR = Box(-np.inf, np.inf, (4,))
BYTES = Box(0, 255, (10, 10, 2), np.dtype(np.uint8))
MIXED = Dict((("image", BYTES), ("kind", Discrete(3, 7)), ("x", VECTOR)))


def spec(obs_space, action_space=None):
    return EnvSpec("test", obs_space, action_space or Discrete(3))


# Modules of other libraries; 3 outputs from vectors of 4


class LinenNet(nn.Module):
    size: int = 8

    @nn.compact
    def __call__(self, obs):
        x = nn.tanh(nn.Dense(self.size)(obs))
        return nn.Dense(3)(x), nn.Dense(1)(x)[:, 0]


class NNXNet(nnx.Module):
    def __init__(self, rngs):
        self.body = nnx.Linear(4, 8, rngs=rngs)
        self.policy = nnx.Linear(8, 3, rngs=rngs)
        self.value = nnx.Linear(8, 1, rngs=rngs)

    def __call__(self, obs):
        x = nnx.tanh(self.body(obs))
        return self.policy(x), self.value(x)[:, 0]


class EquinoxNet(eqx.Module):
    body: eqx.nn.MLP

    def __init__(self, key):
        self.body = eqx.nn.MLP(4, 4, 8, 1, key=key)

    def __call__(self, obs):
        x = self.body(obs)
        return x[:3], x[3]


def plain_init(key):
    return {"w": jax.random.normal(key, (4, 4))}


def plain_apply(params, obs):
    x = obs @ params["w"]
    return x[:, :3], x[:, 3]


OTHERS = {
    "linen": networks.from_linen(LinenNet()),
    "nnx": networks.from_nnx(NNXNet),
    "equinox": networks.from_equinox(EquinoxNet),
    "functions": (plain_init, plain_apply),
}
others = pytest.mark.parametrize("network", OTHERS.values(), ids=OTHERS)


@others
def test_modules_of_other_libraries_learn(network):
    check_network(network, spec(VECTOR))
    init, apply = build(network, spec(VECTOR))
    params = jax.jit(init)(jax.random.key(0))
    obs = jax.random.normal(jax.random.key(1), (64, 4))

    @jax.jit
    def step(params):
        def loss(params):
            outputs, value = apply(params, obs)
            return jnp.square(outputs - obs[:, :3]).mean() + jnp.square(value).mean()

        value, gradient = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient), value

    first = step(params)[1]
    for _ in range(50):
        params, last = step(params)
    assert last < 0.7 * first
    different = jax.jit(init)(jax.random.key(1))
    gap = jax.tree.map(lambda x, y: jnp.abs(x - y).max(), params, different)
    assert max(jax.tree.leaves(gap)) > 0.01


@others
def test_equal_networks_do_not_compile_again(network):
    traces = []

    @partial(jax.jit, static_argnums=0)
    def act(network, params, obs):
        traces.append(1)
        return build(network, spec(VECTOR)).apply(params, obs)

    kinds = {networks.from_linen(LinenNet()), networks.from_nnx(NNXNet)}
    kinds |= {networks.from_equinox(EquinoxNet), (plain_init, plain_apply)}
    twin = next(kind for kind in kinds if kind == network)
    params = jax.jit(build(network, spec(VECTOR)).init)(jax.random.key(0))
    one = act(network, params, jnp.ones((2, 4)))
    other = act(twin, params, jnp.ones((2, 4)))
    np.testing.assert_array_equal(one[0], other[0])
    assert len(traces) == 1


def test_a_module_is_given_floats_and_one_observation_if_equinox():
    seen = {}

    class Spy(nn.Module):
        @nn.compact
        def __call__(self, obs):
            seen["linen"] = {k: (x.shape, str(x.dtype)) for k, x in obs.items()}
            return jnp.zeros((len(obs["x"]), 3)), nn.Dense(1)(obs["x"])[:, 0]

    class One(eqx.Module):
        w: jax.Array

        def __call__(self, obs):
            seen["equinox"] = {k: (x.shape, str(x.dtype)) for k, x in obs.items()}
            return jnp.zeros(3), self.w @ obs["x"]

    check_network(networks.from_linen(Spy()), spec(MIXED))
    check_network(networks.from_equinox(lambda key: One(jnp.zeros(4))), spec(MIXED))
    one = {"image": (10, 10, 2), "kind": (3,), "x": (4,)}
    assert seen["equinox"] == {k: (v, "float32") for k, v in one.items()}
    assert seen["linen"] == {k: ((5, *v), "float32") for k, v in one.items()}


# What does not fit is named


def pair(apply, init=plain_init):
    return Network(init, apply)


def with_outputs(change):
    return pair(lambda params, obs: change(*plain_apply(params, obs)))


class WithStatistics(nn.Module):
    @nn.compact
    def __call__(self, obs):
        x = nn.BatchNorm(use_running_average=False)(obs)
        return x[:, :3], x[:, 3]


class NNXStatistics(NNXNet):
    def __init__(self, rngs):
        super().__init__(rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs)


SHAPES = r"outputs, value\), floats of shapes \[\d, 3\] and \[\d\]; it returns "
WRONG = {
    "outputs only": (with_outputs(lambda o, v: o), SHAPES + r"float32\[1, 3\]"),
    "too few": (
        with_outputs(lambda o, v: (o[:, :2], v)),
        SHAPES + r"\(float32\[1, 2\], .*\. 3 outputs: the logits of Discrete\(n=3",
    ),
    "value [N, 1]": (
        with_outputs(lambda o, v: (o, v[:, None])),
        SHAPES + r"\(float32\[1, 3\], float32\[1, 1\]\)",
    ),
    "squeezed": (
        with_outputs(lambda o, v: (o, v.squeeze())),
        SHAPES + r"\(float32\[1, 3\], float32\[\]\)",
    ),
    "swapped": (with_outputs(lambda o, v: (v, o)), SHAPES + r"\(float32\[1\], "),
    "three": (with_outputs(lambda o, v: (o, v, v)), SHAPES),
    "a dictionary": (with_outputs(lambda o, v: {"policy": o, "value": v}), SHAPES),
    "whole numbers": (
        with_outputs(lambda o, v: (o.argmax(-1)[:, None] * jnp.arange(3)[None], v)),
        SHAPES + r"\(int32\[1, 3\]",
    ),
    "raises": (
        pair(lambda params, obs: params["v"]),
        r"apply\(params, obs\) raises KeyError given float32\[1, 4\]: 'v'",
    ),
    "init raises": (
        pair(plain_apply, lambda key: 1 / 0),
        r"init\(key\) raises ZeroDivisionError: division by zero",
    ),
    "integer parameters": (
        pair(plain_apply, lambda key: {"w": jnp.zeros((4, 4), int)}),
        r"parameter \['w'\] is int32; only floats can be learned",
    ),
    "half-precision parameters": (
        pair(plain_apply, lambda key: {"w": jnp.zeros((4, 4), jnp.bfloat16)}),
        r"parameter \['w'\] is bfloat16; parameters must be float32",
    ),
    "no pair": (lambda spec: plain_apply, r"must be a factory .* gives <function"),
    "not callable": ("mlp", "must be a factory .*, not 'mlp'"),
    "a bare module": (LinenNet(), r"not a LinenNet: wrap it, as in .*from_linen"),
    "unhashable": (networks.from_linen(LinenNet(size=[8])), "must be hashable"),
    "linen statistics": (
        networks.from_linen(WithStatistics()),
        "variables that are no parameters: batch_stats",
    ),
    "nnx statistics": (
        networks.from_nnx(NNXStatistics),
        "variables that are no parameters: norm.mean, norm.var",
    ),
}


@pytest.mark.parametrize(("network", "message"), WRONG.values(), ids=WRONG)
def test_what_does_not_fit_is_named(network, message):
    with pytest.raises(ValueError, match=message):
        check_network(network, spec(VECTOR))


def test_a_box_is_told_its_outputs():
    with pytest.raises(ValueError, match=r"4 outputs: 2 means, then as many log dev"):
        check_network(OTHERS["functions"], spec(VECTOR, Box(-1.0, 1.0, (2,))))


def test_ppo_refuses_a_network_before_anything_runs():
    with pytest.raises(ValueError, match=SHAPES):
        PPO(network=WRONG["value [N, 1]"][0]).validate(spec(VECTOR), 8)


def test_spaces_without_a_policy_are_refused():
    with pytest.raises(ValueError, match="must be Discrete, MultiDiscrete or a float"):
        check_network(MLP(), spec(VECTOR, Dict((("a", Discrete(2)),))))
