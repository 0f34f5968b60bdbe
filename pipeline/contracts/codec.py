"""Turns frozen dataclasses into JSON and back. A value of another type than its field's is an error with its place.

A field may be a `str`, `int`, `float`, `bool`, `None`, `Literal`, a union of these, `Mapping[str, X]`,
`tuple[X, ...]`, `tuple[X, Y]`, :data:`NumberTree` or another contract. Every field is written, except one that is
declared with :func:`left_out` while it is None. When JSON is read, a field with a default may be missing.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Self

from pipeline.model import Json

NumberTree = bool | int | float | tuple[Any, ...]
"""A number, a truth value, or nested tuples of them, which are lists in JSON."""

_Reader = Callable[[Any], Any]
_LEFT_OUT = "left out while None"


class ContractError(ValueError):
    """A JSON value is not what its contract says; the text names the field: `Facts.rungs.padding: a mapping ...`."""


def left_out() -> Any:
    """The default None for a field that is written only if it is not None, such as one that few models need."""
    return dataclasses.field(default=None, metadata={_LEFT_OUT: True})


class Contract:
    """Base of the frozen dataclasses that stages are given and answer with."""

    def to_json(self) -> dict[str, Json]:
        """The fields in their order as JSON, without those of :func:`left_out` that are None."""
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
        """The contract that :meth:`to_json` turned into `raw`.

        Raises:
            ContractError: a key is unknown or missing, or a value is not of its field's type.
        """
        kind: Any = cls
        try:
            made: Self = _reader(kind)(raw)
            return made
        except _MisfitError as error:
            raise ContractError(f"{cls.__qualname__}{error.at}: {error.what}") from None


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


class _MisfitError(Exception):
    """A value is not as its type says; `at` says where it is in what is read."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what, self.at = what, ""

    def inside(self, part: str) -> _MisfitError:
        """This error with `part` put before its place, for the record, mapping or list that holds the value there."""
        self.at = part + self.at
        return self


@cache
def _reader(hint: Any) -> _Reader:
    """The function that makes a value of this type out of JSON, or raises _MisfitError."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint == NumberTree:
        return _numbers
    if origin is typing.Literal:
        return _scalar(hint, lambda raw: isinstance(raw, str) and raw in args)
    if origin in (typing.Union, types.UnionType):
        return _one_of(args)
    if origin is Mapping:
        return _mapping(_reader(args[0]), _reader(args[1]), _spelled(hint))
    if origin is tuple:
        return _items(args)
    if isinstance(hint, type) and issubclass(hint, Contract):
        return _record(hint)
    if hint is float:
        return _scalar(hint, lambda raw: isinstance(raw, int | float) and not isinstance(raw, bool))
    if hint in (str, int, bool, types.NoneType):
        return _scalar(hint, lambda raw: type(raw) is hint)
    raise TypeError(f"a contract has no {hint!r}")


def _scalar(hint: Any, fits: Callable[[object], bool]) -> _Reader:
    def read(raw: Any) -> Any:
        if not fits(raw):
            raise _wrong(_spelled(hint), raw)
        return raw

    return read


def _record(cls: Any) -> _Reader:
    fields = _fields(cls)
    readers = {name: _reader(hint) for name, (hint, _) in fields.items()}
    required = [name for name, (_, needed) in fields.items() if needed]

    def read(raw: Any) -> Any:
        if not isinstance(raw, Mapping):
            raise _wrong("a mapping", raw)
        if raw.keys() - readers.keys():
            unknown = next(name for name in raw if name not in readers)
            raise _MisfitError(f"unknown key {unknown!r}; there are {', '.join(fields) or 'none'}")
        for name in required:
            if name not in raw:
                raise _MisfitError(f"{name!r} is missing")
        return cls(**{name: _inside(f".{name}", readers[name], value) for name, value in raw.items()})

    return read


def _inside(part: str, read: _Reader, raw: object) -> Any:
    try:
        return read(raw)
    except _MisfitError as error:
        raise error.inside(part) from None


def _mapping(key: _Reader, value: _Reader, spelled: str) -> _Reader:
    def read(raw: Any) -> Any:
        if not isinstance(raw, Mapping):
            raise _wrong(spelled, raw)
        return {key(name): _inside(f".{name}", value, item) for name, item in raw.items()}

    return read


def _numbers(raw: Any) -> NumberTree:
    if isinstance(raw, list | tuple):
        return tuple(_inside(f"[{number}]", _numbers, item) for number, item in enumerate(raw))
    if not isinstance(raw, bool | int | float):
        raise _wrong("a number, a truth value or a list", raw)
    return raw


def _one_of(hints: tuple[Any, ...]) -> _Reader:
    rest = [_reader(hint) for hint in hints if hint is not types.NoneType]
    optional = len(rest) < len(hints)

    def read(raw: Any) -> Any:
        if raw is None and optional:
            return None
        if len(rest) == 1:
            return rest[0](raw)
        for candidate in rest:
            try:
                return candidate(raw)
            except _MisfitError:
                continue
        raise _wrong(" or ".join(map(_spelled, hints)), raw)

    return read


def _items(hints: tuple[Any, ...]) -> _Reader:
    alike = hints[-1] is Ellipsis
    readers = [_reader(hint) for hint in hints if hint is not Ellipsis]

    def read(raw: Any) -> tuple[Any, ...]:
        if not isinstance(raw, list | tuple):
            raise _wrong("a list", raw)
        if not alike and len(readers) != len(raw):
            raise _wrong(f"a list of {len(readers)}", raw)
        each = readers * len(raw) if alike else readers
        return tuple([_inside(f"[{at}]", *pair) for at, pair in enumerate(zip(each, raw, strict=True))])

    return read


def _spelled(hint: Any) -> str:
    return getattr(hint, "__name__", str(hint)) if not typing.get_args(hint) else str(hint).replace("typing.", "")


def _wrong(wanted: str, raw: object) -> _MisfitError:
    shown = repr(raw)
    return _MisfitError(f"{wanted} is needed, not {shown if len(shown) <= 60 else f'{shown[:57]}...'}")
