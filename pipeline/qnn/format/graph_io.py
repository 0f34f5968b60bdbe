"""The inputs and outputs of a graph, as a context binary declares them: what any program that runs it has to know.

A tensor is QNN's `Qnn_Tensor_t` of 144 bytes, version 1 or 2, whose union begins at byte 8 and holds a
`Qnn_QuantizeParams_t` of 40 bytes at byte 40; the numbers of data types and of encodings are those of `QnnTypes.h`
(core API 2.31 to 2.40, as `github.com/pytorch/executorch` and `github.com/google-ai-edge/LiteRT` use them). The caller
holds names and shapes against the ONNX model, which a wrong layout would not pass.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

IS_INPUT, IS_OUTPUT = 0, 1
"""A tensor that the application writes, and one that it reads."""

DTYPES: Mapping[int, DTypeLike] = {
    0x0008: np.int8, 0x0016: np.int16, 0x0032: np.int32, 0x0064: np.int64,
    0x0108: np.uint8, 0x0116: np.uint16, 0x0132: np.uint32, 0x0164: np.uint64,
    0x0216: np.float16, 0x0232: np.float32, 0x0264: np.float64,
    0x0308: np.int8, 0x0316: np.int16, 0x0332: np.int32,
    0x0408: np.uint8, 0x0416: np.uint16, 0x0432: np.uint32, 0x0508: np.bool_,
}  # fmt: skip
"""The element types of graph inputs and outputs. From 0x0300 on they are fixed point: encoded."""

_DEFINED = 1
_SCALE_OFFSET = 0
_MOST_DIMS = 8
_NEITHER_1_NOR_2 = "a tensor record of version {}; 1 and 2 are known here"


@dataclass(frozen=True)
class BinaryEncoding:
    """How a float is encoded: `scale * (q - zero_point)`, in float32."""

    scale: float
    zero_point: int

    def decoded(self, quantized: NDArray[Any]) -> NDArray[np.float32]:
        """The floats, computed as ONNX's DequantizeLinear is defined."""
        steps = (quantized.astype(np.int32) - np.int32(self.zero_point)).astype(np.float32)
        return np.asarray(steps * np.float32(self.scale))

    def encoded(self, values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
        """The integers, computed as ONNX's QuantizeLinear is defined: halves to the even one, saturated."""
        limits = np.iinfo(dtype)
        rounded = np.rint(values.astype(np.float32) / np.float32(self.scale)) + np.float32(self.zero_point)
        return np.asarray(np.clip(rounded, limits.min, limits.max).astype(dtype))

    def __str__(self) -> str:
        return f"scale {self.scale:.9g}, zero point {self.zero_point}"


@dataclass(frozen=True)
class EdgeTensor:
    """An input or output: QNN's `id` of it and of its data type; `encoding` is None for what is not encoded."""

    name: str
    id: int = field(compare=False)  # differs between SoCs
    data_type: int
    shape: tuple[int, ...]
    encoding: BinaryEncoding | None

    @property
    def dtype(self) -> np.dtype[Any]:
        """The element type in memory."""
        return np.dtype(DTYPES[self.data_type])

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype} [{', '.join(map(str, self.shape))}]"


class UnknownTensorError(ValueError):
    """A record that is not as this module knows it; the message says what it has."""


def copied(tensors: int | None, count: int, kind: int) -> Iterator[EdgeTensor]:
    """What is declared at the address `tensors`, whose library still holds it.

    Raises:
        UnknownTensorError: a record is of another form.
    """
    records = ctypes.cast(ctypes.c_void_p(tensors), ctypes.POINTER(Tensor))
    for index in range(count):
        yield _copied(records[index], kind)


def filled(record: Tensor, tensor: EdgeTensor, array: NDArray[Any], kind: int) -> None:
    """Make an empty `record` stand for a tensor whose data are in `array`, which the caller keeps, as `tensor` too."""
    record.version = 1
    record.id, record.name, record.kind, record.data_type = tensor.id, tensor.name.encode(), kind, tensor.data_type
    record.rank, record.dims = len(tensor.shape), (ctypes.c_uint32 * len(tensor.shape))(*tensor.shape)
    record.data, record.data_size = array.ctypes.data, array.nbytes
    if tensor.encoding:
        params = record.encoding
        params.definition, params.kind = _DEFINED, _SCALE_OFFSET
        params.scale, params.offset = tensor.encoding.scale, -tensor.encoding.zero_point


def _copied(record: Tensor, kind: int) -> EdgeTensor:
    if record.version not in (1, 2):
        raise UnknownTensorError(_NEITHER_1_NOR_2.format(record.version))
    if record.kind != kind or record.rank > _MOST_DIMS or record.data_type not in DTYPES:
        raise UnknownTensorError(
            f"a tensor of kind {record.kind}, rank {record.rank} and data type {record.data_type:#06x}"
        )
    params = record.encoding
    encoding = None
    if params.definition == _DEFINED and record.data_type >= 0x0300 and record.data_type != 0x0508:
        if params.kind != _SCALE_OFFSET:
            raise UnknownTensorError(f"a tensor with encoding {params.kind}, not one scale and offset")
        encoding = BinaryEncoding(params.scale, -params.offset)
    name = (record.name or b"").decode("utf-8", "replace")
    shape = tuple(record.dims[axis] for axis in range(record.rank))
    return EdgeTensor(name, record.id, record.data_type, shape, encoding)


class _QuantizeParams(ctypes.Structure):
    _fields_ = (
        ("definition", ctypes.c_uint32),
        ("kind", ctypes.c_uint32),
        ("scale", ctypes.c_float),  # what follows is a union, of which this and the next are one member
        ("offset", ctypes.c_int32),
        ("_union", ctypes.c_uint64 * 3),
    )


class Tensor(ctypes.Structure):
    """`Qnn_Tensor_t`: version 1 ends before `_dynamic_dims`, its size is that of version 2."""

    _fields_ = (
        ("version", ctypes.c_uint32),
        ("_padding", ctypes.c_uint32),  # what follows is a union, aligned for the pointers in it
        ("id", ctypes.c_uint32),
        ("name", ctypes.c_char_p),
        ("kind", ctypes.c_uint32),
        ("data_format", ctypes.c_uint32),
        ("data_type", ctypes.c_uint32),
        ("encoding", _QuantizeParams),
        ("rank", ctypes.c_uint32),
        ("dims", ctypes.POINTER(ctypes.c_uint32)),
        ("memory_type", ctypes.c_uint32),
        ("data", ctypes.c_void_p),
        ("data_size", ctypes.c_uint32),
        ("_dynamic_dims", ctypes.c_void_p),
        ("_sparse", ctypes.c_uint32 * 3),
        ("_produced", ctypes.c_uint8),
    )
