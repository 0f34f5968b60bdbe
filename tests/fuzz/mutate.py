"""Changes to an input: of its bytes, and of the structure that its reader sees in them."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

NUMBERS = (
    0,
    1,
    2,
    7,
    8,
    63,
    127,
    128,
    255,
    1023,
    1024,
    2**31 - 1,
    2**31,
    2**32,
    2**40,
    2**62,
    2**63 - 1,
    2**63,
    2**64 - 1,
)
WORDS = (
    b"", b"x", b"y", b"w", b"n", b".", b"..", b"../../x", b"/etc/passwd", b"\\", b"C:x", b"a\nb", b"\xff\xfe", b"\0",
    b"\x1b[31m", "\u202e한국어".encode(), b"location", b"Constant", b"If", b"Loop", b"Reshape", b"Identity", b"Cast",
    b"com.microsoft", b"EPContext", b"9" * 30, b"a" * 300, b"-1", b"1e999", b"NaN", b"<", b">", b"*", b"%s", b"{}",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, 2**70, 0.5, -0.0, 1e308, "", "x", "..", "../../x", "a\0b", "\ud800",
    "\x1b[31m", "9" * 400, [], {}, [[]], {"": {}}, "sm8650", "fp16",
)  # fmt: skip
_LARGEST = 1 << 16


def mutated(data: bytes, others: Sequence[bytes], kind: str, random: Random) -> bytes:
    """`data` after one to four changes; `kind` says what structure it has, `others` what parts may come from."""
    for _ in range(random.choice((1, 1, 2, 4))):
        structural = STRUCTURES.get(kind)
        if structural is not None and random.random() < 0.7:
            data = structural(data, others, random)
        else:
            data = _bytes(data, others, random)
    return data[:_LARGEST]


def _bytes(data: bytes, others: Sequence[bytes], random: Random) -> bytes:
    start = random.randint(0, len(data))
    end = min(len(data), start + random.choice((0, 1, 1, 2, 4, 8, 64)))
    match random.randrange(8):
        case 0:
            return data[:start]
        case 1:
            return data[:start] + data[end:]
        case 2:
            return data[:end] + data[start:]
        case 3:
            return data[:start] + random.choice(WORDS) + data[end:]
        case 4:
            number = random.choice(NUMBERS).to_bytes(8, random.choice(("little", "big")))
            return data[:start] + number[: random.choice((1, 2, 4, 8))] + data[end:]
        case 5:
            other = random.choice([*others, b"\0"])
            cut = random.randint(0, len(other))
            return data[:start] + other[cut : cut + random.choice((1, 8, 64, 4096))] + data[end:]
        case _:
            if not data:
                return bytes([random.randrange(256)])
            start = min(start, len(data) - 1)
            changed = data[start] ^ (1 << random.randrange(8)) if random.random() < 0.5 else random.randrange(256)
            return data[:start] + bytes([changed]) + data[start + 1 :]


# protobuf


@dataclass
class Field:
    """A field of a protobuf message: its number, its wire type, and a number, bytes, or the fields of a message."""

    number: int
    wire: int
    content: Any


@dataclass
class _Reader:
    data: bytes
    at: int = 0
    depth: int = 0

    def varint(self) -> int:
        result = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            result |= (byte & 0x7F) << shift
            if byte < 0x80:
                return result
            shift += 7
            if shift > 63:
                raise ValueError

    def fields(self) -> list[Field]:
        found = []
        while self.at < len(self.data):
            tag = self.varint()
            number, wire = tag >> 3, tag & 7
            if not number:
                raise ValueError
            if wire == 0:
                found.append(Field(number, wire, self.varint()))
                continue
            size = {1: 8, 5: 4}.get(wire) or (self.varint() if wire == 2 else -1)
            body = self.data[self.at : self.at + size]
            if size < 0 or len(body) != size:
                raise ValueError
            self.at += size
            found.append(Field(number, wire, _content(body, self.depth) if wire == 2 else body))
        return found


def _content(body: bytes, depth: int) -> Any:
    if len(body) < 2 or depth > 12 or (body.isascii() and body.decode().isprintable()):
        return body
    try:
        return _Reader(body, 0, depth + 1).fields()
    except (ValueError, IndexError):
        return body


def _written(fields: Sequence[Field]) -> bytes:
    out = bytearray()
    for each in fields:
        out += _varint(each.number << 3 | each.wire)
        if each.wire == 0:
            out += _varint(each.content)
        elif each.wire == 2:
            body = _written(each.content) if isinstance(each.content, list) else each.content
            out += _varint(len(body)) + body
        else:
            out += each.content
    return bytes(out)


def _varint(value: int) -> bytes:
    out = bytearray()
    value &= 2**64 - 1
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _messages(fields: list[Field]) -> list[list[Field]]:
    found = [fields]
    for each in fields:
        if isinstance(each.content, list):
            found += _messages(each.content)
    return found


def _protobuf(data: bytes, others: Sequence[bytes], random: Random) -> bytes:
    try:
        top = _Reader(data).fields()
        donor = _Reader(random.choice(others)).fields() if others and random.random() < 0.3 else top
    except (ValueError, IndexError):
        return _bytes(data, others, random)
    message = random.choice([each for each in _messages(top) if each] or [top])
    if not message:
        return _bytes(data, others, random)
    at = random.randrange(len(message))
    chosen = message[at]
    given = copy.deepcopy(random.choice(random.choice([each for each in _messages(donor) if each])))
    match random.randrange(7):
        case 0:
            del message[at]
        case 1:
            message.insert(at, copy.deepcopy(chosen))
        case 2:
            message.insert(at, given)
        case 3 if isinstance(given.content, type(chosen.content)):
            chosen.content = given.content
        case 4:
            chosen.number = random.choice((chosen.number + 1, chosen.number - 1 or 1, random.randint(1, 25)))
        case 5 if isinstance(chosen.content, list):
            chosen.content.append(copy.deepcopy(random.choice((chosen, given))))
        case _:
            random.shuffle(message) if random.random() < 0.1 else _set(chosen, random)
    return _written(top)


def _set(chosen: Field, random: Random) -> None:
    if chosen.wire == 0:
        chosen.content = random.choice(NUMBERS)
    elif chosen.wire == 2:
        chosen.content = random.choice(WORDS)
    else:
        chosen.content = random.randbytes(len(chosen.content))


# JSON


def _json(data: bytes, others: Sequence[bytes], random: Random) -> bytes:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return _bytes(data, others, random)
    places = [*_places(value)]
    if not places:
        return json.dumps(random.choice(VALUES)).encode()
    holder, key = random.choice(places)
    match random.randrange(4):
        case 0:
            del holder[key]
        case 1:
            other, there = random.choice(places)
            holder[key] = copy.deepcopy(other[there])
        case 2 if isinstance(holder, dict):
            holder[random.choice([each for each in VALUES if isinstance(each, str)])] = holder.pop(key)
        case _:
            holder[key] = copy.deepcopy(random.choice(VALUES))
    return json.dumps(value, ensure_ascii=True).encode()


def _places(value: Any) -> list[tuple[Any, Any]]:
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [place for key in keys for place in ((value, key), *_places(value[key]))]


# text


_SIGNS = ("\t", "\n", "  ", "- ", ": ", "&a ", "*a", "!!x ", "|\n", "'", '"', "[", "}")


def _text(data: bytes, others: Sequence[bytes], random: Random) -> bytes:
    pieces = re.split(rb"(\s+|[:,\[\]{}'\"])", data)
    at = random.randrange(len(pieces))
    match random.randrange(5):
        case 0:
            del pieces[at]
        case 1:
            pieces.insert(at, random.choice(pieces))
        case 2:
            pieces[at] = random.choice(_SIGNS).encode()
        case 3:
            pieces[at] = json.dumps(random.choice(VALUES)).encode()
        case _:
            pieces[at] = random.choice(pieces)
    return b"".join(pieces)


STRUCTURES: Mapping[str, Callable[[bytes, Sequence[bytes], Random], bytes]] = {
    "protobuf": _protobuf,
    "json": _json,
    "text": _text,
}
