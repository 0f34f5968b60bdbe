"""Reads ExecuTorch programs that :mod:`.pte` wrote, and checks that they hold what they should."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from flatbuffers.number_types import Int32Flags, Uint8Flags, Uint32Flags, Uint64Flags
from flatbuffers.table import Table

from pipeline.errors import CompileError
from pipeline.frozen import dataclass
from pipeline.qnn.format.graph_io import EdgeTensor
from pipeline.qnn.format.pte import BACKEND, BINARY_HEADER_BYTES, MAGIC, SCALARS, TENSOR, ProgramBinary
from pipeline.store.digests import sha256_file

_HEAD = 40
"""Bytes of a file before its tables: place of the root, magic, extended header."""
_MOST_PROGRAM_BYTES = 64 << 20


@dataclass(frozen=True)
class ProgramMethod:
    """A method of a program: names of element types and shapes of its inputs and outputs, and its binary's place.

    `binary` is None for a method that calls no backend, as those that return numbers.
    """

    name: str
    inputs: tuple[tuple[str, tuple[int, ...]], ...]
    outputs: tuple[tuple[str, tuple[int, ...]], ...]
    binary: tuple[int, int] | None


def read_program(path: Path) -> tuple[ProgramMethod, ...]:
    """The methods of a program.

    Raises:
        CompileError: it is no program of the form that is written here.
    """
    with path.open("rb") as stream:
        head = stream.read(_HEAD)
        try:
            root, magic, extended, _, size, base, _ = struct.unpack("<I4s4sIQQQ", head)
            if magic != MAGIC or extended != b"eh00" or not _HEAD < size <= min(base, _MOST_PROGRAM_BYTES):
                raise ValueError("it has another head")
            stream.seek(0)
            return (*_methods(Table(bytearray(stream.read(size)), root), base),)
        except (struct.error, ValueError, IndexError, KeyError, TypeError) as error:
            raise _refused(path, str(error)) from None


def check_program(path: Path, binaries: Sequence[ProgramBinary]) -> None:
    """Check a program against the binaries it was made of: each graph is a method, with the bytes of its binary.

    Raises:
        CompileError: it is otherwise.
    """
    methods = {method.name: method for method in read_program(path) if method.binary}
    graphs = {graph.name: (binary, graph) for binary in binaries for graph in binary.graphs}
    if methods.keys() != graphs.keys():
        raise _refused(path, f"its methods are {sorted(methods)}, the graphs {sorted(graphs)}")
    for name, (binary, graph) in graphs.items():
        method = methods[name]
        for told, tensors in ((method.inputs, graph.inputs), (method.outputs, graph.outputs)):
            if told != tuple(map(_form, tensors)):
                raise _refused(path, f"{name} takes or gives {told}, its graph {', '.join(map(str, tensors))}")
        assert method.binary is not None
        if _digest(path, *method.binary) != sha256_file(binary.path):
            raise _refused(path, f"the binary of {name} is not {binary.path.name}")


def _form(tensor: EdgeTensor) -> tuple[str, tuple[int, ...]]:
    return tensor.dtype.name, tensor.shape


def _digest(path: Path, offset: int, size: int) -> str:
    """The SHA-256 of a binary in a program."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        stream.seek(offset)
        while size > 0 and (chunk := stream.read(min(size, 1 << 20))):
            digest.update(chunk)
            size -= len(chunk)
    return digest.hexdigest()


def _methods(program: Table, base: int) -> Iterator[ProgramMethod]:
    segments = [(base + _number(each, 0, Uint64Flags), _number(each, 1, Uint64Flags)) for each in _tables(program, 4)]
    names = {number: name for name, number in SCALARS.items()}
    for plan in _tables(program, 1):
        tensors = [_read_value(value, names) for value in _tables(plan, 2)]
        given, made = (
            tuple(tensors[place] for place in map(int, _numbers(plan, field, Int32Flags))) for field in (3, 4)
        )
        binary = None
        for delegate in _tables(plan, 7):
            if _text(delegate, 0) != BACKEND:
                raise ValueError(f"a backend {_text(delegate, 0)!r}")
            offset, size = segments[_number(_table(delegate, 1), 1, Uint32Flags)]
            binary = (offset + BINARY_HEADER_BYTES, size - BINARY_HEADER_BYTES)
        yield ProgramMethod(_text(plan, 0), given, made, binary)


def _read_value(value: Table, names: Mapping[int, str]) -> tuple[str, tuple[int, ...]]:
    """The element type and shape of a tensor; no type for what is a number."""
    if _number(value, 0, Uint8Flags) != TENSOR:
        return "", ()
    tensor = _table(value, 1)
    return names[_number(tensor, 0, Uint8Flags)], (*_numbers(tensor, 2, Int32Flags),)


def _field(table: Table, field: int) -> int:
    """Where a field is, from the table on; 0 if it is not there."""
    return int(table.Offset(4 + 2 * field))


def _number(table: Table, field: int, flags: type) -> int:
    return int(table.GetSlot(4 + 2 * field, 0, flags))


def _table(table: Table, field: int) -> Table:
    return Table(table.Bytes, table.Indirect(table.Pos + _present(table, field)))


def _tables(table: Table, field: int) -> list[Table]:
    if not _field(table, field):
        return []
    start = table.Vector(_field(table, field))
    return [Table(table.Bytes, table.Indirect(start + 4 * at)) for at in range(table.VectorLen(_field(table, field)))]


def _numbers(table: Table, field: int, flags: type) -> list[int]:
    found = table.GetVectorAsNumpy(flags, _field(table, field)) if _field(table, field) else np.zeros(0, np.int32)
    return [int(number) for number in found]


def _text(table: Table, field: int) -> str:
    return str(table.String(table.Pos + _present(table, field)).decode())


def _present(table: Table, field: int) -> int:
    place = _field(table, field)
    if not place:
        raise ValueError(f"a table without field {field}")
    return place


def _refused(path: Path, why: str) -> CompileError:
    return CompileError(
        f"{path.name} is no program with what was put into it", where=path.name, why=why, remedy="report this"
    )
