"""The encodings of a graph's values: from ranges, or as an operator demands."""

from __future__ import annotations

from collections.abc import Mapping

from onnx import NodeProto

from pipeline.graph.assignment import FLOAT, Assignment
from pipeline.graph.encodings import Range, range_at
from pipeline.graph.index import GraphIndex, is_op
from pipeline.graph.operands import FIXED_16_BIT, UNIT, Operand, moves_data
from pipeline.graph.qdq_nodes import Encoding
from pipeline.graph.scheme import bits
from pipeline.graph.weight_encodings import affine


class ValueEncodings:
    """Encodings by value and type. What moves data has that of what it moves."""

    def __init__(self, index: GraphIndex, assignment: Assignment, ranges: Mapping[str, Range]) -> None:
        self._index = index
        self._assignment = assignment
        self._ranges = ranges

    def encoding(self, name: str, kind: str) -> Encoding:
        """How a value is stored in a type."""
        origin = self._origin(name)
        maker = self._index.makers.get(origin)
        if maker is not None and kind == "uint16" and is_op(maker, *FIXED_16_BIT):
            scale, zero_point = FIXED_16_BIT[maker.op_type]
            return Encoding(kind, scale, zero_point)
        return Encoding(kind, *affine(self._range(origin, kind), kind))

    def read_type(self, node: NodeProto, operand: Operand, kind: str) -> str:
        """The type in which a node that computes in `kind` reads a stored value.

        It is `kind`, but a value that a rule gives a type of its own is read as it is where HTP takes operands of
        two types.
        """
        ruled = self._assignment.ruled(operand.name)
        if kind == FLOAT or ruled is None or moves_data(self._index, node):
            return kind
        # The one pair that QNN refuses: the right operand of a product may not be the wider.
        if (
            is_op(node, "MatMul", "Gemm", "Conv", "ConvTranspose")
            and operand.position == 1
            and bits(ruled) > bits(kind)
        ):
            return kind
        return ruled

    def _range(self, origin: str, kind: str) -> Range:
        maker = self._index.makers.get(origin)
        if maker is not None and is_op(maker, "Softmax"):
            return UNIT
        if origin not in self._ranges:
            array = self._index.constant(origin)
            assert array is not None, f"{origin} has no range"
            return Range.of(array) if array.size else Range(0.0, 0.0)
        return range_at(self._ranges, origin, bits(kind))

    def _origin(self, name: str) -> str:
        """The value whose elements these are."""
        maker = self._index.makers.get(name)
        while maker is not None and moves_data(self._index, maker) and self._assignment.computes_in(maker) != FLOAT:
            name = maker.input[0]
            maker = self._index.makers.get(name)
        return name
