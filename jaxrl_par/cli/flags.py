"""Typed command-line flags made from dataclasses."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import tyro
from tyro.constructors import (
    ConstructorRegistry,
    PrimitiveConstructorSpec,
    PrimitiveTypeInfo,
)

_REGISTRY = ConstructorRegistry()


def parse(kind: type, argv: Sequence[str], prog: str, description: str) -> Any:
    """An instance of a dataclass of flags.

    A mistake prints one message that names the flag, and exits with status 2.
    """
    return tyro.cli(
        kind, args=list(argv), prog=prog, description=description, registry=_REGISTRY
    )


def whole_number(text: str) -> int:
    """An int from "64", "500_000" or "1e5"; ValueError for what is not whole."""
    try:
        return int(text)
    except ValueError:
        pass
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or number != int(number):
        raise ValueError(f"{text!r} is not a whole number (int)")
    return int(number)


def finite_number(text: str) -> float:
    """A float from text; ValueError for words, NaN and infinity."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{text!r} is not a finite number (float)")
    return number


@_REGISTRY.primitive_rule
def _int_rule(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec | None:
    return _number_rule(whole_number, "INT") if info.type is int else None


@_REGISTRY.primitive_rule
def _float_rule(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec | None:
    return _number_rule(finite_number, "FLOAT") if info.type is float else None


def _number_rule(
    convert: Callable[[str], float], metavar: str
) -> PrimitiveConstructorSpec:
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=metavar,
        instance_from_str=lambda texts: convert(texts[0]),
        is_instance=lambda value: isinstance(value, int | float),
        str_from_instance=lambda value: [str(value)],
    )


def group(
    name: str,
    defaults: Any,
    helps: Mapping[str, str],
    choices: Mapping[str, tuple[str, ...]] | None = None,
    aliases: Mapping[str, str] | None = None,
    only: Sequence[str] | None = None,
) -> type:
    """A dataclass with a flag for every plain field of the dataclass `defaults`.

    Its values are the flags' defaults. Fields that are not numbers, words or tuples
    of them (networks, functions, arrays) have no flag, nor, with `only`, others.
    """
    hints = typing.get_type_hints(type(defaults))
    fields = []
    for field in dataclasses.fields(defaults):
        hint = hints[field.name]
        if choices and field.name in choices:
            hint = typing.Literal[choices[field.name]]
        wanted = only is None or field.name in only
        if wanted and field.init and _plain(hint):
            alias = (aliases or {}).get(field.name)
            flag = tyro.conf.arg(
                help=helps.get(field.name), aliases=[alias] if alias else None
            )
            default = getattr(defaults, field.name)
            fields.append((field.name, Annotated[hint, flag], default))
    return dataclasses.make_dataclass(name, fields, frozen=True)


def _plain(hint: Any) -> bool:
    if hint in (int, float, bool, str, type(None), Ellipsis):
        return True
    origin = typing.get_origin(hint)
    if origin in (types.UnionType, typing.Union, tuple):
        return all(_plain(part) for part in typing.get_args(hint))
    return origin is typing.Literal
