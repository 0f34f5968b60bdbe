"""Reading QDQ models: what stands there for a value or a constant of the float model, and with what encoding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto

from pipeline.contracts.blame import EncodingFacts
from pipeline.contracts.scheme import bits
from pipeline.graph.files.model_file import tensor_dtype
from pipeline.graph.ir.attributes import integer
from pipeline.graph.ir.index import GraphIndex
from pipeline.graph.ir.traverse import input_at
from pipeline.graph.quantization.calibration.ranges import Range
from pipeline.graph.quantization.weights.weight_encodings import limits

_Q, _DQ = "QuantizeLinear", "DequantizeLinear"
Q_OPS = (_Q, _DQ)
"""The operators that carry encodings."""
QUANTIZER_INPUT = "_QuantizeLinear_Input"
"""Behind the name of an output of the model, which is what its DequantizeLinear gives: what its node makes."""


@dataclass(frozen=True)
class Encoding:
    """How an activation is quantized: ``real = scale * (integer - zero_point)``, integers of type `dtype`."""

    dtype: str
    scale: float
    zero_point: int

    @property
    def bounds(self) -> tuple[int, int]:
        """The smallest and the largest integer."""
        return limits(self.dtype)

    @property
    def bits(self) -> int:
        """The bits of the type."""
        return bits(self.dtype)

    @property
    def covers(self) -> Range:
        """The real values that the smallest and the largest integer stand for."""
        low, high = self.bounds
        return Range(self.scale * (low - self.zero_point), self.scale * (high - self.zero_point))

    def rounded(self, array: NDArray[Any]) -> NDArray[np.float32]:
        """What is left of float values once they went through integers of this encoding."""
        low, high = self.bounds
        integers = np.clip(np.rint(array / np.float32(self.scale)) + self.zero_point, low, high)
        return np.asarray((integers - self.zero_point) * np.float32(self.scale), np.float32)

    def facts(self) -> EncodingFacts:
        """With the range that is covered, rounded."""
        scale, low, high = (float(f"{value:.6g}") for value in (self.scale, self.covers.low, self.covers.high))
        return EncodingFacts(self.dtype, scale, self.zero_point, low, high)


def standing_for(index: GraphIndex, name: str) -> str | None:
    """The value of a QDQ model that stands for value `name` of the float model it was made from.

    It is what the first DequantizeLinear behind it gives, and the value itself where it was left in float; None if
    the quantizer dropped it::

        node -> x -> QuantizeLinear -> DequantizeLinear -> x_DequantizeLinear_Output, stands for x
    """
    if _dequantizer(index, name) is not None:  # an output of the model keeps its name
        return name
    for quantizer in index.readers.get(name, []):
        if quantizer.op_type == _Q and quantizer.input[0] == name:
            for reader in index.readers.get(quantizer.output[0], []):
                if reader.op_type == _DQ:
                    return str(reader.output[0])
    return name if name in index.makers or name in index.types else None


def encoding_of(index: GraphIndex, name: str) -> Encoding | None:
    """The encoding of what a DequantizeLinear gives, None for other values, and for those with a scale per channel."""
    maker = _dequantizer(index, name)
    scale = index.scalar(maker.input[1]) if maker is not None else None
    if maker is None or scale is None:
        return None
    if len(maker.input) < 3 or not maker.input[2]:
        return None
    zero_point = index.constant(maker.input[2])
    assert zero_point is not None
    dtype = tensor_dtype(index.initializers[maker.input[2]]).name
    return Encoding(dtype, scale, int(zero_point.reshape(-1)[0]))


def computing_node(index: GraphIndex, name: str) -> NodeProto | None:
    """The node that computes a value of a QDQ model, with Q and DQ nodes looked through."""
    node = index.makers.get(name)
    while node is not None and node.op_type in Q_OPS:
        node = index.makers.get(node.input[0])
    return node


def is_dequantized_constant(index: GraphIndex, name: str, shape: tuple[int, ...]) -> bool:
    """Whether this is a quantized constant of this shape."""
    maker = _dequantizer(index, name)
    if maker is None or maker.input[0] not in index.initializers:
        return False
    scale = index.initializers.get(maker.input[1])
    return scale is not None and tuple(index.initializers[maker.input[0]].dims) == shape


def dequantized_constant(index: GraphIndex, name: str) -> NDArray[np.float32]:
    """The values of what :func:`is_dequantized_constant`, as its DequantizeLinear computes them."""
    maker = index.makers[name]
    integers, scale = index.constant(maker.input[0]), index.constant(maker.input[1])
    assert integers is not None
    assert scale is not None
    zero_point = index.constant(maker.input[2]) if input_at(maker, 2) else np.zeros((), np.int8)
    assert zero_point is not None
    axis, block = integer(maker, "axis", 1), integer(maker, "block_size")
    if block:
        blocks = [np.repeat(np.asarray(array, np.float32), block, axis) for array in (zero_point, scale)]
        return np.asarray((integers.astype(np.float32) - blocks[0]) * blocks[1], np.float32)
    along = [1] * integers.ndim
    if scale.size > 1:
        along[axis] = scale.size
    real = integers.astype(np.float32) - _spread(zero_point, along)
    return np.asarray(real * _spread(scale, along), np.float32)


def _spread(array: NDArray[Any], along: list[int]) -> NDArray[np.float32]:
    return array.astype(np.float32).reshape(along if array.size > 1 else ())


def _dequantizer(index: GraphIndex, name: str) -> NodeProto | None:
    # Of whichever domain: for types that ONNX's own doesn't take in an opset, onnxruntime's is used.
    maker = index.makers.get(name)
    return maker if maker is not None and maker.op_type == _DQ else None
