"""Turns a YAML tree into the values of a form, with a problem for everything that is not of that form."""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Hashable, Iterable, Mapping
from typing import Any, Final

from pipeline.config.yaml.field_types import (
    Bases,
    Flag,
    Form,
    Integer,
    ListOf,
    MapOf,
    Number,
    Numbers,
    OneOf,
    OneWord,
    Record,
    Size,
    Text,
    describe,
)
from pipeline.config.yaml.problems import Keys, Problems, nearest
from pipeline.config.yaml.tree import ListNode, MapNode, Node, Unreadable, Value
from pipeline.contracts.codec import NumberTree

_GUESSES = 100
"""How many misspelt keys get a suggestion, and how many surplus entries are checked: more are no slips of a person."""


class _Invalid(enum.Enum):
    INVALID = enum.auto()


INVALID: Final = _Invalid.INVALID
"""Stands for a value that was refused; its problem is on the list."""


def decode_fields(form: Record, node: Node, problems: Problems, bases: Bases) -> dict[str, Any]:
    """The fields of the dataclass that `form` stands for, as written in `node`, with defaults filled in.

    If nothing was added to `problems`, the dataclass can be made from them. Otherwise the rest can still be checked:
    refused and misspelt fields and refused entries of mappings are left out; refused entries of lists are INVALID, so
    that the others keep their positions.
    """
    return _Decoder(problems, bases).fields(form, node, ())


class _Decoder:
    """One walk over a tree and a form together."""

    def __init__(self, problems: Problems, bases: Bases) -> None:
        self._problems = problems
        self._bases = bases

    def fields(self, form: Record, node: Node, keys: Keys, *, others: Iterable[Record] = ()) -> dict[str, Any]:
        """The valid fields of a record. `others` are records that could have been written here instead."""
        if not isinstance(node, MapNode):
            self._wrong(form, node, keys)
            return {}
        unknown = [name for name in node.keys if name not in form.fields]
        meant = dict.fromkeys(unknown, "")
        for name in unknown[:_GUESSES]:
            meant[name] = nearest(name, form.fields.keys() - node.keys)
        for name, guess in meant.items():
            self._unknown_key(form, node, (*keys, name), guess, others)
        values: dict[str, Any] = {}
        for name, field in form.fields.items():
            if name in node.values:
                value = self.value(field.form, node.values[name], (*keys, name))
                if value is not INVALID:
                    values[name] = value
            elif name in meant.values():
                continue  # a misspelt key is one mistake, not two
            elif not field.required:
                values[name] = field.default
            else:
                self._problems.add(node.place, (*keys, name), "is missing", expected=describe(field.form))
        return values

    def value(self, form: Form, node: Node, keys: Keys) -> Any:
        """The value that `node` stands for, or INVALID."""
        if isinstance(node, Unreadable):
            return INVALID
        match form:
            case Record():
                return self._record(form, node, keys)
            case OneOf():
                return self._one_of(form, node, keys)
            case ListOf() if isinstance(node, ListNode):
                return self._list(form, node, keys)
            case MapOf() if isinstance(node, MapNode):
                return self._map(form, node, keys)
            case Text() if isinstance(node, Value) and isinstance(node.data, str):
                return self._text(form, node, node.data, keys)
            case OneWord() if isinstance(node, Value) and isinstance(node.data, str):
                return self._choice(form, node, node.data, keys)
            case Integer() if isinstance(node, Value) and type(node.data) is int:
                if form.bounds is None or form.bounds.low <= node.data <= form.bounds.high:
                    return node.data
            case Number() if isinstance(node, Value) and isinstance(node.data, int | float):
                if not isinstance(node.data, bool) and math.isfinite(number := float(node.data)):
                    return number
            case Numbers() if (numbers := _numbers(node)) is not None:
                return numbers
            case Flag() if isinstance(node, Value) and isinstance(node.data, bool):
                return node.data
        return self._wrong(form, node, keys)

    def _record(self, form: Record, node: Node, keys: Keys, *, others: Iterable[Record] = ()) -> Any:
        before = len(self._problems)
        values = self.fields(form, node, keys, others=others)
        complete = values.keys() == form.fields.keys() and len(self._problems) == before
        return form.type(**values) if complete else INVALID

    def _one_of(self, form: OneOf, node: Node, keys: Keys) -> Any:
        if isinstance(node, MapNode) and form.records:
            return self._one_record_of(form, node, keys)
        fitting = [candidate for candidate in form.forms if _same_kind(candidate, node)]
        if not fitting:
            return self._wrong(form, node, keys)
        number = isinstance(node, Value) and not isinstance(node.data, str)
        return self.value(max(fitting, key=lambda each: isinstance(each, Integer | Number) == number), node, keys)

    def _one_record_of(self, form: OneOf, node: MapNode, keys: Keys) -> Any:
        if tag := form.tag:
            return self._tagged(tag, form.records, form, node, keys)
        signs = form.signs()
        seen = [name for name in signs if name in node.values]
        if len(seen) > 1:
            what = " and ".join(f"'{name}'" for name in seen) + " exclude each other"
            self._problems.add(node.keys[seen[1]], keys, what, expected="one of them")
            return INVALID
        if seen:
            return self._tagged(seen[0], signs[seen[0]], form, node, keys)
        # One record may have no sign. It is known by the absence of the other records' signs, also of misspelt ones.
        signed = [record for records in signs.values() for record in records]
        signless = next((record for record in form.records if record not in signed), None)
        for name in node.keys:
            if not (signless and nearest(name, signless.fields)) and (guess := nearest(name, signs)):
                self._problems.add(node.keys[name], (*keys, name), "unknown key", suggestion=guess)
                return INVALID
        if signless:
            return self._record(signless, node, keys, others=form.records)
        self._problems.add(node.place, keys, "does not say which", expected=" or ".join(f"'{name}'" for name in signs))
        return INVALID

    def _tagged(self, tag: str, records: tuple[Record, ...], form: OneOf, node: MapNode, keys: Keys) -> Any:
        """The value of the one of `records` that the word at their first key stands for."""
        if len(records) == 1:
            return self._record(records[0], node, keys, others=form.records)
        by_word = {_words(record, tag)[0]: record for record in records}
        word = self._tag(tag, tuple(by_word), node, keys)
        return INVALID if word is INVALID else self._record(by_word[word], node, keys, others=form.records)

    def _tag(self, tag: str, words: tuple[str, ...], node: MapNode, keys: Keys) -> Any:
        if tag in node.values:
            return self.value(OneWord(words), node.values[tag], (*keys, tag))
        guess = next((name for name in node.keys if nearest(name, (tag,))), None)
        if guess:
            self._problems.add(node.keys[guess], (*keys, guess), "unknown key", suggestion=tag)
        else:
            self._problems.add(node.place, (*keys, tag), "is missing", expected=" or ".join(words))
        return INVALID

    def _list(self, form: ListOf, node: ListNode, keys: Keys) -> Any:
        if self._is_too_long(form.size, len(node.items), node, keys):
            return INVALID
        values: list[Any] = []
        firsts: dict[Hashable, int] = {}
        for index, item in enumerate(node.items):
            value = self.value(form.item, item, (*keys, index))
            if form.distinct and value is not INVALID:
                first = firsts.setdefault(frozenset(value.items()) if isinstance(value, dict) else value, index)
                if first != index:
                    self._problems.add(item.place, (*keys, index), f"the same as entry [{first}]", expected="each once")
                    value = INVALID  # whatever else is wrong with it is said of the first
            values.append(value)
        return tuple(values)

    def _map(self, form: MapOf, node: MapNode, keys: Keys) -> Any:
        if self._is_too_long(form.size, len(node.values), node, keys):
            return INVALID
        values: dict[str, Any] = {}
        for name, child in node.values.items():
            self.value(form.key, Value(node.keys[name], name, name), (*keys, name))
            value = self.value(form.value, child, (*keys, name))
            if value is not INVALID:
                values[name] = value
        return values

    def _text(self, form: Text, node: Value, text: str, keys: Keys) -> Any:
        if form.pattern and not re.fullmatch(form.pattern.regex, text):
            return self._wrong(form, node, keys)
        if form.convert is None:
            return text
        try:
            return form.convert.function(text, self._bases)
        except ValueError as error:
            self._problems.add(node.place, keys, str(error))
            return INVALID

    def _choice(self, form: OneWord, node: Value, text: str, keys: Keys) -> Any:
        if text in form.values:
            return text
        what = f"'{text}' is not known here"
        self._problems.add(node.place, keys, what, expected=describe(form), suggestion=nearest(text, form.values))
        return INVALID

    def _is_too_long(self, size: Size | None, count: int, node: Node, keys: Keys) -> bool:
        """Add a problem for too many or too few entries. Returns whether they are too many to be read all the same."""
        if size is None:
            return False
        too_long = size.high is not None and count > size.high
        if too_long or count < size.low:
            what = f"has {count} entries" if count else "is empty"
            self._problems.add(node.place, keys, what, expected=size.expected)
        return too_long and count > _GUESSES

    def _unknown_key(self, form: Record, node: MapNode, keys: Keys, guess: str, others: Iterable[Record]) -> None:
        name = str(keys[-1])
        what, expected = "unknown key", ""
        if not guess and any(name in other.fields for other in others):
            first = next(iter(form.fields))
            chosen = node.values.get(first)
            what = f"does not go with {first}: {chosen.text}" if isinstance(chosen, Value) else "does not go here"
        if not guess:
            expected = "one of " + ", ".join(form.fields)
        self._problems.add(node.keys[name], keys, what, expected=expected, suggestion=guess)

    def _wrong(self, form: Form, node: Node, keys: Keys) -> _Invalid:
        if not isinstance(node, Unreadable):
            expected = describe(form)
            if isinstance(form, Text) and isinstance(node, Value) and node.data is not None:
                numeric = not isinstance(node.data, str)
                expected += " (in quotes, as it reads as a number or a truth value)" if numeric else ""
            self._problems.add(node.place, keys, _found(node), expected=expected)
        return INVALID


def _numbers(node: Node) -> NumberTree | None:
    """The numbers and truth values of nested lists, as nested tuples; None if there is anything else."""
    if isinstance(node, ListNode):
        items = [_numbers(item) for item in node.items]
        return None if None in items else tuple(items)
    if not isinstance(node, Value) or not isinstance(node.data, bool | int | float):
        return None
    return node.data if math.isfinite(node.data) else None


def _same_kind(form: Form, node: Node) -> bool:
    """Whether `form` is written as a scalar, a list or a mapping, as `node` is."""
    if isinstance(form, ListOf):
        return isinstance(node, ListNode)
    return isinstance(node, MapNode if isinstance(form, MapOf | Record) else Value)


def _words(record: Record, tag: str) -> tuple[str, ...]:
    form = record.fields[tag].form
    return form.values if isinstance(form, OneWord) else ()


def _found(node: Node) -> str:
    """What is written at a node, in words."""
    if isinstance(node, ListNode):
        return "a list"
    if not isinstance(node, Value):
        return "a mapping"
    shown = node.text if len(node.text) <= 60 else node.text[:57] + "..."
    kinds: Mapping[type, str] = {str: f"text '{shown}'", bool: shown, type(None): "no value"}
    return kinds.get(type(node.data), f"number {shown}")
