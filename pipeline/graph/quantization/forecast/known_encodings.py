"""What a QDQ model and the ranges of the float model say of each value: the base of the forecast."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto

from pipeline.graph.ir.index import GraphIndex, is_float
from pipeline.graph.quantization.calibration.ranges import Range
from pipeline.graph.quantization.qdq.qdq_model import Q_OPS, QUANTIZER_INPUT, Encoding, computing_node, encoding_of
from pipeline.graph.quantization.quantizer import computes_in_float


class KnownEncodings:
    """A QDQ model and the ranges of the float model it was made of."""

    def __init__(self, index: GraphIndex, ranges: Mapping[str, Range], integers: Mapping[str, Range]) -> None:
        self.index = index
        self.integers = integers
        self.nodes = [node for node in index.model.graph.node if node.op_type not in Q_OPS]
        self._ranges = ranges
        self._stored: dict[str, tuple[str, Encoding] | None] = {}
        self._given: dict[str, Encoding | None] = {}
        self._scalars: dict[str, float | None] = {}
        self._in_float: dict[str, bool] = {}

    def range(self, name: str) -> Range | None:
        """The range of the value of the float model that one of the QDQ model stands for."""
        return self._ranges.get(self.origin(name))

    def origin(self, name: str) -> str:
        """The value of the float model that one of the QDQ model stands for, or the constant of either."""
        node = self.index.makers.get(name)
        while node is not None and node.op_type in Q_OPS:
            name = node.input[0]
            node = self.index.makers.get(name)
        return name.removesuffix(QUANTIZER_INPUT)

    def largest(self, name: str) -> float:
        """The largest magnitude of a value or a constant of one number, 0 where nothing is known of it."""
        if name not in self._scalars:
            self._scalars[name] = self.index.scalar(name)
        scalar = self._scalars[name]
        if scalar is not None:
            return abs(scalar)
        found = self.range(name)
        return max(-found.low, found.high) if found is not None else 0.0

    def highest(self, name: str) -> float:
        """The largest number of a value, 0 where nothing is known of it: masks make others very small."""
        found = self.range(name)
        return found.high if found is not None else 0.0

    def encoding(self, node: NodeProto) -> tuple[str, Encoding] | None:
        """The value that a node's result goes on as, and its encoding; None for a result in float."""
        return self.stored(node.output[0])

    def stored(self, name: str) -> tuple[str, Encoding] | None:
        """The same for a value of the graph, or an input of it; a dozen rules ask."""
        if name not in self._stored:
            self._stored[name] = self._found_stored(name)
        return self._stored[name]

    def given(self, name: str) -> Encoding | None:
        """The encoding of what a DequantizeLinear gives; None as for :func:`encoding_of`."""
        if name not in self._given:
            self._given[name] = encoding_of(self.index, name)
        return self._given[name]

    def _found_stored(self, name: str) -> tuple[str, Encoding] | None:
        for reader in self.index.readers.get(name, []):
            if reader.op_type == Q_OPS[0]:
                for dequantizer in self.index.readers.get(reader.output[0], []):
                    found = self.given(dequantizer.output[0])
                    if found is not None:
                        return name.removesuffix(QUANTIZER_INPUT), found
        return None

    def maker(self, name: str) -> NodeProto | None:
        """The node that computes a value; None for an input of the model."""
        return computing_node(self.index, name)

    def in_float(self, node: NodeProto) -> bool:
        """Whether a node makes its result in float16."""
        name = node.output[0]
        if name not in self._in_float:
            self._in_float[name] = is_float(self.index, name) and computes_in_float(self.index, node)
        return self._in_float[name]

    def scale_of(self, name: str) -> NDArray[np.float64] | None:
        """The size of the scale, or of those of each channel, that a DequantizeLinear reads a value with."""
        maker = self.index.makers.get(name)
        if maker is None or maker.op_type != Q_OPS[1]:
            return None
        scale = self.index.constant(maker.input[1])
        return np.abs(np.asarray(scale, np.float64)).reshape(-1) if scale is not None else None

    def readers_in_float(self, name: str) -> tuple[str, ...]:
        """The names of the nodes that read a value and compute in float16."""
        return tuple(reader.name for reader in self.index.readers.get(name, []) if self.in_float(reader))
