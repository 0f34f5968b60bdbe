"""The tree of a YAML document, whose values know where they were written. :mod:`.parse` makes it."""

from __future__ import annotations

import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from pipeline.config.yaml.problems import Keys, Place, Problems
from pipeline.frozen import dataclass

MAX_BYTES = 1 << 20

Scalar = None | bool | int | float | str


@dataclass(frozen=True)
class Value:
    """A scalar: its text as written, and what that text means."""

    place: Place
    text: str
    data: Scalar


@dataclass(frozen=True)
class ListNode:
    """A sequence."""

    place: Place
    items: tuple[Node, ...]


@dataclass(frozen=True)
class MapNode:
    """A mapping; `keys` holds the place of each key."""

    place: Place
    keys: Mapping[str, Place]
    values: Mapping[str, Node]


@dataclass(frozen=True)
class Unreadable:
    """Stands for something that was refused, so that reading can go on; its problem was added already."""

    place: Place


Node = Value | ListNode | MapNode | Unreadable


def read(path: Path, file: str, problems: Problems) -> bytes | None:
    """The bytes of a file, or None and a problem if it is too large or can't be read. Waits for no pipe or device."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            problems.add(Place(file), (), "is a folder, a device or a pipe", expected="a file")
        elif status.st_size > MAX_BYTES:
            problems.add(Place(file), (), "is too large", expected=f"at most {MAX_BYTES} bytes")
        else:
            return path.read_bytes()
    except OSError as error:
        problems.add(Place(file), (), f"can't be read: {error.strerror or error}")
    return None


def place_of(node: Node, keys: Keys) -> Place:
    """The place of the value at `keys` or, if it is not written, of the nearest value around it."""
    for key in keys:
        if isinstance(node, MapNode) and isinstance(key, str) and key in node.values:
            node = node.values[key]
        elif isinstance(node, ListNode) and isinstance(key, int) and key < len(node.items):
            node = node.items[key]
        else:
            break
    return node.place


def walk(node: Node, keys: Keys = ()) -> Iterator[tuple[Keys, Node]]:
    """`node` and every node below it, each after its path in the document."""
    yield keys, node
    if isinstance(node, MapNode):
        for key, value in node.values.items():
            yield from walk(value, (*keys, key))
    elif isinstance(node, ListNode):
        for index, item in enumerate(node.items):
            yield from walk(item, (*keys, index))
