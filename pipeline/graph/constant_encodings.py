"""Constants as the integers that their readers take."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto

from pipeline.errors import QuantizationError
from pipeline.graph.assignment import FLOAT, Assignment, Stored
from pipeline.graph.encodings import Range
from pipeline.graph.index import GraphIndex, is_op
from pipeline.graph.operands import Operand, Role, operands
from pipeline.graph.scheme import bits
from pipeline.graph.traverse import label
from pipeline.graph.value_encodings import ValueEncodings
from pipeline.graph.weight_encodings import Integers, asymmetric, bias, symmetric

_LARGEST_BIAS = 2**31 - 2**10
"""A bias of 32 bits is kept this far from the end, as its scale is rounded to float32."""


class ConstantEncodings:
    """Encodes each constant once for all readers that need it alike."""

    def __init__(
        self, index: GraphIndex, assignment: Assignment, values: ValueEncodings, ranges: Mapping[str, Range]
    ) -> None:
        self._index = index
        self._assignment = assignment
        self._values = values
        self._ranges = ranges
        self._encoded: dict[tuple[str, Stored], Integers] = {}

    def of(self, node: NodeProto, operand: Operand) -> Integers:
        """A float constant as a quantized node reads it."""
        if operand.role is Role.BIAS:
            self._check(node, operand.name)
            return bias(self._bias(node, operand.name), self._bias_scale(node))
        return self._shared(node, operand)

    def _check(self, node: NodeProto, name: str) -> None:
        if not np.isfinite(self._array(name)).all():
            raise QuantizationError(
                f"constant {name!r} holds NaN or infinity and can't be quantized",
                where=f"node {label(node)}",
                why="an encoding has one range for all of it, and there is none that holds such numbers",
                remedy="export the model again from sound weights; if it is a mask, with a filler such as -100",
            )

    @staticmethod
    def absorb_beta(node: NodeProto) -> None:
        """Drop a Gemm's factor of the bias, which is in the quantized bias."""
        kept = [attribute for attribute in node.attribute if attribute.name != "beta"]
        if len(kept) < len(node.attribute):
            del node.attribute[:]
            node.attribute.extend(kept)

    def _shared(self, node: NodeProto, operand: Operand) -> Integers:
        stored = self._stored(node, operand)
        key = (operand.name, stored)
        if key not in self._encoded:
            self._check(node, operand.name)
            array = self._array(operand.name)
            covers = self._ranges.get(operand.name) or (Range.of(array) if array.size else Range(0.0, 0.0))
            smallest = self._smallest_scale(operand.name, stored)
            if stored.symmetric:
                if operand.name in self._ranges:
                    # Of one scale in every bucket, whatever part of the range this one's values have.
                    half = float(2 ** (bits(stored.kind) - 1) - 1)
                    smallest = np.maximum(smallest, max(-covers.low, covers.high) / half)
                self._encoded[key] = symmetric(array, stored.kind, stored.axis, smallest)
            else:
                self._encoded[key] = asymmetric(array, covers, stored.kind, float(np.max(smallest)))
        return self._encoded[key]

    def _stored(self, node: NodeProto, operand: Operand) -> Stored:
        stored = self._assignment.constant(node, operand)
        return Stored(stored.kind, stored.symmetric) if operand.name in self._ranges else stored

    def _smallest_scale(self, name: str, stored: Stored) -> NDArray[np.float64]:
        """What a weight's scales must not fall short of, lest a bias that is added exceeds 32 bits."""
        smallest = np.zeros(())
        for node in self._index.readers[name]:
            found = {operand.role: operand for operand in operands(self._index, node)}
            if Role.BIAS not in found or self._assignment.computes_in(node) == FLOAT:
                continue
            weight = found.get(Role.WEIGHT) or found.get(Role.SCALE)
            if weight is None or weight.name != name or self._stored(node, weight) != stored:
                continue
            added = np.abs(self._bias(node, found[Role.BIAS].name)).astype(np.float64)
            columns = stored.axis is not None and added.ndim > 0
            added = added.reshape(-1, added.shape[-1]).max(axis=0) if columns else added.max(initial=0)
            smallest = np.maximum(smallest, added / (_LARGEST_BIAS * self._input_scale(node)))
        return smallest

    def _bias_scale(self, node: NodeProto) -> NDArray[np.float64]:
        weight = next(operand for operand in operands(self._index, node) if operand.position == 1)
        if weight.name in self._index.initializers:
            scale = self._shared(node, weight).scale
        else:
            kind = self._values.read_type(node, weight, self._assignment.computes_in(node))
            scale = np.array(self._values.encoding(weight.name, kind).scale)
        # As the runtime computes it, from what is stored as float32.
        stored = np.asarray(scale, np.float32).astype(np.float64)
        return np.asarray(stored * np.float64(np.float32(self._input_scale(node))))

    def _input_scale(self, node: NodeProto) -> float:
        given = next(operand for operand in operands(self._index, node) if operand.position == 0)
        if given.name in self._index.initializers:
            return float(self._shared(node, given).scale)
        kind = self._assignment.computes_in(node)
        return self._values.encoding(given.name, self._values.read_type(node, given, kind)).scale

    def _bias(self, node: NodeProto, name: str) -> NDArray[np.float32]:
        beta = next((attribute.f for attribute in node.attribute if attribute.name == "beta"), 1.0)
        array = self._array(name)
        return array * np.float32(beta) if is_op(node, "Gemm") and beta != 1 else array

    def _array(self, name: str) -> NDArray[np.float32]:
        array = self._index.constant(name)
        assert array is not None
        return np.asarray(array)
