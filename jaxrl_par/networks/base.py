"""What a network is: a pair of pure functions.

`init(key) -> params` and `apply(params, obs) -> (outputs, value)`, where `obs` has
one leading batch axis [N, ...], `outputs` [N, D] parametrise the policy (D is
`distributions.for_space(action_space).num_outputs`), and `value` is [N]. A *factory*
makes the pair from an `EnvSpec`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from jaxrl_par import distributions, spaces
from jaxrl_par.collectives import whole
from jaxrl_par.networks import inputs
from jaxrl_par.types import EnvSpec, Key, PyTree

_WHAT = "network must be a factory (EnvSpec -> pair) or a pair (init, apply)"


class Network(NamedTuple):
    """A network as two pure functions."""

    init: Callable[[Key], PyTree]
    apply: Callable[[PyTree, PyTree], Any]


Factory: TypeAlias = Callable[[EnvSpec], Network]


def build(network: Factory | Network, spec: EnvSpec) -> Network:
    """The pair for an environment, from a factory or a pair.

    Raises ValueError for what is neither.
    """
    pair = network
    if isinstance(network, type):
        title = network.__name__
        raise ValueError(f"network {title} is a class; pass an object: {title}(...)")
    if not isinstance(network, tuple):
        if not callable(network):
            raise ValueError(f"{_WHAT}, not {network!r}")
        if hasattr(network, "init") and hasattr(network, "apply"):
            raise ValueError(
                f"{_WHAT}, not a {type(network).__name__}: wrap it, as in "
                "networks.from_linen(module)"
            )
        pair = network(spec)
    if not (isinstance(pair, tuple) and len(pair) == 2 and all(map(callable, pair))):
        raise ValueError(f"{_WHAT}; {network!r} gives {pair!r}")
    init, apply = pair
    return Network(init, lambda params, *args: apply(whole(params), *args))


def check_network(network: Factory | Network, spec: EnvSpec) -> None:
    """Raise ValueError, naming what was expected and found, for a network that does
    not fit an environment. Computes nothing.
    """
    check_hashable(network)
    if spaces.flat_size(inputs.network_obs_space(spec)) == 0:
        raise ValueError(f"network: the observation space {spec.obs_space} is empty")
    pair = build(network, spec)
    params = param_shapes(pair)
    space = inputs.network_obs_space(spec)
    for size in (1, 5):  # of one, so that a squeeze of the batch is seen
        obs = jax.eval_shape(lambda size=size: inputs.example(space, size))
        _check_outputs(
            shapes_of("apply(params, obs)", pair.apply, params, obs), size, spec
        )


def check_hashable(network: Any) -> None:
    """Raise ValueError for one that is not: it could be no static field."""
    try:
        hash(network)
    except TypeError as error:
        raise ValueError(
            f"network {network!r} must be hashable ({error}): give it tuples, not "
            "lists or arrays"
        ) from None


def param_shapes(pair: Network) -> PyTree:
    """Shapes of the parameters. Raises ValueError unless all are float32."""
    key = jax.eval_shape(jax.random.key, 0)
    params = shapes_of("init(key)", pair.init, key)
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if not _is_float(leaf):
            name = jax.tree_util.keystr(path)
            raise ValueError(
                f"network: parameter {name} is {leaf.dtype.name}; only floats can be "
                "learned: make it a constant of the function"
            )
        if leaf.dtype != jnp.float32:
            name = jax.tree_util.keystr(path)
            raise ValueError(
                f"network: parameter {name} is {leaf.dtype.name}; parameters must be "
                "float32 (to compute in another type, cast them in apply)"
            )
    return params


def _check_outputs(found: Any, size: int, spec: EnvSpec) -> None:
    count = distributions.for_space(spec.action_space).num_outputs
    rule = (
        f"network: for a batch of {size}, apply must return (outputs, value), floats "
        f"of shapes [{size}, {count}] and [{size}]; it returns "
    )
    if not isinstance(found, tuple) or len(found) != 2:
        raise ValueError(f"{rule}{jax.tree.map(show, found)}")
    expected = ((size, count), (size,))
    for leaf, shape in zip(found, expected, strict=True):
        if not _is_float(leaf) or leaf.shape != shape:
            raise ValueError(
                f"{rule}({', '.join(map(show, found))}){_hint(spec, count)}"
            )


def _hint(spec: EnvSpec, count: int) -> str:
    space = spec.action_space
    if isinstance(space, spaces.Box):
        return f". {count} outputs: {count // 2} means, then as many log deviations"
    return f". {count} outputs: the logits of {space}"


def _is_float(leaf: Any) -> bool:
    is_array = isinstance(leaf, jax.ShapeDtypeStruct)
    return is_array and jnp.issubdtype(leaf.dtype, jnp.floating)


def show(leaf: Any) -> str:
    """A leaf in an error's words: dtype and shape, or the type of what is no array."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return f"{leaf.dtype.name}{list(leaf.shape)}"
    return type(leaf).__name__


def shapes_of(name: str, function: Callable[..., Any], *args: Any) -> Any:
    """Shapes of what a function gives. Raises ValueError, with `name`, if it raises."""
    try:
        return jax.eval_shape(function, *args)
    except Exception as error:
        line = (str(error).strip().splitlines() or [""])[0]
        shapes = ", ".join(str(jax.tree.map(show, arg)) for arg in args[1:])
        given = f" given {shapes}" if shapes else ""
        raise ValueError(
            f"network: {name} raises {type(error).__name__}{given}: {line}"
        ) from error
