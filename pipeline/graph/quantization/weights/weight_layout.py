"""Where the inputs and the output channels of a weight are, and which weights may have scales in blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto

from pipeline.graph.ir.attributes import integer, integers
from pipeline.graph.ir.index import GraphIndex, is_op
from pipeline.graph.quantization.chip_limits import MOST_DILATION_OF_16_BITS, MOST_TAPS_OF_16_BITS

_PLANE = 4  # dims of the weight of a Conv over height and width
_PLANE_AXES = 2


@dataclass(frozen=True)
class Layout:
    """Where the inputs and the output channels of a weight are: axes of an array whose other axes have length 1.

    Of `block` inputs each, which divides their number, every channel has a scale; None: one scale for all of them.
    """

    inputs: int
    channels: int
    block: int | None = None

    def matrix(self, array: NDArray[Any]) -> NDArray[Any]:
        """The weight as [inputs, channels]."""
        rest = [axis for axis in range(array.ndim) if axis not in (self.inputs, self.channels)]
        ordered = array.transpose([self.inputs, self.channels, *rest])
        return ordered.reshape(array.shape[self.inputs], array.shape[self.channels])

    def array(self, matrix: NDArray[Any], rank: int) -> NDArray[Any]:
        """The inverse of :meth:`matrix`; also for scales, [blocks, channels]."""
        kept = matrix if self.inputs < self.channels else matrix.T
        shape = [1] * rank
        shape[self.inputs], shape[self.channels] = matrix.shape
        return np.ascontiguousarray(kept).reshape(shape)


def layout_of(index: GraphIndex, node: NodeProto) -> Layout | None:
    """The layout of a node's weight, its second input; None if that is no constant matrix that inputs go through."""
    if len(node.input) < 2 or node.input[1] not in index.initializers or node.input[0] in index.initializers:
        return None
    dims = tuple(index.initializers[node.input[1]].dims)
    if is_op(node, "MatMul") and len(dims) == 2:
        return Layout(0, 1)
    if is_op(node, "Gemm") and not integer(node, "transA"):
        return Layout(1, 0) if integer(node, "transB") else Layout(0, 1)
    if is_op(node, "Conv") and set(dims[2:]) == {1} and integer(node, "group", 1) == 1:
        return Layout(1, 0)
    return None


def rows_of(node: NodeProto, inputs: NDArray[Any]) -> NDArray[Any]:
    """What a node that has a layout multiplies its weight with, as [rows, inputs]."""
    if is_op(node, "Conv"):
        inputs = np.moveaxis(inputs, 1, -1)
    return inputs.reshape(-1, inputs.shape[-1])


def row_dims(node: NodeProto, inputs: NDArray[Any]) -> tuple[int, ...]:
    """The dims that the rows of :func:`rows_of` are spread over."""
    return (inputs.shape[0], *inputs.shape[2:]) if is_op(node, "Conv") else inputs.shape[:-1]


def takes_sixteen_bits(index: GraphIndex, node: NodeProto) -> bool:
    """Whether HTP computes with all of 16 bits of a node's constant weight."""
    if is_op(node, "InstanceNormalization"):
        return False  # QNN takes none whose scale has as many
    if not is_op(node, "Conv", "ConvTranspose"):
        return True
    made, taken, *taps = index.initializers[node.input[1]].dims
    if len(taps) > _PLANE_AXES:
        return False  # QNN takes none over three axes
    strides = integers(node, "strides") or [1] * len(taps)
    phases = [-(-size // stride) for size, stride in zip(taps, strides, strict=True)]
    alone = taken == 1 and made == integer(node, "group", 1)
    most_dilation = MOST_DILATION_OF_16_BITS if alone else 1
    few_taps = max(phases, default=1) <= MOST_TAPS_OF_16_BITS
    return few_taps and max(integers(node, "dilations"), default=1) <= most_dilation


def why_no_blocks(index: GraphIndex, node: NodeProto, block: int) -> str | None:
    """Why a node's weight can't have scales in blocks, as far as its form goes; None if it can."""
    layout = layout_of(index, node)
    if layout is None:
        if is_op(node, "Conv"):
            return "QNN's compiler ends without a word at a Conv of more than 1x1 whose weight is in blocks"
        if is_op(node, "Gather", "GatherElements"):
            return "the table of a Gather is looked up on the CPU where it is in blocks, but for int4 that we pack"
        return "blocks are for the constant matrices of MatMul, Gemm and Conv 1x1"
    if is_op(node, "Conv") and len(index.initializers[node.input[1]].dims) != _PLANE:
        return "QNN takes blocks of a Conv over planes alone, and leaves one over rows to the CPU"
    count = index.initializers[node.input[1]].dims[layout.inputs]
    return f"its {count} inputs can't be split into blocks of {block}" if count % block else None
