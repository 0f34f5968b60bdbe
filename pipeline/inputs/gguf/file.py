"""Reads GGUF files: metadata and the directory of tensors, without touching a weight.

The format is that of https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little-endian: a
header, metadata, a directory of tensors, padding, and the tensors' bytes. Arrays in the metadata (a vocabulary has
262,144 strings) stay in the file until somebody asks for them.

Whatever a file says, :func:`read_gguf` returns or raises a ModelError: counts, lengths and offsets are compared with
the size of the file before they are used.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import ModelError
from pipeline.graph.files.blocks import FORMATS, BlockFormat

MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MOST_KEYS, _MOST_TENSORS, _MOST_DIMS = 65_536, 65_536, 4
_LONGEST_KEY = 65_535  # bytes; the format's own limit
_LONGEST_NAME = 256
_MOST_ELEMENTS = 1 << 36
_MOST_METADATA = 1 << 28
_ALIGNMENT = 32
"""The default of `general.alignment`."""

_STRING: Final = 8
_ARRAY: Final = 9
_SCALARS: Mapping[int, str] = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
"""The value types of metadata: number in the file -> format of :mod:`struct`."""

Value = int | float | bool | str


@dataclass(frozen=True)
class StoredArray:
    """An array of the metadata that is still in the file: type, number and offset in bytes of its elements."""

    kind: int
    count: int
    offset: int


@dataclass(frozen=True)
class GgufTensor:
    """One tensor: its shape in numpy's order (the slowest axis first), how it is stored, and where, in bytes."""

    name: str
    shape: tuple[int, ...]
    form: BlockFormat
    offset: int
    nbytes: int


@dataclass(frozen=True)
class GgufFile:
    """Metadata and tensors of a file. Offsets of tensors count from the start of the file."""

    path: Path
    metadata: Mapping[str, Value | StoredArray]
    tensors: Mapping[str, GgufTensor] = field(default_factory=dict)

    def text(self, key: str, default: str | None = None) -> str | None:
        """A string of the metadata; the default if there is no string of this name."""
        found = self.metadata.get(key)
        return found if isinstance(found, str) else default

    def number(self, key: str) -> float | None:
        """A number of the metadata; None if there is no number of this name."""
        found = self.metadata.get(key)
        return found if isinstance(found, int | float) and not isinstance(found, bool) else None

    def flag(self, key: str) -> bool | None:
        """A truth value of the metadata; None if there is no truth value of this name."""
        found = self.metadata.get(key)
        return found if isinstance(found, bool) else None

    def strings(self, key: str) -> list[str]:
        """An array of strings; empty if there is none of this name. Bytes that are no UTF-8 are replaced.

        Raises:
            ModelError: the file was changed since it was read.
        """
        stored = self.metadata.get(key)
        if not isinstance(stored, StoredArray) or stored.kind != _STRING:
            return []
        with self.path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            reader = _Reader(data, self.path.name, stored.offset)
            return [reader.string().decode("utf-8", "replace") for _ in range(stored.count)]

    def numbers(self, key: str) -> NDArray[np.float64]:
        """An array of numbers as float64 [count]; empty if there is none of this name."""
        stored = self.metadata.get(key)
        if not isinstance(stored, StoredArray) or stored.kind not in _SCALARS:
            return np.zeros(0)
        dtype = np.dtype("<" + _SCALARS[stored.kind])
        with self.path.open("rb") as stream:
            stream.seek(stored.offset)
            raw = stream.read(stored.count * dtype.itemsize)
        return np.frombuffer(raw, dtype).astype(np.float64)


def read_gguf(path: Path) -> GgufFile:
    """Read header, metadata and directory, which takes milliseconds whatever the size of the file.

    Raises:
        ModelError: it is no GGUF file, has another version, was cut short, or contradicts itself.
    """
    if path.stat().st_size < 24:
        raise _refused(path.name, f"it has {path.stat().st_size} bytes, less than a header")
    with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        reader = _Reader(data, path.name)
        if reader.take(4) != MAGIC:
            raise _refused(path.name, "it does not begin with the letters GGUF")
        version = reader.whole("I")
        if version not in _VERSIONS:
            other = int.from_bytes(version.to_bytes(4, "little"), "big")
            why = "it is big-endian" if other in _VERSIONS else f"it is of version {version}"
            raise _refused(path.name, f"{why}; versions 2 and 3, little-endian, can be read")
        tensor_count, key_count = reader.whole("Q"), reader.whole("Q")
        if tensor_count > _MOST_TENSORS or key_count > _MOST_KEYS:
            raise _refused(path.name, f"it claims {tensor_count} tensors and {key_count} keys of metadata")
        metadata = _metadata(reader, key_count)
        alignment = metadata.get("general.alignment", _ALIGNMENT)
        if not isinstance(alignment, int) or alignment not in [1 << bit for bit in range(3, 17)]:
            raise _refused(path.name, f"general.alignment is {alignment!r}, not a power of two from 8 to 65536")
        _check_whole(path.name, metadata)
        tensors = _directory(reader, tensor_count, alignment)
    return GgufFile(path, metadata, tensors)


def _check_whole(name: str, metadata: Mapping[str, Value | StoredArray]) -> None:
    """Refuse a part of a model that `llama-gguf-split` cut into several files."""
    parts, part = metadata.get("split.count", 1), metadata.get("split.no", 0)
    if parts != 1:
        number = part + 1 if isinstance(part, int) else part
        raise ModelError(
            f"{name} is part {number} of {parts} of a model",
            why="by 'split.count' of its metadata the other parts are in files of their own, which are not read",
            remedy="join the parts with llama.cpp's 'llama-gguf-split --merge', part 1 first, and name the result",
        )


class _Reader:
    """Takes values from the front of a file, and never beyond its end."""

    def __init__(self, data: mmap.mmap, name: str, at: int = 0) -> None:
        self.at = at
        self.name = name
        self.size = len(data)
        self._data = data

    def take(self, count: int) -> bytes:
        if count > self.size - self.at:
            raise _refused(self.name, f"at byte {self.at} it needs {count} more, and has {self.size - self.at}")
        found = self._data[self.at : self.at + count]
        self.at += count
        return found

    def skip(self, count: int) -> None:
        if count > self.size - self.at or self.at + count > _MOST_METADATA:
            raise _refused(self.name, f"at byte {self.at} it claims an array of {count} bytes")
        self.at += count

    def skip_strings(self, count: int) -> None:
        """Pass over strings in one call: a vocabulary has hundreds of thousands."""
        at, end, length = self.at, min(self.size, _MOST_METADATA), struct.Struct("<Q").unpack_from
        for _ in range(count):
            if at + 8 > end:
                raise _refused(self.name, f"at byte {self.at} it claims {count} strings, which end beyond the file")
            at += 8 + length(self._data, at)[0]
        if at > end:
            raise _refused(self.name, f"at byte {self.at} it claims {count} strings, which end beyond the file")
        self.at = at

    def scalar(self, code: str) -> Value:
        form = struct.Struct("<" + code)
        value: Value = form.unpack(self.take(form.size))[0]
        return value

    def whole(self, code: str) -> int:
        return int(self.scalar(code))

    def string(self, longest: int | None = None) -> bytes:
        count = self.whole("Q")
        if longest is not None and count > longest:
            raise _refused(self.name, f"at byte {self.at} it has a name of {count} bytes; {longest} are the most")
        return self.take(count)


def _metadata(reader: _Reader, count: int) -> dict[str, Value | StoredArray]:
    found: dict[str, Value | StoredArray] = {}
    for _ in range(count):
        key = reader.string(_LONGEST_KEY).decode("utf-8", "replace")
        if key in found:
            raise _refused(reader.name, f"the key {key[:100]!r} is there twice")
        found[key] = _value(reader, key)
        if reader.at > _MOST_METADATA:
            raise _refused(reader.name, f"its metadata is longer than {_MOST_METADATA} bytes")
    return found


def _value(reader: _Reader, key: str) -> Value | StoredArray:
    kind = reader.whole("I")
    if kind in _SCALARS:
        return reader.scalar(_SCALARS[kind])
    if kind == _STRING:
        return reader.string(_MOST_METADATA).decode("utf-8", "replace")
    if kind != _ARRAY:
        raise _refused(reader.name, f"the key {key[:100]!r} has a value of type {kind}, which there is none of")
    element, count = reader.whole("I"), reader.whole("Q")
    offset = reader.at
    if element in _SCALARS:
        reader.skip(count * struct.calcsize("<" + _SCALARS[element]))
    elif element == _STRING:
        if count > (reader.size - reader.at) // 8:  # each has its length at least
            raise _refused(reader.name, f"the key {key[:100]!r} claims {count} strings")
        reader.skip_strings(count)
    else:
        raise _refused(reader.name, f"the key {key[:100]!r} is an array of type {element}, which is not supported")
    return StoredArray(element, count, offset)


def _directory(reader: _Reader, count: int, alignment: int) -> dict[str, GgufTensor]:
    told: dict[str, tuple[tuple[int, ...], int, int]] = {}
    for _ in range(count):
        name = reader.string(_LONGEST_NAME).decode("utf-8", "replace")
        rank = reader.whole("I")
        if not 1 <= rank <= _MOST_DIMS:
            raise _refused(reader.name, f"tensor {name!r} has {rank} dims")
        dims = tuple(reader.whole("Q") for _ in range(rank))
        kind, offset = reader.whole("I"), reader.whole("Q")
        if name in told:
            raise _refused(reader.name, f"tensor {name!r} is there twice")
        told[name] = (dims[::-1], kind, offset)
    start = -(-reader.at // alignment) * alignment
    found = {name: _tensor(reader, name, *entry, start, alignment) for name, entry in told.items()}
    end = 0
    for tensor in sorted(found.values(), key=lambda tensor: tensor.offset):
        if tensor.offset < end:
            raise _refused(reader.name, f"tensor {tensor.name!r} lies over another one")
        end = tensor.offset + tensor.nbytes
    return found


def _tensor(
    reader: _Reader, name: str, shape: tuple[int, ...], kind: int, offset: int, start: int, alignment: int
) -> GgufTensor:
    form = FORMATS.get(kind)
    if form is None:
        known = ", ".join(each.name for each in FORMATS.values())
        raise ModelError(
            f"{reader.name} stores tensor {name!r} in a form that is not read here",
            why=f"its type has the number {kind}; those that are read are {known}",
            remedy="take another quantization of the model: Q8_0, Q4_0 or F16, for example",
        )
    elements = math.prod(shape)
    if not 0 < elements <= _MOST_ELEMENTS or any(dim > _MOST_ELEMENTS for dim in shape):
        raise _refused(reader.name, f"tensor {name!r} has dims {list(shape)}")
    if shape[-1] % form.elements:
        raise _refused(reader.name, f"tensor {name!r} has rows of {shape[-1]}, {form.name} has {form.elements} a block")
    nbytes = elements // form.elements * form.nbytes
    if offset % alignment or start + offset + nbytes > reader.size:
        raise _refused(reader.name, f"tensor {name!r} of {nbytes} bytes is said to be at {start + offset}")
    return GgufTensor(name, shape, form, start + offset, nbytes)


def _refused(name: str, why: str) -> ModelError:
    return ModelError(f"{name} is not a GGUF file, or is damaged", why=why, remedy="fetch the file again")
