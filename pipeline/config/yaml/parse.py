"""Parses YAML bytes into a tree of values that know where they were written.

The reader is stricter than YAML on purpose. Scalars follow the core schema of YAML 1.2, as editors do (`yes` and `010`
are text), a key may occur once, and tags, aliases and second documents are refused: a config needs none of them, and
with them a file can mean something else than it seems to. The tree is built from parser events, so limits apply before
anything grows, and hostile nesting never reaches a recursive composer.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping

import yaml

from pipeline.config.yaml.problems import Keys, Place, Problems
from pipeline.config.yaml.tree import MAX_BYTES, ListNode, MapNode, Node, Scalar, Unreadable, Value

MAX_DEPTH = 16
MAX_VALUES = 20_000

# Integers of up to 18 digits fit 64 bits. A longer one reads as a float, and is then refused as an integer.
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]{0,17})")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_WORDS: Mapping[str, Scalar] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), math.inf),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), -math.inf),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan),
}
_BRACKETED = re.compile(r"[{,]\s*([^\s'\"{},\[\]:]+\[\d+\])\s*:")
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def parse(data: bytes, file: str, problems: Problems) -> Node | None:
    """The tree of the one document in `data`, or None if it can't be read at all.

    `file` is the name that places carry. Never raises for what is in `data`; every mistake goes to `problems`.
    """
    if len(data) > MAX_BYTES:
        problems.add(Place(file), (), "is too large", expected=f"at most {MAX_BYTES} bytes")
        return None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8", "replace")
        problems.add(_place_after(before, file), (), f"byte 0x{data[error.start]:02x} is not UTF-8", expected="UTF-8")
        return None
    if found := _UNPRINTABLE.search(text):
        what = f"character U+{ord(found[0]):04X} is not allowed"
        problems.add(_place_after(text[: found.start()], file), (), what, expected="printable text")
        return None
    try:
        return _Builder(text, file, problems).document()
    except yaml.YAMLError as error:
        _add_syntax_error(error, text, file, problems)
    except _LimitPassedError:
        pass
    return None


class _LimitPassedError(Exception):
    """Reading stops here; the problem is on the list."""


class _Builder:
    """Turns the events of one parse into nodes."""

    def __init__(self, text: str, file: str, problems: Problems) -> None:
        # The C parser is some ten times faster; a PyYAML built without libyaml has none.
        loader = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
        self._events: Iterator[yaml.Event] = yaml.parse(text, Loader=loader)
        self._file = file
        self._problems = problems
        self._count = 0

    def document(self) -> Node | None:
        next(self._events)  # stream start
        if isinstance(next(self._events), yaml.StreamEndEvent):
            self._problems.add(Place(self._file), (), "is empty", expected="a mapping")
            return None
        root = self._node(next(self._events), ())
        next(self._events)  # document end
        after = next(self._events)
        if not isinstance(after, yaml.StreamEndEvent):
            self._problems.add(self._place(after), (), "a second document begins here", expected="one document a file")
        return root

    def _node(self, event: yaml.Event, keys: Keys) -> Node:
        place = self._place(event)
        self._count += 1
        if self._count > MAX_VALUES:
            self._problems.add(place, (), "too many values", expected=f"at most {MAX_VALUES} in a file")
            raise _LimitPassedError
        if len(keys) > MAX_DEPTH:
            self._problems.add(place, (), "nested too deeply", expected=f"at most {MAX_DEPTH} levels")
            raise _LimitPassedError
        node = self._content(event, place, keys)
        if isinstance(event, (yaml.ScalarEvent, yaml.CollectionStartEvent)) and event.tag is not None:
            self._problems.add(place, keys, f"tag '{event.tag}'", expected="a plain value, without a tag")
            return Unreadable(place)
        return node

    def _content(self, event: yaml.Event, place: Place, keys: Keys) -> Node:
        if isinstance(event, yaml.AliasEvent):
            self._problems.add(place, keys, f"alias '*{event.anchor}'", expected="the value written out")
            return Unreadable(place)
        if isinstance(event, yaml.ScalarEvent):
            # Only an unquoted scalar, whose style the two parsers report as "" or None, can be more than text.
            return Value(place, event.value, event.value if event.style else _meaning(event.value))
        if isinstance(event, yaml.SequenceStartEvent):
            items: list[Node] = []
            while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
                items.append(self._node(event, (*keys, len(items))))
            return ListNode(place, tuple(items))
        return self._mapping(place, keys)

    def _mapping(self, place: Place, keys: Keys) -> MapNode:
        places: dict[str, Place] = {}
        values: dict[str, Node] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key = self._node(event, (*keys, "?"))
            name = key.text if isinstance(key, Value) else ""
            value = self._node(next(self._events), (*keys, name))
            if name in values:
                what = f"key '{name}' is written twice, first on line {places[name].line}"
                self._problems.add(key.place, (*keys, name), what, expected="each key once")
            elif name:
                places[name], values[name] = key.place, value
            elif not isinstance(key, Unreadable):
                self._problems.add(key.place, keys, "a key that is no name", expected="a name before ':'")
        return MapNode(place, places, values)

    def _place(self, event: yaml.Event) -> Place:
        mark = event.start_mark
        return Place(self._file, mark.line + 1, mark.column + 1) if mark else Place(self._file)


def _meaning(text: str) -> Scalar:
    """What an unquoted scalar stands for."""
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    return text


def _place_after(text: str, file: str) -> Place:
    """The place right after `text`, the beginning of a file."""
    return Place(file, text.count("\n") + 1, len(text) - text.rfind("\n"))


def _add_syntax_error(error: yaml.YAMLError, text: str, file: str, problems: Problems) -> None:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    if mark is None:
        problems.add(Place(file), (), "is not YAML: " + " ".join(str(error).split()))
        return
    said = [str(part) for part in (getattr(error, "context", None), getattr(error, "problem", None)) if part]
    lines = text.splitlines()
    before = lines[mark.line][: mark.column + 1] if mark.line < len(lines) else ""
    expected = "spaces: YAML allows no tabs in indentation" if "\t" in before else ""
    if bracketed := _BRACKETED.search(lines[mark.line]) if mark.line < len(lines) else None:
        expected = f"a name with brackets in quotes: '{bracketed[1]}'"
    place = Place(file, mark.line + 1, mark.column + 1)
    problems.add(place, (), "is not YAML: " + ", ".join(said), expected=expected)
