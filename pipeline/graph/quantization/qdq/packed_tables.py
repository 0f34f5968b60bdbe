"""Tables of Gather in 4 bits: two integers in each byte, which the graph takes apart behind the lookup.

QNN takes an int4 table and stores a byte for each of its numbers; one with scales in blocks is looked up on the CPU. So
a row holds bytes ``b = 16 * upper + lower + 136``, with both parts from -8 to 7: the upper ones are the first half of
its columns, the lower ones the second. Every `block` columns share a scale, which is looked up in a second table::

    t = Gather (pairs, indices)            (b - 136) / 16 = upper + lower / 16
    upper = Floor (t + 17/32)              1/32 away from every integer, whatever rounds on the way
    lower = t - upper
    y = Reshape (Concat (upper / 16, lower)) * Gather (scales, indices)

All of it but the last product is exact in 16 bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto

from pipeline.graph.ir.attributes import integer
from pipeline.graph.ir.index import GraphIndex, element_type, is_op
from pipeline.graph.ir.tensor_chunks import Pieces
from pipeline.graph.quantization.calibration.ranges import MIN_WIDTH, Range
from pipeline.graph.quantization.qdq.qdq_model import Encoding
from pipeline.graph.quantization.qdq.qdq_nodes import QdqNodes
from pipeline.graph.quantization.weights.weight_encodings import Integers, symmetric

_MIDDLE, _UPPER = 136, 16
_LEAST, _LARGEST = -8, 7
_SCALES = 255
_MOST_DIMS = 2  # of the indices: two more make a lookup, and HTP's operators end at five
_BYTES = Encoding("uint8", 1 / _UPPER, _MIDDLE)
_PARTS = Encoding("uint16", 2.0**-11, 1 << 15)
"""From -16 to 16, with what is added and taken apart on the way."""
_HALVES = Encoding("uint16", 2.0**-16, 1 << 15)
"""From -1/2 to 7/16: the integers over 16."""


@dataclass(frozen=True, eq=False)
class PackedTable:
    """`pairs` uint8 [rows, columns / 2]; `scales` uint8 [rows, columns / block, 1], in steps of `step`."""

    pairs: NDArray[np.uint8]
    scales: NDArray[np.uint8]
    step: float

    @property
    def stored_pairs(self) -> Integers:
        """The pairs as a constant of a QDQ model."""
        return Integers(self.pairs, np.array(_BYTES.scale), np.array(_MIDDLE, np.uint8))

    @property
    def stored_scales(self) -> Integers:
        """The scales as a constant, for integers over 16."""
        return Integers(self.scales, np.array(self.step * _UPPER), np.array(0, np.uint8))

    def real(self) -> NDArray[np.float32]:
        """What the table stands for, [rows, columns]."""
        whole = self.pairs.astype(np.int16) - _MIDDLE
        upper = (whole + _UPPER // 2) // _UPPER
        integers = np.concatenate([upper, whole - _UPPER * upper], axis=1)
        blocks = integers.reshape(*self.scales.shape[:2], -1)
        return np.asarray(blocks * (self.scales * np.float32(self.step)), np.float32).reshape(integers.shape)


def packed_bytes(shape: tuple[int, ...], block: int) -> int:
    """What a table of this shape takes."""
    rows, columns = shape
    return rows * (columns // 2 + columns // block)


def pack(numbers: Pieces, covers: Range, block: int) -> PackedTable:
    """A table [rows, columns] that has the range `covers`, its rows some at a time."""
    rows, columns = numbers.shape
    step = max(-covers.low, covers.high, MIN_WIDTH) / (_LARGEST * _SCALES)
    pairs = np.empty((rows, columns // 2), np.uint8)
    scales = np.empty((rows, columns // block, 1), np.uint8)
    at = 0
    for part in _rows(numbers, columns):
        blocks = part.reshape(-1, block)
        chosen = np.clip(np.rint(symmetric(blocks, "int4", 0).scale / step), 1, _SCALES)
        integers = np.rint(blocks / (chosen * step)[:, None])
        integers = np.clip(integers, _LEAST, _LARGEST).astype(np.int16).reshape(-1, columns)
        end = at + len(part)
        pairs[at:end] = _UPPER * integers[:, : columns // 2] + integers[:, columns // 2 :] + _MIDDLE
        scales[at:end] = chosen.reshape(len(part), -1, 1)
        at = end
    return PackedTable(pairs, scales, step)


def why_not_packed(index: GraphIndex, node: NodeProto, block: int) -> str | None:
    """Why the table of a node can't have 4 bits in blocks; None if it can."""
    if not is_op(node, "Gather") or node.input[0] not in index.initializers:
        return "4 bits in blocks are for the constant tables of Gather"
    dims = index.initializers[node.input[0]].dims
    if len(dims) != 2 or integer(node, "axis") or element_type(index, node.input[0]) != TensorProto.FLOAT:
        return "it is no lookup of rows in a table of float32"
    if len(index.types[node.output[0]].tensor_type.shape.dim) > _MOST_DIMS + 1:
        return f"its indices have more than {_MOST_DIMS} dims"
    return f"rows of {dims[1]} can't be split into blocks of {block}" if dims[1] % block or dims[1] % 2 else None


def look_up(
    new: QdqNodes, node: NodeProto, tables: tuple[str, str], scale: float, made: Encoding, blocks: tuple[int, ...]
) -> NodeProto:
    """Make the nodes that look up rows in packed `tables`, pairs and scales in steps of `scale`, as `node` does in the
    table that they stand for. Returned is the last one, which is to stand in its place.

    `made` is the encoding of its result, `blocks` the shape of that with the columns apart, [..., blocks, block].
    """
    stem = node.output[0]
    indices = node.input[1]

    def made_by(op: str, name: str, inputs: list[str], encoding: Encoding, axis: int | None = None) -> str:
        return new.computed(op, f"{stem}_{name}", inputs, encoding, axis)

    pairs = made_by("Gather", "pairs", [tables[0], indices], _BYTES, axis=0)
    whole = new.reencoded(f"{stem}_whole", pairs, _PARTS)
    nearly = made_by("Add", "nearly", [whole, new.number(f"{stem}_above", 17 / 32, _PARTS)], _PARTS)
    upper = made_by("Floor", "upper", [nearly], _PARTS)
    lower = made_by("Sub", "lower", [whole, upper], _HALVES)
    sixteenth = new.number(f"{stem}_sixteenth", 1 / _UPPER, _HALVES)
    small = made_by("Mul", "small", [upper, sixteenth], _HALVES)
    joined = made_by("Concat", "joined", [small, lower], _HALVES, axis=len(blocks) - 2)
    split = made_by("Reshape", "split", [joined, new.dims(f"{stem}_split_shape", blocks)], _HALVES)
    scales = made_by("Gather", "scales", [tables[1], indices], Encoding("uint8", scale, 0), axis=0)
    wide = new.reencoded(f"{stem}_wide_scales", scales, Encoding("uint16", scale / 256, 0))
    product = made_by("Mul", "scaled", [split, wide], made)
    last = NodeProto(op_type="Reshape", name=node.name)
    last.input.extend([product, new.dims(f"{stem}_shape", (*blocks[:-2], blocks[-2] * blocks[-1]))])
    last.output.extend(node.output)
    return last


def _rows(numbers: Pieces, columns: int) -> Iterator[NDArray[Any]]:
    """The rows of a table in order, as many at a time as a piece holds."""
    rest = np.empty(0, np.float32)
    for piece in numbers:
        rest = np.concatenate([rest, piece.astype(np.float32)])
        whole = len(rest) // columns * columns
        if whole:
            yield rest[:whole].reshape(-1, columns)
            rest = rest[whole:].copy()
