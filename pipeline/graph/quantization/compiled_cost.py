"""Counts what a graph as it is compiled takes: multiply-accumulates by number format, bytes of weights and values."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from onnx import ModelProto, NodeProto, TensorProto, helper

from pipeline.graph.ir.index import is_op
from pipeline.graph.ir.traverse import input_at
from pipeline.graph.shapes.cost import macs_of, shapes_of

_BITS: Mapping[int, int] = {TensorProto.INT4: 4, TensorProto.UINT4: 4}
_FLOATS: frozenset[int] = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE})
_PRODUCTS = ("MatMul", "Gemm", "Conv", "ConvTranspose")
_CHIP_FLOAT_BITS = 16  # what HTP computes floats in
_QUANTIZE, _DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"


@dataclass
class GraphCost:
    """Counts by :class:`pipeline.contracts.cost.CostFacts`."""

    macs: Counter[str] = field(default_factory=Counter)
    elements: int = 0
    weight_bytes: int = 0
    activation_bytes: int = 0
    edge_bytes: int = 0


def count(model: ModelProto) -> GraphCost:
    """The cost of a static graph, QDQ or float, whose values have shapes."""
    return Counting(model).counted()


class Counting:
    """A static graph, QDQ or float, with the `shapes` of its values and the formats in which its nodes compute."""

    def __init__(self, model: ModelProto) -> None:
        self._model, graph = model, model.graph
        values = [*graph.input, *graph.value_info, *graph.output]
        self.shapes = shapes_of(model)
        self._kinds = {value.name: value.type.tensor_type.elem_type for value in values}
        self._constants = {tensor.name: tensor for tensor in graph.initializer}
        self._kinds |= {name: tensor.data_type for name, tensor in self._constants.items()}
        self._makers = {output: node for node in graph.node for output in node.output}
        self._stored = {
            node.input[0]: self._zero_kind(node) for node in graph.node if node.op_type == _QUANTIZE and node.input
        }

    def counted(self) -> GraphCost:
        """The counts of the whole graph."""
        graph, found = self._model.graph, GraphCost()
        for node in graph.node:
            if node.op_type in (_QUANTIZE, _DEQUANTIZE):
                continue
            macs = macs_of(node, self.shapes)
            if is_op(node, *_PRODUCTS):
                found.macs[self.format(node)] += macs
            else:
                found.elements += macs
            found.activation_bytes += sum(self._bytes(name) for name in node.output if name)
        found.weight_bytes = sum(self._bytes(name) for name in self._weights())
        found.edge_bytes = sum(self._bytes(value.name) for value in (*graph.input, *graph.output))
        return found

    def _weights(self) -> set[str]:
        """Constants that are computed with: no scales, zero points or shapes of encodings."""
        found = set()
        for node in self._model.graph.node:
            names = node.input[:1] if node.op_type in (_QUANTIZE, _DEQUANTIZE) else node.input
            found |= {name for name in names if name in self._constants}
        return found

    def format(self, node: NodeProto) -> str:
        """The format of a product's numbers: `w8a16`, `a8a16`, or `fp16` where either side is no integer."""
        sides = [(self._integer_bits(name), self._is_constant(name)) for name in node.input[:2]]
        if len(sides) < 2 or any(bits is None for bits, _ in sides):
            return f"fp{_CHIP_FLOAT_BITS}"
        (one, _), (other, constant) = sides
        if sides[0][1]:  # a constant on the left
            (other, constant), (one, _) = sides
        return f"{'w' if constant else 'a'}{other}a{one}"

    def is_float(self, node: NodeProto) -> bool:
        """Whether HTP computes a node in float: it reads a float that no integer stands for."""
        return any(
            name not in self._constants
            and self._kinds.get(name, TensorProto.FLOAT) in _FLOATS
            and self._integer_bits(name) is None
            for name in node.input[:1]
        )

    def _integer_bits(self, name: str) -> int | None:
        maker = self._makers.get(name)
        if maker is None or maker.op_type != _DEQUANTIZE:
            return None
        return self._bits(self._kinds.get(maker.input[0]) or self._zero_kind(maker))

    def _is_constant(self, name: str) -> bool:
        maker = self._makers.get(name)
        return maker is not None and bool(maker.input) and maker.input[0] in self._constants

    def _zero_kind(self, node: NodeProto) -> int:
        return int(self._kinds.get(input_at(node, 2), TensorProto.UINT8))

    def _bytes(self, name: str) -> int:
        kind = self._stored.get(name, self._kinds.get(name, TensorProto.FLOAT))
        return -(-math.prod(self.shapes.get(name, ())) * self._bits(kind) // 8)

    def _bits(self, kind: int) -> int:
        if kind in _FLOATS or kind == TensorProto.UNDEFINED:
            return _CHIP_FLOAT_BITS
        if kind in _BITS:
            return _BITS[kind]
        return int(helper.tensor_dtype_to_np_dtype(kind).itemsize) * 8


def origins(model: ModelProto) -> Mapping[str, str]:
    """The operator of each node, by its name."""
    return {node.name: node.op_type for node in model.graph.node if node.name}
