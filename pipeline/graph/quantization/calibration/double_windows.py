"""Operators over windows, written out as products of matrices in float64: see :mod:`.double_nodes`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto

from pipeline.graph.ir.attributes import integer, integers, text
from pipeline.graph.quantization.calibration.double_nodes import DoubleNodes, Shapes, Writer

_ELEMENTS_AT_ONCE = 1 << 23
"""A Conv whose columns take more is added up place by place of its kernel."""


@dataclass(frozen=True)
class _Windows:
    """Of a value [batch, channels, axes], padded by `pads`: where the windows' elements are, place by place."""

    kernel: tuple[int, ...]
    strides: Sequence[int]
    dilations: Sequence[int]
    pads: Sequence[int]
    counts: tuple[int, ...]

    def columns(self, made: DoubleNodes, x: str, shape: Sequence[int]) -> list[str]:
        """What lies in each place of all windows, in the form of `shape`."""
        rank = len(self.kernel)
        if any(self.pads):
            around = [0, 0, *self.pads[:rank], 0, 0, *self.pads[rank:]]
            x = made.op("Pad", x, made.vector(*around), made.number(0.0))
        axes, steps = made.vector(*range(2, rank + 2)), made.vector(*self.strides)
        found = []
        for place in itertools.product(*map(range, self.kernel)):
            starts = [at * apart for at, apart in zip(place, self.dilations, strict=True)]
            last = [(count - 1) * step for count, step in zip(self.counts, self.strides, strict=True)]
            ends = [start + more + 1 for start, more in zip(starts, last, strict=True)]
            part = made.op("Slice", x, made.vector(*starts), made.vector(*ends), axes, steps)
            found.append(made.op("Reshape", part, made.vector(*shape)))
        return found


def _conv(made: DoubleNodes, node: NodeProto, inputs: Sequence[str], out: str, shapes: Shapes) -> bool:
    given, weight, result = (shapes[name] for name in (node.input[0], node.input[1], node.output[0]))
    rank, groups = len(given) - 2, integer(node, "group", 1)
    strides, dilations = integers(node, "strides", [1] * rank), integers(node, "dilations", [1] * rank)
    pads = _pads(node, given, weight[2:], result)
    windows = _Windows(weight[2:], strides, dilations, pads, result[2:])
    columns = windows.columns(made, inputs[0], (given[0], groups, weight[1], math.prod(result[2:])))
    # [groups, outputs, places, inputs]
    shape = made.vector(groups, weight[0] // groups, weight[1], math.prod(weight[2:]))
    matrices = made.op("Transpose", made.op("Reshape", inputs[1], shape), perm=[0, 1, 3, 2])
    _products(made, columns, matrices, (groups, weight[0] // groups, weight[1]), inputs, result, out)
    return True


def _conv_transpose(made: DoubleNodes, node: NodeProto, inputs: Sequence[str], out: str, shapes: Shapes) -> bool:
    """A Conv of what has zeros in between, with its kernel turned round."""
    if text(node, "auto_pad", "NOTSET") != "NOTSET" or any(each.name == "output_shape" for each in node.attribute):
        return False
    given, weight, result = (shapes[name] for name in (node.input[0], node.input[1], node.output[0]))
    rank, groups = len(given) - 2, integer(node, "group", 1)
    strides, dilations = integers(node, "strides", [1] * rank), integers(node, "dilations", [1] * rank)
    apart = made.op("Reshape", inputs[0], made.vector(*given[:2], *(n for size in given[2:] for n in (size, 1))))
    zeros = [0, 0] + [0] * 2 * rank + [0, 0] + [n for step in strides for n in (0, step - 1)]
    spread = made.op("Pad", apart, made.vector(*zeros), made.number(0.0))
    sizes = [size * step for size, step in zip(given[2:], strides, strict=True)]
    x = made.op("Reshape", spread, made.vector(*given[:2], *sizes))
    reach = [(kernel - 1) * step for kernel, step in zip(weight[2:], dilations, strict=True)]
    before = [more - pad for more, pad in zip(reach, integers(node, "pads", [0] * 2 * rank), strict=False)]
    after = [
        count + more - less - size for count, more, less, size in zip(result[2:], reach, before, sizes, strict=True)
    ]
    windows = _Windows(weight[2:], [1] * rank, dilations, [*before, *after], result[2:])
    columns = windows.columns(made, x, (given[0], groups, given[1] // groups, math.prod(result[2:])))[::-1]
    shape = made.vector(groups, weight[0] // groups, weight[1], math.prod(weight[2:]))
    matrices = made.op("Transpose", made.op("Reshape", inputs[1], shape), perm=[0, 2, 3, 1])
    _products(made, columns, matrices, (groups, weight[1], weight[0] // groups), inputs, result, out)
    return True


def _products(
    made: DoubleNodes,
    columns: Sequence[str],
    matrices: str,
    sizes: tuple[int, int, int],
    inputs: Sequence[str],
    result: tuple[int, ...],
    out: str,
) -> None:
    """The sum of each column with its matrix, in one product where that is small, and of a bias.

    `matrices` is [groups, outputs, places, inputs], `sizes` its groups, outputs and inputs.
    """
    groups, outputs, depth = sizes
    total = ""
    if len(columns) * depth * groups * math.prod(result[2:]) <= _ELEMENTS_AT_ONCE:
        together = made.op("Concat", *columns, axis=2)
        flat = made.op("Reshape", matrices, made.vector(groups, outputs, len(columns) * depth))
        total = made.op("MatMul", flat, together)
    else:
        for number, column in enumerate(columns):
            one = made.op("Slice", matrices, made.vector(number), made.vector(number + 1), made.vector(2))
            product = made.op("MatMul", made.op("Reshape", one, made.vector(groups, outputs, depth)), column)
            total = made.op("Add", total, product) if total else product
    if len(inputs) > 2 and inputs[2]:
        total = made.op("Add", total, made.op("Reshape", inputs[2], made.vector(groups, outputs, 1)))
    made.op("Reshape", total, made.vector(*result), out=out)


def _pads(node: NodeProto, given: tuple[int, ...], kernel: tuple[int, ...], result: tuple[int, ...]) -> list[int]:
    """What is put around the input of windows: before each axis, then behind each."""
    rank = len(kernel)
    automatic = text(node, "auto_pad", "NOTSET")
    if automatic not in ("SAME_UPPER", "SAME_LOWER"):
        return integers(node, "pads", [0] * 2 * rank) if automatic == "NOTSET" else [0] * (2 * rank)
    strides, dilations = integers(node, "strides", [1] * rank), integers(node, "dilations", [1] * rank)
    axes = zip(given[2:], kernel, result[2:], strides, dilations, strict=True)
    whole = [max(0, (count - 1) * step + (width - 1) * apart + 1 - size) for size, width, count, step, apart in axes]
    less, more = [count // 2 for count in whole], [count - count // 2 for count in whole]
    return [*less, *more] if automatic == "SAME_UPPER" else [*more, *less]


def _average(made: DoubleNodes, node: NodeProto, inputs: Sequence[str], out: str, shapes: Shapes) -> bool:
    given, result = shapes[node.input[0]], shapes[node.output[0]]
    rank = len(given) - 2
    kernel = tuple(integers(node, "kernel_shape", [1] * rank))
    pads, strides = _pads(node, given, kernel, result), integers(node, "strides", [1] * rank)
    dilations = integers(node, "dilations", [1] * rank)
    axes = zip(given[2:], result[2:], kernel, strides, dilations, strict=True)
    # With ceil_mode, which exporters write for whole windows too, the last one may reach beyond the end.
    if any(pads) or any((count - 1) * step + (width - 1) * apart >= size for size, count, width, step, apart in axes):
        return False
    windows = _Windows(kernel, strides, dilations, pads, result[2:])
    columns = windows.columns(made, inputs[0], result)
    made.op("Mul", made.op("Sum", *columns), made.number(1 / len(columns)), out=out)
    return True


def _global_average(made: DoubleNodes, node: NodeProto, inputs: Sequence[str], out: str, shapes: Shapes) -> bool:
    dims = shapes[node.input[0]]
    size = math.prod(dims[2:])
    flat = made.op("Reshape", inputs[0], made.vector(*dims[:2], size))
    # A product, as how a reduction takes its axes depends on the operator set.
    means = made.op("MatMul", flat, made.constant(np.full((size, 1), 1 / size)))
    made.op("Reshape", means, made.vector(*shapes[node.output[0]]), out=out)
    return True


def _resize(made: DoubleNodes, node: NodeProto, inputs: Sequence[str], out: str, shapes: Shapes) -> bool:
    """A matrix for each axis that changes. Scales are those of the sizes, which is what exporters write."""
    mode, places = text(node, "mode", "nearest"), text(node, "coordinate_transformation_mode", "half_pixel")
    plain = not (integer(node, "antialias", 0) or integer(node, "exclude_outside", 0))
    if mode not in ("nearest", "linear") or places not in _PLACES or not plain:
        return False
    before, after = shapes[node.input[0]], shapes[node.output[0]]
    x, dims = inputs[0], list(before)
    for axis, (size, count) in enumerate(zip(before, after, strict=True)):
        if size == count:
            continue
        matrix = _sampling(size, count, mode, places, text(node, "nearest_mode", "round_prefer_floor"))
        rest = math.prod(dims[axis + 1 :])
        flat = made.op("Reshape", x, made.vector(math.prod(dims[:axis]), size, rest))
        dims[axis] = count
        x = made.op("Reshape", made.op("MatMul", made.constant(matrix), flat), made.vector(*dims))
    made.op("Identity", x, out=out)
    return True


def _sampling(size: int, count: int, mode: str, places: str, nearest: str) -> NDArray[np.float64]:
    """[count, size]: how much of each element goes into each result."""
    at = _place(places, np.arange(count, dtype=np.float64), size, count)
    found, rows = np.zeros((count, size)), np.arange(count)
    if mode == "nearest":
        chosen = {"floor": np.floor(at), "ceil": np.ceil(at), "round_prefer_ceil": np.floor(at + 0.5)}
        whole = chosen.get(nearest, np.ceil(at - 0.5))
        found[rows, np.clip(whole, 0, size - 1).astype(np.int64)] = 1.0
        return found
    inside = np.clip(at, 0, size - 1)
    low = np.minimum(np.floor(inside), max(size - 2, 0)).astype(np.int64)
    share = inside - low
    found[rows, low] = 1.0 - share
    found[rows, np.minimum(low + 1, size - 1)] += share
    return found


_PLACES = ("half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners")


def _place(places: str, result: NDArray[np.float64], size: int, count: int) -> NDArray[np.float64]:
    """Where in the input each element of the result is taken from, as ONNX defines it."""
    if places == "asymmetric":
        return result * (size / count)
    if places == "align_corners":
        return result * ((size - 1) / max(count - 1, 1))
    middle = (result + 0.5) * (size / count) - 0.5
    return np.zeros(count) if places == "pytorch_half_pixel" and count == 1 else middle


WINDOWS: Mapping[str, Writer] = {
    "AveragePool": _average,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "GlobalAveragePool": _global_average,
    "Resize": _resize,
}
"""By operator."""
