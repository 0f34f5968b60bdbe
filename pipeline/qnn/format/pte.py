"""Writes ExecuTorch programs around context binaries, and reads them, by flatbuffers alone.

A `.pte` is a flatbuffer of `schema/program.fbs`, with an extended header behind its first eight bytes, and segments
behind it. Each graph of a binary is a method that hands all its inputs and outputs to ExecuTorch's QNN backend; the
binary is the backend's data, behind a header of 256 bytes by which methods of one binary share it. The backend finds
a graph by the name of the method. The fields below are numbered as the schemas have them
(https://github.com/pytorch/executorch: `schema/program.fbs`, `schema/extended_header.cpp`,
`backends/qualcomm/serialization/qc_compiler_spec.fbs`, `backends/qualcomm/runtime/backends/QnnCustomProtocol.h`).
"""

from __future__ import annotations

import hashlib
import math
import shutil
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import flatbuffers

from pipeline.contracts.target import HtpTarget
from pipeline.frozen import dataclass
from pipeline.qnn.format.context_binary import GraphInfo
from pipeline.qnn.format.graph_io import EdgeTensor

BACKEND, SPEC = "QnnBackend", "qnn_compile_spec"
MAGIC, _HEADER_MAGIC, _HEADER_BYTES = b"ET12", b"eh00", 32
_SEGMENT_ALIGNMENT, _BUFFER_ALIGNMENT = 128, 16
_BINARY_MAGIC, BINARY_HEADER_BYTES = 0x5678ABCD, 256
_IN_SEGMENT = 1
_HTP = 2
TENSOR, _DOUBLE = 5, 4
"""Kinds of value: members of the union `KernelTypes`, from 1."""
_DELEGATE_CALL = 2
"""A kind of instruction: a member of the union `InstructionArguments`, from 1."""

SCALARS: Mapping[str, int] = {
    "uint8": 0, "int8": 1, "int16": 2, "int32": 3, "int64": 4, "float16": 5, "float32": 6, "float64": 7, "bool": 11,
    "uint16": 27, "uint32": 28, "uint64": 29,
}  # fmt: skip
"""ExecuTorch's numbers of element types, `scalar_type.fbs`."""

_PREPEND: Mapping[str, Callable[..., None]] = {
    "bool": flatbuffers.Builder.PrependBoolSlot,
    "int8": flatbuffers.Builder.PrependInt8Slot,
    "int32": flatbuffers.Builder.PrependInt32Slot,
    "uint8": flatbuffers.Builder.PrependUint8Slot,
    "uint32": flatbuffers.Builder.PrependUint32Slot,
    "uint64": flatbuffers.Builder.PrependUint64Slot,
    "float64": flatbuffers.Builder.PrependFloat64Slot,
    "table": flatbuffers.Builder.PrependUOffsetTRelativeSlot,
}
"""What puts a field of a type into a table."""

PERFORMANCE_MODES = (
    "default", "sustained_high_performance", "burst", "high_performance", "power_saver", "low_power_saver",
    "high_power_saver", "low_balanced", "balanced",
)  # fmt: skip
"""The performance modes that ExecuTorch knows, in the order of its numbers."""


@dataclass(frozen=True)
class ProgramBinary:
    """A context binary that goes into a program, and what it says of its graphs."""

    path: Path
    graphs: tuple[GraphInfo, ...]


def write_program(
    path: Path, binaries: Sequence[ProgramBinary], target: HtpTarget, performance_mode: str = "default"
) -> None:
    """Write a program whose methods are the graphs of the binaries. Equal binaries give equal bytes.

    A tensor that is encoded has two more methods that return its numbers: `<graph>.<tensor>.scale` and `.zero_point`.
    """
    builder = flatbuffers.Builder(1 << 16)
    options = _options(target, performance_mode)
    plans = []
    for number, binary in enumerate(binaries):
        for graph in binary.graphs:
            plans.append(_method(builder, graph, number, options))
            for tensor in (*graph.inputs, *graph.outputs):
                if tensor.encoding:
                    name = f"{graph.name}.{tensor.name}"
                    plans.append(_number(builder, f"{name}.scale", tensor.encoding.scale))
                    plans.append(_number(builder, f"{name}.zero_point", tensor.encoding.zero_point))
    sizes = [BINARY_HEADER_BYTES + binary.path.stat().st_size for binary in binaries]
    offsets = [sum(map(_aligned, sizes[:number])) for number in range(len(sizes))]
    placed = zip(offsets, sizes, strict=True)
    segments = [_table(builder, 2, {0: ("uint64", offset), 1: ("uint64", size)}) for offset, size in placed]
    constants = _table(builder, 2, {1: ("table", _numbers(builder, [0], 8))})  # none; place 0 is no constant's
    fields = {1: _vector(builder, plans), 3: _vector(builder, []), 4: _vector(builder, segments), 5: constants}
    builder.Finish(_tables(builder, 8, fields), file_identifier=MAGIC)
    program = bytes(builder.Output())
    base = _aligned(len(program) + _HEADER_BYTES)
    header = struct.pack(
        "<4sIQQQ", _HEADER_MAGIC, _HEADER_BYTES, len(program) + _HEADER_BYTES, base, offsets[-1] + sizes[-1]
    )
    (start,) = struct.unpack_from("<I", program)
    with path.open("wb") as stream:
        stream.write(struct.pack("<I", start + _HEADER_BYTES) + program[4:8] + header + program[8:])
        for binary, offset in zip(binaries, offsets, strict=True):
            stream.write(bytes(base + offset - stream.tell()))
            stream.write(_binary_header(binary.path))
            with binary.path.open("rb") as source:
                shutil.copyfileobj(source, stream, 1 << 20)


def _binary_header(binary: Path) -> bytes:
    """What ExecuTorch knows a binary by, made of its content: binaries of one signature are one context."""
    with binary.open("rb") as stream:
        signature = hashlib.file_digest(stream, "sha256").digest()[:8]
    size = struct.pack("<Q", binary.stat().st_size)
    return (struct.pack("<I", _BINARY_MAGIC) + signature + size).ljust(BINARY_HEADER_BYTES, b"\0")


def _method(builder: flatbuffers.Builder, graph: GraphInfo, binary: int, options: bytes) -> int:
    """An ExecutionPlan with one instruction: a call of the backend with all inputs and outputs."""
    values, used = [], 0
    for tensor in (*graph.inputs, *graph.outputs):
        values.append(_union(builder, TENSOR, _tensor(builder, tensor, used)))
        used += -(-_bytes_of(tensor) // _BUFFER_ALIGNMENT) * _BUFFER_ALIGNMENT
    places = range(len(values))
    call = _tables(builder, 2, {1: _numbers(builder, places)})
    steps = _vector(builder, [_union(builder, _DELEGATE_CALL, call)])
    spec = _tables(builder, 2, {0: builder.CreateString(SPEC), 1: builder.CreateByteVector(options)})
    where = _table(builder, 2, {0: ("int8", _IN_SEGMENT), 1: ("uint32", binary)})
    delegate = _tables(builder, 3, {0: builder.CreateString(BACKEND), 1: where, 2: _vector(builder, [spec])})
    given, made = places[: len(graph.inputs)], places[len(graph.inputs) :]
    return _plan(builder, graph.name, values, given, made, [0, used], steps, [delegate])


def _number(builder: flatbuffers.Builder, name: str, value: float) -> int:
    """An ExecutionPlan that returns a number."""
    values = [_union(builder, _DOUBLE, _table(builder, 1, {0: ("float64", value)}))]
    return _plan(builder, name, values, (), (0,), [0], _vector(builder, []), [])


def _plan(
    builder: flatbuffers.Builder,
    name: str,
    values: Sequence[int],
    given: Sequence[int],
    made: Sequence[int],
    memory: Sequence[int],
    steps: int,
    delegates: Sequence[int],
) -> int:
    inputs, outputs = _numbers(builder, given), _numbers(builder, made)
    chain = _tables(builder, 4, {0: inputs, 1: outputs, 2: steps})
    nothing = builder.CreateString("")
    fields = (
        builder.CreateString(name),
        _tables(builder, 2, {0: nothing, 1: nothing}),
        _vector(builder, values),
        inputs,
        outputs,
        _vector(builder, [chain]),
        _vector(builder, []),
        _vector(builder, delegates),
        _numbers(builder, memory, 8),
    )
    return _tables(builder, 10, dict(enumerate(fields)))


def _tensor(builder: flatbuffers.Builder, tensor: EdgeTensor, offset: int) -> int:
    """A Tensor of static shape whose memory is planned at `offset`."""
    low, high = ("uint32", offset & 0xFFFFFFFF), ("uint32", offset >> 32)
    fields = {
        0: ("int8", SCALARS[tensor.dtype.name]),
        2: ("table", _numbers(builder, tensor.shape)),
        3: ("table", builder.CreateByteVector(bytes(range(len(tensor.shape))))),
        6: ("table", _table(builder, 3, {0: ("uint32", 1), 1: low, 2: high})),
    }
    return _table(builder, 10, fields)


def _options(target: HtpTarget, performance_mode: str) -> bytes:
    """`QnnExecuTorchOptions`: what the context was compiled for, and that it is to be loaded as it is."""
    builder = flatbuffers.Builder(256)
    nothing = builder.CreateString("")
    packages = _tables(builder, 1, {0: _vector(builder, [])})
    htp = _table(builder, 2, {0: ("int32", target.htp_arch), 1: ("uint32", target.vtcm_mb or 0)})
    soc = _table(builder, 3, {0: ("int32", target.soc_model), 1: ("table", htp)})
    mode = PERFORMANCE_MODES.index(performance_mode) if performance_mode in PERFORMANCE_MODES else 0
    for_htp = _table(builder, 10, {1: ("int32", mode)})
    backend = _table(builder, 4, {0: ("int32", _HTP), 1: ("table", for_htp)})
    refs = {0: soc, 1: backend, 2: nothing, 10: nothing, 11: packages}
    builder.Finish(_table(builder, 13, {8: ("bool", True), **{at: ("table", ref) for at, ref in refs.items()}}))
    return bytes(builder.Output())


def _union(builder: flatbuffers.Builder, kind: int, value: int) -> int:
    """A table whose one member is a union: its kind, and what it is."""
    return _table(builder, 2, {0: ("uint8", kind), 1: ("table", value)})


def _tables(builder: flatbuffers.Builder, count: int, fields: Mapping[int, int]) -> int:
    """A table whose fields are tables, vectors or texts."""
    return _table(builder, count, {at: ("table", offset) for at, offset in fields.items()})


def _table(builder: flatbuffers.Builder, count: int, fields: Mapping[int, tuple[str, float]]) -> int:
    """A table of `count` fields, of which some have a value of a type."""
    builder.StartObject(count)
    for at, (kind, value) in fields.items():
        _PREPEND[kind](builder, at, value, 0)
    return int(builder.EndObject())


def _vector(builder: flatbuffers.Builder, offsets: Sequence[int]) -> int:
    builder.StartVector(4, len(offsets), 4)
    for offset in reversed(offsets):
        builder.PrependUOffsetTRelative(offset)
    return int(builder.EndVector())


def _numbers(builder: flatbuffers.Builder, values: Sequence[int], size: int = 4) -> int:
    """A vector of signed integers of `size` bytes, 4 or 8."""
    builder.StartVector(size, len(values), size)
    for value in reversed(values):
        (builder.PrependInt32 if size == 4 else builder.PrependInt64)(value)
    return int(builder.EndVector())


def _bytes_of(tensor: EdgeTensor) -> int:
    return math.prod(tensor.shape) * tensor.dtype.itemsize


def _aligned(size: int) -> int:
    return -(-size // _SEGMENT_ALIGNMENT) * _SEGMENT_ALIGNMENT
