"""check_algorithm passes what is right and names what is wrong."""

from __future__ import annotations

import dataclasses
import random
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reinforce import Reinforce

from jaxrl_par import PPO, collectives, losses, make, train
from jaxrl_par.algorithms.base import AlgorithmError, check_algorithm
from jaxrl_par.networks import MLP
from jaxrl_par.spaces import Box, Dict, Discrete
from jaxrl_par.types import EnvSpec, pytree

SPEC = EnvSpec("test", Box(-1.0, 1.0, (3,)), Discrete(3, start=5))


@dataclasses.dataclass(frozen=True)
class Env:
    """As much of an environment as the check reads."""

    spec: EnvSpec = SPEC


# What is right

RIGHT = {
    "reinforce": (Reinforce(), Env()),
    "ppo, all of it": (
        PPO(
            rollout_length=8,
            network=MLP((8,), shared=True),
            num_epochs=1,
            num_minibatches=2,
            normalize_obs=True,
            normalize_reward=True,
            squash=True,
            target_kl=0.1,
            adaptive_kl=0.01,
            value_clip=0.2,
            policy_loss=lambda log_ratio, advantage, eps: losses.ppo_clip(
                log_ratio, advantage, 2 * eps
            ),
        ),
        Env(EnvSpec("box", Box(-np.inf, np.inf, (2,)), Box(-1.0, 3.0, (2,)))),
    ),
    "ppo with a mask": (
        PPO(rollout_length=4, network=MLP((8,)), num_epochs=1, normalize_obs=True),
        Env(
            EnvSpec(
                "masked",
                Dict(
                    (
                        ("action_mask", Box(False, True, (4,), np.dtype(bool))),
                        ("board", Box(0, 2, (3, 3), np.dtype(np.int32))),
                        ("turn", Discrete(2)),
                    )
                ),
                Discrete(4),
            )
        ),
    ),
}


@pytest.mark.parametrize(("algorithm", "env"), RIGHT.values(), ids=RIGHT)
def test_right_algorithms_pass(algorithm, env):
    check_algorithm(algorithm, env)


def test_the_small_algorithm_trains():
    run = train(
        Reinforce(), make("CartPole-v1"), num_envs=8, total_steps=500, eval_episodes=0
    )
    assert np.isfinite(run.metrics["loss"]).all()
    assert run.state.algorithm.updates == run.metrics["update"][-1] == 11


# What is wrong: each changes one thing of Reinforce


def broken(**members):
    return pytree(type("Broken", (Reinforce,), members))()


def change_act(change):
    def act(self, state, carry, obs, noise, greedy):
        return change(*Reinforce.act(self, state, carry, obs, noise, greedy))

    return broken(act=act)


def change_update(change):
    def update(self, state, rollout, key, axes):
        found = Reinforce.update(self, state, rollout, key, axes)
        return change(*found, state, rollout, key, axes)

    return broken(update=update)


def with_state(**values):
    """An update that gives the state other values, computed from the new one."""

    def change(state, metrics, *_):
        fields = {name: value(state) for name, value in values.items()}
        return dataclasses.replace(state, **fields), metrics

    return change_update(change)


def with_metrics(**values):
    return change_update(lambda state, metrics, *_: (state, metrics | values))


def init_with(**values):
    def init(self, key, spec, num_envs):
        state = Reinforce.init(self, key, spec, num_envs)
        return dataclasses.replace(state, **{k: v(num_envs) for k, v in values.items()})

    return init


def local_gradient(state, metrics, old, rollout, key, axes):
    return dataclasses.replace(
        state, weights=state.weights + 0.1 * rollout.reward.mean()
    ), metrics


def summed_gradient(state, metrics, old, rollout, key, axes):
    change = state.weights - old.weights
    size = collectives.size(axes)
    return dataclasses.replace(state, weights=old.weights + size * change), metrics


def python_random(state, metrics, *_):
    weights = state.weights * random.random()
    return dataclasses.replace(state, weights=weights), metrics


def other_rows(carry, action, extras):
    return carry, action, {**extras, "centred": extras["sample"] - action.mean()}


class NotAPytree:
    pass


for _name in ("validate", "max_devices", "init", "initial_carry", "noise", "act"):
    setattr(NotAPytree, _name, getattr(Reinforce, _name))
NotAPytree.update, NotAPytree.sharded = Reinforce.update, ()
NotAPytree.rollout_length = 6

WRONG = {
    # the class
    "no members": (object(), r"act: missing; an algorithm has sharded, rollout_length"),
    "a class": (Reinforce, r"is a class; pass an object: Reinforce\(...\)"),
    "no pytree": (NotAPytree(), r"class: is no pytree; decorate it with @jaxrl_par.py"),
    "a list as static": (
        dataclasses.replace(Reinforce(), rollout_length=[6]),
        r"class: .rollout_length, unhashable type: 'list'; static fields must be hash",
    ),
    "a function as leaf": (
        dataclasses.replace(Reinforce(), rate=jnp.sin),
        r"class: .rate is a PjitFunction; leaves are rates: declare it with static",
    ),
    "a size as leaf": (
        broken(__annotations__={"rollout_length": int}, rollout_length=6),
        r"rollout_length: it is a leaf, and traced: declare it with static",
    ),
    # sizes
    "no steps": (
        dataclasses.replace(Reinforce(), rollout_length=0),
        r"rollout_length: is 0; it must be a whole number of at least 1",
    ),
    "sharded is a string": (
        broken(sharded="returns"),
        r"sharded: is 'returns'; it must be a tuple of names of fields",
    ),
    "refused": (
        broken(validate=lambda self, spec, num_envs: checks_fail()),
        r"validate: refuses 4 environments of test: too few; check with an environment",
    ),
    "validate fails": (
        broken(validate=lambda self, spec: None),
        r"validate: raises TypeError: .*; it is called as \(spec, num_envs\)",
    ),
    "devices": (
        broken(max_devices=lambda self, num_envs: 3),
        r"max_devices: is 3; it must be a whole number that divides num_envs, 4",
    ),
    # init
    "signature of init": (
        broken(init=lambda self, key: None),
        r"init: too many positional arguments; it is called as init\(key, spec, num_e",
    ),
    "an unknown field": (
        broken(sharded=("returns", "replay")),
        r"sharded: 'replay' is no field of the state, which has weights, returns",
    ),
    "a state without names": (
        broken(init=lambda self, key, spec, num_envs: (jnp.zeros(3),)),
        r"init: state is a tuple of 1; it must be a dataclass with @jaxrl_par.pytree",
    ),
    "a string in the state": (
        broken(init=init_with(updates=lambda n: "none")),
        r"init: state.updates is a str; leaves are arrays: declare it with static",
    ),
    "grows with environments": (
        broken(sharded=()),
        r"init: state.returns is float32\[4\] for 4 environments and float32\[8\] for",
    ),
    "no leading axis": (
        broken(sharded=("returns", "updates")),
        r"init: state.updates is int32\[\]; it is in `sharded`, so its leading axis",
    ),
    "legacy keys": (
        broken(init=lambda self, *_: jax.random.uniform(jax.random.PRNGKey(0))),
        r"init: uses a raw uint32 key; keys are typed",
    ),
    "rates in an if": (
        broken(init=lambda self, key, spec, n: 1 / 0 if self.rate > 1 else None),
        r"init: cannot be jitted, TracerBoolConversionError.*use jnp.where or",
    ),
    # carry and noise
    "carry is None": (
        broken(initial_carry=lambda self, spec, num_envs: None),
        r"initial_carry: returns None; return \(\) for no memory",
    ),
    "carry of one": (
        broken(initial_carry=lambda self, spec, num_envs: jnp.zeros(7)),
        r"initial_carry: carry is float32\[7\]; its leading axis must be num_envs, 4",
    ),
    "noise of one step": (
        broken(noise=lambda self, state, key, length: jax.random.uniform(key)),
        r"noise is float32\[\]; its leading axis must be length, 6",
    ),
    # act
    "two results": (
        change_act(lambda carry, action, extras: (action, extras)),
        r"act: returns a tuple of 2; it must return \(carry, action, extras\)",
    ),
    "another carry": (
        change_act(lambda carry, action, extras: (action, action, extras)),
        r"act: carry is PyTreeDef\(\*\), and PyTreeDef\(\(\)\) from initial_carry",
    ),
    "one action": (
        change_act(lambda carry, action, extras: (carry, action[0], extras)),
        r"act: action is int32\[\]; its leading axis must be num_envs, 4",
    ),
    "floats for a choice": (
        change_act(lambda carry, action, extras: (carry, action * 1.0, extras)),
        r"act: one action is float32\[\]; the space says int32\[\]",
    ),
    "extras of all": (
        change_act(lambda c, action, extras: (c, action, {"mean": action.mean()})),
        r"act: extras\['mean'\] is float32\[\]; its leading axis must be num_envs, 4",
    ),
    "noise when greedy": (
        broken(
            act=lambda self, state, carry, obs, noise, greedy: Reinforce.act(
                self, state, carry, obs, noise, False
            )
        ),
        r"act: raises TypeError: .*; with greedy, noise is None",
    ),
    "out of bounds": (
        change_act(lambda carry, action, extras: (carry, action - 5, extras)),
        r"act: actions .* are not within Discrete\(n=3, start=5\)",
    ),
    "rows that depend": (
        change_act(other_rows),
        r"act: extras\['centred'\] of an environment depends on the others",
    ),
    # update
    "state only": (
        change_update(lambda state, metrics, *_: state),
        r"update: returns a ReinforceState; it must return \(state, metrics\)",
    ),
    "another dtype": (
        with_state(updates=lambda state: state.updates + 0.5),
        r"update: state.updates is float32\[\], and int32\[\] from init; a state keeps",
    ),
    "another structure": (
        with_state(updates=lambda state: None),
        r"update: state is .*, and .* from init; a state keeps its structure",
    ),
    "a weak type": (
        with_state(updates=lambda state: jnp.asarray(3)),
        r"update: state.updates is int32\[\], a weak type, .*write jnp.int32",
    ),
    "vectors as metrics": (
        with_metrics(all=jnp.ones(3)),
        r"update: metrics\['all'\] is float32\[3\]; it must be a scalar array",
    ),
    "numbers as metrics": (
        with_metrics(one=1.0),
        r"update: metrics\['one'\] is a Python float; it must be a scalar array",
    ),
    "reserved metrics": (
        with_metrics(episode_count=jnp.float32(1)),
        r"update: metrics\['episode_count'\]: the engine has a column of this name",
    ),
    "no dictionary": (
        change_update(lambda state, metrics, *_: (state, metrics["loss"])),
        r"update: metrics is float32\[\]; it must be a dictionary of scalars",
    ),
    "Python's randomness": (
        change_update(python_random),
        r"update: is not pure: two traces of the same call differ",
    ),
    "NaN": (
        with_state(weights=lambda state: state.weights * jnp.nan),
        r"update: state.weights is not finite; it must be",
    ),
    "local gradients": (
        change_update(local_gradient),
        r"update: state.weights differs between devices though it is not in `sharded`",
    ),
    "summed gradients": (
        change_update(summed_gradient),
        r"update: state.weights is another on two devices than on one",
    ),
}


def checks_fail():
    raise ValueError("too few")


@pytest.mark.parametrize(("algorithm", "message"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_named(algorithm, message):
    with pytest.raises(AlgorithmError) as error:
        check_algorithm(algorithm, Env())
    texts = error.value.problems
    assert any(re.match(message, text) for text in texts), str(error.value)


def test_all_problems_come_at_once():
    algorithm = broken(
        init=init_with(updates=lambda n: jnp.zeros(n)),
        sharded=("returns", "replay"),
    )
    with pytest.raises(AlgorithmError) as error:
        check_algorithm(algorithm, Env())
    assert str(error.value).startswith("Broken has 2 problems:\n  1. sharded: 'replay'")
    assert len(error.value.problems) == 2


def test_a_masked_action_is_named():
    _, env = RIGHT["ppo with a mask"]
    with pytest.raises(AlgorithmError, match="an action that `action_mask` forbids"):
        check_algorithm(Reinforce(), env)
