"""What each operator does with its inputs, as far as encodings go: QNN EP 2.7's rules, found by compiling.

- A weight may have a scale per output channel, symmetric ones only. A ConvTranspose in groups takes one and computes
  with another channel's (16 dB instead of 75), so its weight has one scale.
- The scale of a LayerNormalization and the slope of a PRelu are uint8. Next to 16 bit activations, an int8 scale sends
  the one to the CPU, and a 16 bit slope fails the compilation of the other.
- A bias is int32, its scale the product of those of input and weight.
- Operators that only move data need one encoding on both sides.
- The 16 bit results of Sigmoid and Tanh have fixed encodings.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

from onnx import NodeProto

from pipeline.graph.ir.attributes import integer
from pipeline.graph.ir.index import GraphIndex, is_op
from pipeline.graph.ir.pads import pad_mode
from pipeline.graph.ir.traverse import input_at
from pipeline.graph.quantization.calibration.ranges import Range


class Role(Enum):
    """What a constant is to the node that reads it."""

    WEIGHT = auto()
    """Multiplied with the activations: of the scheme's weight type."""
    TABLE = auto()
    """Rows are looked up in it: they are activations, unless a rule says otherwise."""
    SCALE = auto()
    """uint8 whatever the scheme says."""
    BIAS = auto()
    """int32."""
    OPERAND = auto()
    """Any other: stored as the activations that it meets."""


@dataclass(frozen=True)
class Operand:
    """One float input of a node. `axis` is that of the output channels of a weight that may have a scale for each."""

    position: int
    name: str
    role: Role
    axis: int | None = None


_SCALE_INPUT = {"LayerNormalization": 1, "PRelu": 1}
_WEIGHT_INPUT = {"Conv": 1, "ConvTranspose": 1, "Gemm": 1, "InstanceNormalization": 1, "BatchNormalization": 1}
_BIAS_INPUT = {
    "Conv": 2, "ConvTranspose": 2, "Gemm": 2, "LayerNormalization": 2, "InstanceNormalization": 2,
    "BatchNormalization": 2,
}  # fmt: skip
_LEFT_ALONE = {"BatchNormalization": (3, 4), "Resize": (1, 2), "Upsample": (1,)}
"""Inputs that stay float: mean and variance; region and factors, which are no data (2 that is read as 1.99995 shifts
every pixel)."""

_MOVERS = (
    "AveragePool", "DepthToSpace", "Expand", "Flatten", "Gather", "GatherElements", "Identity", "MaxPool", "Reshape",
    "Resize", "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile", "TopK", "Transpose", "Unsqueeze",
)  # fmt: skip
TABLES = ("Gather", "GatherElements")

PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
"""Sums of products, rescaled to the encoding of the result."""

ONE_ENCODING = ("ScatterElements",)
"""Operators whose inputs HTP (2.51, emulated) takes for integers of the result's encoding, whatever their own is:
scattering -1..-6 into 1..12 gives 8.45 for -2 otherwise, in 8 and in 16 bits."""

JOINING = ("Concat", "Pad")
"""Operators in which HTP (2.51, emulated) does not rescale an input of the model that was transposed or reshaped:
joining 0..0.7, transposed, to 0..1 gives 1.0 for 0.7, in 8 and in 16 bits. Rescaled in front of them it is right."""

WRAPPING = ("Asin", "Atan", "CumSum", "LogSoftmax")
"""Operators whose results HTP (2.51, emulated) does not stop at the end of their encoding: of a Clip to 0 to 1 behind a
CumSum in 16 bits comes 1 for 0 if the encoding is to do it, of one to -0.3 to 0.2 behind an Atan -0.01 for -0.3, behind
a LogSoftmax in 8 bits 0 for -0.3. Right, with a Clip, are all other operators that the chip has."""

UNIT = Range(0.0, 1.0)
"""The range of a Softmax, whatever the samples show."""

FIXED_16_BIT = {"Sigmoid": (1 / 65536, 0), "Tanh": (1 / 32768, 32768)}
"""Scale and zero point of uint16 results that QNN computes right in one encoding only."""

WIDE_16_BIT = {"HardSigmoid": UNIT, "Log": Range(-4.01, 0.0)}
"""What the range of a uint16 result holds at least. With a finer scale, HTP (2.51, emulated) computes something else:
of Log(1..3), -14 dB of SQNR with a range 3.9 wide, 84 with 4; of HardSigmoid(-1..1), 10 dB, and 94 with all of 0 to 1.
"""


def operands(index: GraphIndex, node: NodeProto) -> Iterator[Operand]:
    """The inputs of a node that may be quantized, constants with what they are to it."""
    left_alone = _LEFT_ALONE.get(node.op_type, ())
    for position, name in enumerate(node.input[:]):
        if name and position not in left_alone:
            yield _operand(index, node, position, name)


def moves_data(index: GraphIndex, node: NodeProto) -> bool:
    """Whether a node's result is made of elements of its first input, so that both have one encoding."""
    if is_op(node, "Pad"):
        filler = input_at(node, 2)
        # Zero is in every encoding.
        return pad_mode(node) != "constant" or not filler or index.scalar(filler) == 0
    return is_op(node, *_MOVERS)


def _operand(index: GraphIndex, node: NodeProto, position: int, name: str) -> Operand:
    if name not in index.initializers:
        return Operand(position, name, Role.OPERAND)
    op, rank = node.op_type, len(index.initializers[name].dims)
    if _SCALE_INPUT.get(op) == position:
        return Operand(position, name, Role.SCALE)
    if _BIAS_INPUT.get(op) == position:
        return Operand(position, name, Role.BIAS)
    if _WEIGHT_INPUT.get(op) == position:
        return Operand(position, name, Role.WEIGHT, _channel_axis(node))
    if is_op(node, "MatMul"):
        # The last axis of what stands on the right is that of the output; on the left there is none.
        return Operand(position, name, Role.WEIGHT, rank - 1 if position == 1 and rank > 1 else None)
    if is_op(node, *TABLES) and position == 0:
        return Operand(position, name, Role.TABLE)
    return Operand(position, name, Role.OPERAND)


def channel_groups(node: NodeProto) -> int:
    """In how many groups a ConvTranspose splits its channels; 1 for any other node."""
    return integer(node, "group", 1) if node.op_type == "ConvTranspose" else 1


def _channel_axis(node: NodeProto) -> int | None:
    if node.op_type == "Conv":
        return 0
    if node.op_type == "ConvTranspose":
        return 1 if channel_groups(node) == 1 else None
    if node.op_type == "Gemm":
        return 0 if integer(node, "transB") else 1
    return None
