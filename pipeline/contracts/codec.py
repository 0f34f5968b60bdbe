"""Frozen dataclasses as JSON and back, strictly: what is not as its type says is refused, and told where.

Understood are `str`, `int`, `float`, `bool`, `None`, `Literal`, unions of these, `Mapping[str, X]`, `tuple[X, ...]`,
`tuple[X, Y]`, :data:`NumberTree` and other contracts. Every field is written but those declared with :func:`left_out`
that are None; one with a default may be missing in what is read.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from functools import cache
from typing import Any, Self

from pipeline.model import Json

NumberTree = bool | int | float | tuple[Any, ...]
"""A number, a truth value, or nested lists of them; lists are tuples."""

_LEFT_OUT = "left out while None"


class ContractError(ValueError):
    """A JSON value is not what its contract says; the text names the field: `Facts.rungs.padding: a mapping ...`."""


def left_out() -> Any:
    """The default None of a field that is not written while it is None, as of a percentile that few methods have."""
    return dataclasses.field(default=None, metadata={_LEFT_OUT: True})


class Contract:
    """Base of the frozen dataclasses that stages are given and answer with."""

    def to_json(self) -> dict[str, Json]:
        """Every field in its order, without those that are left out."""
        kind: Any = type(self)
        values = {name: getattr(self, name) for name in _fields(kind)}
        optional = _optional(kind)
        return {name: _plain(value) for name, value in values.items() if value is not None or name not in optional}

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The names of the fields."""
        kind: Any = cls
        return tuple(_fields(kind))

    @classmethod
    def from_json(cls, raw: Mapping[str, Json]) -> Self:
        """The inverse of :meth:`to_json`.

        Raises:
            ContractError: a key is unknown or missing, or a value is not of its field's type.
        """
        made: Self = _record(cls, raw, cls.__qualname__)
        return made


def _plain(value: object) -> Json:
    match value:
        case Contract():
            return value.to_json()
        case Mapping():
            return {str(key): _plain(item) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
        case None | bool() | int() | float() | str():
            return value
    raise TypeError(f"no JSON for {type(value).__name__}")


@cache
def _fields(cls: Any) -> Mapping[str, tuple[Any, bool]]:
    """The type hint of each field, and whether it must be there."""
    hints = typing.get_type_hints(cls)
    return {field.name: (hints[field.name], _is_required(field)) for field in dataclasses.fields(cls)}


@cache
def _optional(cls: Any) -> frozenset[str]:
    return frozenset(field.name for field in dataclasses.fields(cls) if _LEFT_OUT in field.metadata)


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _record(cls: Any, raw: object, at: str) -> Any:
    if not isinstance(raw, Mapping):
        raise _wrong(at, "a mapping", raw)
    fields = _fields(cls)
    if unknown := [name for name in raw if name not in fields]:
        raise ContractError(f"{at}: unknown key {unknown[0]!r}; there are {', '.join(fields) or 'none'}")
    missing = [name for name, (_, required) in fields.items() if required and name not in raw]
    if missing:
        raise ContractError(f"{at}: {missing[0]!r} is missing")
    return cls(**{name: _value(fields[name][0], value, f"{at}.{name}") for name, value in raw.items()})


def _value(hint: Any, raw: object, at: str) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint == NumberTree:
        return _numbers(raw, at)
    if origin is typing.Literal:
        fits = isinstance(raw, str) and raw in args
    elif origin in (typing.Union, types.UnionType):
        return _one_of(args, raw, at)
    elif origin is Mapping:
        if isinstance(raw, Mapping):
            return {_value(args[0], key, at): _value(args[1], item, f"{at}.{key}") for key, item in raw.items()}
        fits = False
    elif origin is tuple:
        return _items(args, raw, at)
    elif isinstance(hint, type) and issubclass(hint, Contract):
        return _record(hint, raw, at)
    elif hint is float:
        fits = isinstance(raw, int | float) and not isinstance(raw, bool)
    elif hint in (str, int, bool, types.NoneType):
        fits = type(raw) is hint
    else:
        raise TypeError(f"{at}: a contract has no {hint!r}")
    if not fits:
        raise _wrong(at, _spelled(hint), raw)
    return raw


def _numbers(raw: object, at: str) -> NumberTree:
    if isinstance(raw, list | tuple):
        return tuple(_numbers(item, f"{at}[{number}]") for number, item in enumerate(raw))
    if not isinstance(raw, bool | int | float):
        raise _wrong(at, "a number, a truth value or a list", raw)
    return raw


def _one_of(hints: tuple[Any, ...], raw: object, at: str) -> Any:
    if raw is None and types.NoneType in hints:
        return None
    rest = [hint for hint in hints if hint is not types.NoneType]
    if len(rest) == 1:
        return _value(rest[0], raw, at)
    for hint in rest:
        try:
            return _value(hint, raw, at)
        except ContractError:
            continue
    raise _wrong(at, " or ".join(map(_spelled, hints)), raw)


def _items(hints: tuple[Any, ...], raw: object, at: str) -> tuple[Any, ...]:
    if not isinstance(raw, list | tuple):
        raise _wrong(at, "a list", raw)
    if hints[-1] is Ellipsis:
        hints = (hints[0],) * len(raw)
    if len(hints) != len(raw):
        raise _wrong(at, f"a list of {len(hints)}", raw)
    pairs = enumerate(zip(hints, raw, strict=True))
    return tuple(_value(hint, item, f"{at}[{number}]") for number, (hint, item) in pairs)


def _spelled(hint: Any) -> str:
    return getattr(hint, "__name__", str(hint)) if not typing.get_args(hint) else str(hint).replace("typing.", "")


def _wrong(at: str, wanted: str, raw: object) -> ContractError:
    shown = repr(raw)
    return ContractError(f"{at}: {wanted} is needed, not {shown if len(shown) <= 60 else f'{shown[:57]}...'}")
