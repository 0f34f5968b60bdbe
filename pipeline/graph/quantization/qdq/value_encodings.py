"""The encodings of a graph's values: from ranges, or as an operator demands."""

from __future__ import annotations

from collections.abc import Mapping

from onnx import NodeProto

from pipeline.contracts.scheme import bits
from pipeline.graph.ir.index import GraphIndex, is_float, is_op
from pipeline.graph.quantization.bounds.whole_numbers import exact_scale
from pipeline.graph.quantization.calibration.ranges import MIN_WIDTH, Range, range_at
from pipeline.graph.quantization.operand_rules import (
    FIXED_16_BIT,
    JOINING,
    ONE_ENCODING,
    PRODUCTS,
    UNIT,
    WIDE_16_BIT,
    Operand,
    moves_data,
    operands,
)
from pipeline.graph.quantization.qdq.assignment import FLOAT, Assignment
from pipeline.graph.quantization.qdq.qdq_model import Encoding
from pipeline.graph.quantization.weights.weight_encodings import affine, limits

INT16 = "int16"
"""What no value is stored in, but the right of two that are multiplied may be read as."""


class ValueEncodings:
    """Encodings by value and type. What moves data has that of what it moves."""

    def __init__(
        self,
        index: GraphIndex,
        assignment: Assignment,
        ranges: Mapping[str, Range],
        exact: frozenset[str] = frozenset(),
    ) -> None:
        """`exact` are the values whose whole numbers an encoding has to hold as they are."""
        self._index = index
        self._assignment = assignment
        self._ranges = ranges
        self._exact = exact
        self._of_constants: dict[str, Range] = {}

    def encoding(self, name: str, kind: str) -> Encoding:
        """How a value is stored in a type."""
        origin = self._origin(name)
        maker = self._index.makers.get(origin)
        if maker is not None and kind == "uint16" and is_op(maker, *FIXED_16_BIT):
            scale, zero_point = FIXED_16_BIT[maker.op_type]
            return Encoding(kind, scale, zero_point)
        covers = self._range(origin, kind)
        if kind == INT16:
            return Encoding(kind, max(-covers.low, covers.high, MIN_WIDTH / 2) / limits(kind)[1], 0)
        scale, zero_point = affine(covers, kind)
        if origin in self._exact:
            scale = exact_scale(scale)
            zero_point = round(-covers.with_zero().low / scale)
        return Encoding(kind, scale, zero_point)

    def is_exact(self, name: str) -> bool:
        """Whether the encoding of a value has to hold its whole numbers as they are."""
        return self._origin(name) in self._exact

    def demanded(self, node: NodeProto, kind: str, name: str) -> Encoding | None:
        """The encoding that a node needs a float input in, whatever it is stored as; None for most."""
        if kind == FLOAT:
            return None
        taken = is_op(node, *ONE_ENCODING) or (is_op(node, *JOINING) and self._is_moved_input(name))
        return self.encoding(node.output[0], kind) if taken else None

    def constant_range(self, name: str) -> Range:
        """The range of a constant's own values."""
        if name not in self._of_constants:
            self._of_constants[name] = Range.of_pieces(self._index.pieces(name))
        return self._of_constants[name]

    def read_type(self, node: NodeProto, operand: Operand, kind: str) -> str:
        """The type in which a node that computes in `kind` reads a value that is stored in one.

        It is `kind`, but a value that a rule gives a type of its own is read as it is: HTP takes operands of two types.
        """
        ruled = self._assignment.ruled(operand.name)
        wanted = kind if kind == FLOAT or ruled is None or moves_data(self._index, node) else ruled
        if operand.position == 1 and wanted != FLOAT and is_op(node, *PRODUCTS):
            left = next(each for each in operands(self._index, node) if each.position == 0)
            if left.name not in self._index.initializers:
                return self._right_type(node, wanted, self.read_type(node, left, kind))
        return wanted

    def _right_type(self, node: NodeProto, wanted: str, left: str) -> str:
        """The type of the right of two activations that are multiplied: the wider one can't be on the right.

        Of two in uint16, HTP rounds the right one to 8 bits without a word. From v73 on it multiplies 16 by 16 bits if
        the right one is int16 with zero in the middle (MiniLM: the context's distance from the QDQ model goes from 35
        to 46 dB). A convolution with a kernel in 16 bits doesn't compile for older ones.
        """
        if bits(wanted) > bits(left):
            return left
        if wanted != "uint16":
            return wanted
        if is_op(node, "MatMul"):
            return INT16 if self._assignment.wide_products else wanted
        return wanted if self._assignment.wide_products else "uint8"

    def _range(self, origin: str, kind: str) -> Range:
        maker = self._index.makers.get(origin)
        if maker is not None and is_op(maker, "Softmax"):
            return UNIT
        if origin not in self._ranges:
            return self.constant_range(origin)
        found = range_at(self._ranges, origin, bits(kind))
        if maker is not None and kind == "uint16" and is_op(maker, *WIDE_16_BIT):
            return found | WIDE_16_BIT[maker.op_type]
        if maker is not None and is_op(maker, *ONE_ENCODING):
            for operand in operands(self._index, maker):
                if is_float(self._index, operand.name):
                    found |= self._range(self._origin(operand.name), kind)
        return found

    def _is_moved_input(self, name: str) -> bool:
        """Whether nodes that only move and join stand between an input of the model and a value, one at least."""
        pending, seen = [name], set[str]()
        while pending:
            each = pending.pop()
            if each in seen:
                continue
            seen.add(each)
            maker = self._index.makers.get(each)
            if maker is None:
                if each != name and each not in self._index.initializers:
                    return True
            elif is_op(maker, "Concat"):
                pending += maker.input
            elif moves_data(self._index, maker):
                pending.append(maker.input[0])
        return False

    def _origin(self, name: str) -> str:
        """The value whose elements these are."""
        maker = self._index.makers.get(name)
        while maker is not None and moves_data(self._index, maker) and self._assignment.computes_in(maker) != FLOAT:
            name = maker.input[0]
            maker = self._index.makers.get(name)
        return name
