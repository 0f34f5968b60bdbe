"""Turns type hints into forms, which describe what may be written where.

A form is built from the hints of a frozen dataclass. Decoding, JSON Schema and reference are each one walk over it, so
the three cannot disagree. A hint may be `str`, `int`, `float`, `bool`, `Literal` of strings, `tuple[X, ...]`,
`Mapping[str, X]` (or a `Literal` in place of `str`), a dataclass, a union of these (`| None` means that the key may be
left out), or any type that `Annotated` gives a :class:`Convert`.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pipeline.frozen import dataclass

_Mark = typing.TypeVar("_Mark")

Bases = Mapping[str, Path]
"""The folders that relative paths may start from, by name."""


@dataclass(frozen=True)
class Pattern:
    """Marks text that must match `regex` as a whole; `expected` says the same in words.

    Keep to the syntax that Python and ECMAScript share: the pattern goes into the JSON Schema.
    """

    regex: str
    expected: str


@dataclass(frozen=True)
class Between:
    """Marks an integer with bounds, both included."""

    low: int
    high: int


@dataclass(frozen=True)
class Size:
    """Marks a list or mapping with a number of entries, both bounds included; `expected` says the same in words."""

    low: int
    high: int | None = None
    expected: str = "at least one entry"


@dataclass(frozen=True)
class Distinct:
    """Marks a list in which no entry may occur twice."""


@dataclass(frozen=True)
class Numbers:
    """A number, a truth value, or nested lists of them. It also marks the type :data:`NumberTree`."""


@dataclass(frozen=True)
class Convert:
    """Marks a type that is written as text. `function(text, bases)` makes the value; a ValueError refuses the text."""

    function: Callable[[str, Bases], object]


@dataclass(frozen=True)
class Text:
    """Text."""

    pattern: Pattern | None = None
    convert: Convert | None = None


@dataclass(frozen=True)
class OneWord:
    """One of a few words."""

    values: tuple[str, ...]


@dataclass(frozen=True)
class Integer:
    """A whole number."""

    bounds: Between | None = None


@dataclass(frozen=True)
class Number:
    """A finite number, with or without a fraction."""


@dataclass(frozen=True)
class Flag:
    """`true` or `false`."""


@dataclass(frozen=True)
class ListOf:
    """A list of values of one form."""

    item: Form
    size: Size | None = None
    distinct: bool = False


@dataclass(frozen=True)
class MapOf:
    """A mapping whose keys are names of the user's own choosing, or some of a few words."""

    key: Text | OneWord
    value: Form
    size: Size | None = None


@dataclass(frozen=True)
class Field:
    """One key of a record; `default` is `dataclasses.MISSING` where the key must be written."""

    name: str
    form: Form
    default: object

    @property
    def required(self) -> bool:
        """Whether the key must be written."""
        return self.default is dataclasses.MISSING


@dataclass(frozen=True)
class Record:
    """A mapping with known keys: a dataclass."""

    type: type[Any]
    fields: Mapping[str, Field]


@dataclass(frozen=True)
class OneOf:
    """One of several forms, told apart by the kind of value.

    Records are told apart by their first key. If all have the same first key, its word tells (:attr:`tag`). Otherwise
    its presence tells (:meth:`signs`), and its word among records with the same first key.
    """

    forms: tuple[Form, ...]

    @property
    def records(self) -> tuple[Record, ...]:
        """The forms that are records."""
        return tuple(form for form in self.forms if isinstance(form, Record))

    @property
    def tag(self) -> str | None:
        """The key whose word tells which record is meant, such as `reader` in `{reader: text}`; None if none does."""
        firsts = [next(iter(record.fields.values())) for record in self.records]
        names = {field.name for field in firsts}
        tagged = len(firsts) > 1 and len(names) == 1 and all(isinstance(field.form, OneWord) for field in firsts)
        return names.pop() if tagged else None

    def signs(self) -> Mapping[str, tuple[Record, ...]]:
        """The records by their first key, for those in which it must be written: it tells them apart without a tag."""
        found: dict[str, tuple[Record, ...]] = {}
        for record in self.records:
            first = next(iter(record.fields.values()))
            if first.required:
                found[first.name] = (*found.get(first.name, ()), record)
        return found


Form = Text | OneWord | Integer | Number | Numbers | Flag | ListOf | MapOf | Record | OneOf


def record_of(cls: type[Any]) -> Record:
    """The form of the dataclass `cls`. Raises TypeError for a hint that has no form."""
    hints = typing.get_type_hints(cls, include_extras=True)
    fields = {
        field.name: Field(field.name, form_of(hints[field.name]), _default(field)) for field in dataclasses.fields(cls)
    }
    return Record(cls, types.MappingProxyType(fields))


def form_of(hint: Any) -> Form:
    """The form of the type hint `hint`. Raises TypeError if it has none."""
    marks: tuple[Any, ...] = ()
    if typing.get_origin(hint) is typing.Annotated:
        hint, *rest = typing.get_args(hint)
        marks = tuple(rest)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    convert = _mark(marks, Convert)
    if numbers := _mark(marks, Numbers):
        return numbers
    if hint is str or convert:
        return Text(_mark(marks, Pattern), convert)
    if hint is bool:
        return Flag()
    if hint is int:
        return Integer(_mark(marks, Between))
    if hint is float:
        return Number()
    if origin is typing.Literal:
        return OneWord(args)
    if origin in (typing.Union, types.UnionType):
        forms = tuple(form_of(arg) for arg in args if arg is not types.NoneType)
        return forms[0] if len(forms) == 1 else OneOf(forms)
    if origin is tuple:
        return ListOf(form_of(args[0]), _mark(marks, Size), _mark(marks, Distinct) is not None)
    if origin is Mapping and isinstance(key := form_of(args[0]), Text | OneWord):
        return MapOf(key, form_of(args[1]), _mark(marks, Size))
    if dataclasses.is_dataclass(hint):
        return record_of(typing.cast(type[Any], hint))
    raise TypeError(f"no form for {hint!r}")


def describe(form: Form) -> str:
    """What to write, in words: `an integer from 1 to 8`."""
    match form:
        case Text(pattern=pattern):
            return pattern.expected if pattern else "text"
        case OneWord(values=values):
            return " or ".join(values)
        case Integer(bounds=bounds):
            return f"an integer from {bounds.low} to {bounds.high}" if bounds else "an integer"
        case Number():
            return "a number"
        case Numbers():
            return "a number, true or false, or lists of them"
        case Flag():
            return "true or false"
        case ListOf(item=item):
            return f"a list, each entry {describe(item)}"
        case MapOf(key=key, value=value):
            return f"a mapping from {describe(key)} to {describe(value)}"
        case Record(fields=fields):
            return f"a mapping with {', '.join(fields)}"
        case OneOf(forms=forms):
            return ", or ".join(describe(form) for form in forms)


def _mark(marks: tuple[Any, ...], kind: type[_Mark]) -> _Mark | None:
    return next((mark for mark in marks if isinstance(mark, kind)), None)


def _default(field: dataclasses.Field[Any]) -> object:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default
