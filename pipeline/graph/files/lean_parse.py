"""Parses an ONNX file without taking its weights into memory.

Weights inside an ONNX file are byte fields of a protobuf. Parsing the file the ordinary way holds all of them twice:
the file, and the parsed message. Here the file is mapped and its top levels walked field by field; every tensor that
carries :data:`~pipeline.graph.files.model_file.EXTERNAL_BYTES` or more of raw data becomes one whose external data is a
range of the very file, and only what remains, the graph, is parsed.

Wire format: https://protobuf.dev/programming-guides/encoding/. Field numbers: onnx.proto, which never reuses one.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.descriptor import FieldDescriptor  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError, Message  # type: ignore[import-untyped]
from onnx import ModelProto, StringStringEntryProto, TensorProto

from pipeline.errors import ModelError
from pipeline.graph.files.model_file import EXTERNAL_BYTES, PROTOBUF_LIMIT, not_onnx

GRAPH_LIMIT = 1 << 29
"""The largest graph, weights not counted, that is taken in (100,000 nodes are about 30 MB)."""

FIELD_LIMIT = 5_000_000
"""The most nodes, initializers and their parts that are taken in: the walk visits each."""

# Message -> field number -> message of the fields to walk into; nothing else can hold a large tensor of the main graph.
_CHILDREN: Mapping[str, Mapping[int, str]] = {
    "model": {7: "graph"},
    "graph": {1: "node", 5: "tensor"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor"},
}
_RAW_DATA, _EXTERNAL_DATA, _DATA_LOCATION = 9, 13, 14
_VARINT, _FIXED64, _LENGTH_DELIMITED, _FIXED32 = 0, 1, 2, 5


@dataclass(frozen=True)
class _Field:
    number: int
    wire_type: int
    start: int
    """Where the field's tag begins."""
    value: int
    """Where its payload begins."""
    end: int


def parse_lean(path: Path) -> ModelProto:
    """Parse an ONNX file whose large tensors stay in it, as external data at ``path.name``.

    Raises:
        ModelError: the file is no ONNX protobuf, is cut short, or its graph exceeds the limits of this module.
    """
    size = path.stat().st_size
    if size > PROTOBUF_LIMIT:
        raise ModelError(
            f"{path.name} is larger than an ONNX file can be",
            why=f"it has {size} bytes; protobuf messages end at 2 GiB",
            remedy="save the model with its weights as external data",
        )
    if size == 0:
        raise not_onnx(path.name, "the file is empty")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        walk = _Walk(data, path.name)
        lean = walk.message("model", 0, size)
    model = ModelProto()
    try:
        model.ParseFromString(lean)
    except DecodeError as error:
        raise not_onnx(
            path.name, "it can't be parsed as a protobuf, or its subgraphs are nested more than 30 deep"
        ) from error
    if not model.HasField("graph"):
        raise not_onnx(path.name, "it holds no graph")
    if not _texts_are_utf8(model):
        raise not_onnx(path.name, "a name in it is not UTF-8")
    return model


def _texts_are_utf8(message: Message) -> bool:
    """Whether all text fields hold text: protobuf hands out bytes, and ONNX's checker fails, where they don't."""
    for field, value in message.ListFields():
        values = value if field.is_repeated else (value,)
        if field.type == FieldDescriptor.TYPE_STRING:
            if not all(isinstance(text, str) for text in values):
                return False
        elif field.type == FieldDescriptor.TYPE_MESSAGE and not all(map(_texts_are_utf8, values)):
            return False
    return True


class _Walk:
    def __init__(self, data: mmap.mmap, file: str) -> None:
        self._data = data
        self._file = file
        self._fields_left = FIELD_LIMIT
        self._bytes_left = GRAPH_LIMIT

    def message(self, kind: str, start: int, end: int) -> bytes:
        """The message in [start, end), without the raw data of large tensors."""
        if kind == "tensor":
            return self._tensor(start, end)
        children = _CHILDREN[kind]
        pieces: list[bytes] = []
        copied = start
        for field in self._fields(start, end):
            child = children.get(field.number)
            if child and field.wire_type == _LENGTH_DELIMITED and field.end - field.value >= EXTERNAL_BYTES:
                pieces.append(self._take(copied, field.start))
                body = self.message(child, field.value, field.end)
                pieces += (_varint(field.number << 3 | _LENGTH_DELIMITED), _varint(len(body)), body)
                copied = field.end
        pieces.append(self._take(copied, end))
        return b"".join(pieces)

    def _tensor(self, start: int, end: int) -> bytes:
        fields = list(self._fields(start, end))
        raw = [field for field in fields if field.number == _RAW_DATA and field.wire_type == _LENGTH_DELIMITED]
        external = any(field.number in (_EXTERNAL_DATA, _DATA_LOCATION) for field in fields)
        if len(raw) != 1 or external or raw[0].end - raw[0].value < EXTERNAL_BYTES:
            return self._take(start, end)
        offset, length = raw[0].value, raw[0].end - raw[0].value
        reference = TensorProto(data_location=TensorProto.EXTERNAL)
        for key, value in (("location", self._file), ("offset", str(offset)), ("length", str(length))):
            reference.external_data.append(StringStringEntryProto(key=key, value=value))
        # Protobuf messages that follow each other are merged, so the reference is simply appended.
        lean = (self._take(start, raw[0].start), self._take(raw[0].end, end), reference.SerializeToString())
        return b"".join(lean)

    def _take(self, start: int, end: int) -> bytes:
        self._bytes_left -= end - start
        if self._bytes_left < 0:
            raise self._too_large(f"the graph alone, without large tensors, exceeds {GRAPH_LIMIT} bytes")
        taken: bytes = self._data[start:end]
        return taken

    def _fields(self, start: int, end: int) -> Iterator[_Field]:
        position = start
        while position < end:
            self._fields_left -= 1
            if self._fields_left < 0:
                raise self._too_large(f"it has more than {FIELD_LIMIT} nodes, tensors and attributes")
            tag, value = self._read_varint(position, end)
            wire_type = tag & 7
            if wire_type == _LENGTH_DELIMITED:
                length, value = self._read_varint(value, end)
                stop = value + length
            elif wire_type == _VARINT:
                _, stop = self._read_varint(value, end)
            elif wire_type in (_FIXED64, _FIXED32):
                stop = value + (8 if wire_type == _FIXED64 else 4)
            else:
                raise not_onnx(self._file, f"there is no protobuf field at byte {position}")
            if stop > end or tag < 8:
                raise not_onnx(self._file, f"the protobuf field at byte {position} is cut short")
            yield _Field(tag >> 3, wire_type, position, value, stop)
            position = stop

    def _read_varint(self, position: int, end: int) -> tuple[int, int]:
        result = shift = 0
        while position < end and shift < 64:
            byte = self._data[position]
            position += 1
            result |= (byte & 0x7F) << shift
            if byte < 0x80:
                return result, position
            shift += 7
        raise not_onnx(self._file, f"the protobuf number at byte {position} is cut short")

    def _too_large(self, why: str) -> ModelError:
        return ModelError(
            f"{self._file} holds a graph that is too large",
            why=why,
            remedy="fetch the file again if you expect a smaller one; split the model into components otherwise;"
            " decision trees, whose numbers are attributes, are for the CPU: QNN has no operator for them",
        )


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
