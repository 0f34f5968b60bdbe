"""What a Resize does along each of its axes: sizes, factors and the weights that it takes its neighbours with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto

from pipeline.graph.ir.attributes import settings
from pipeline.graph.ir.index import GraphIndex, is_op
from pipeline.graph.ir.inference import shape_of

PLAIN_COORDINATES = frozenset({"half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners"})
"""Those that HTP knows."""
_OF_SIZES = frozenset({"align_corners", "tf_crop_and_resize"})
"""Coordinates that the sizes decide, whatever the scale."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class AlongAxis:
    """An axis that a Resize changes: its sizes, result by size as the Resize has it, and where a crop begins and ends,
    in shares of the axis.
    """

    axis: int
    size: int
    result: int
    scale: float
    begin: float = 0.0
    end: float = 1.0

    @property
    def by_sizes(self) -> bool:
        """Whether the scale is what the sizes come to."""
        return abs(self.scale * self.size / self.result - 1) < 1e-6

    @property
    def is_cut(self) -> bool:
        """Whether the result is what the scale comes to, fractions cut off; that of a kept ratio may be rounded up."""
        return int(np.float32(self.size) * np.float32(self.scale)) == self.result


@dataclass(frozen=True)
class Resize:
    """A Resize of floats whose sizes are known; `scaled`: by scales that it is given, or that a ratio comes to."""

    mode: str
    coordinates: str
    nearest: str
    cubic: float
    excludes: bool
    antialias: bool
    outside: float
    scaled: bool
    axes: Sequence[AlongAxis]

    def takes_scale(self) -> bool:
        """Whether along some axis another scale decides than the sizes come to."""
        return self.coordinates not in _OF_SIZES and not all(each.by_sizes for each in self.axes)


def read_resize(index: GraphIndex, node: NodeProto) -> Resize | None:
    """What a node does, if it is a Resize of floats with constant sizes or scales that changes a shape."""
    if not is_op(node, "Resize") or index.types[node.input[0]].tensor_type.elem_type != TensorProto.FLOAT:
        return None
    given = settings(node)
    inputs = {at: index.constant(name) for at, name in enumerate(node.input) if at and name}
    if any(value is None for value in inputs.values()):
        return None
    before, after = shape_of(index.types[node.input[0]]), shape_of(index.types[node.output[0]])
    if before == after:
        return None
    axes = [axis % len(before) for axis in given.get("axes", range(len(before)))]
    ratios = [after[axis] / before[axis] for axis in axes]
    policy = given.get("keep_aspect_ratio_policy", b"stretch").decode()
    scales = _scales(inputs, policy, [before[axis] for axis in axes])
    roi = inputs.get(1)
    crops = given.get("coordinate_transformation_mode") == b"tf_crop_and_resize"
    ends = [*roi.astype(float)] if crops and roi is not None and roi.size == 2 * len(axes) else []
    along = [
        AlongAxis(axis, before[axis], after[axis], scale, *((ends[at], ends[len(axes) + at]) if ends else ()))
        for at, (axis, scale) in enumerate(zip(axes, scales or ratios, strict=True))
    ]
    return Resize(
        given.get("mode", b"nearest").decode(),
        given.get("coordinate_transformation_mode", b"half_pixel").decode(),
        given.get("nearest_mode", b"round_prefer_floor").decode(),
        float(given.get("cubic_coeff_a", -0.75)),
        bool(given.get("exclude_outside", 0)),
        bool(given.get("antialias", 0)),
        float(given.get("extrapolation_value", 0.0)),
        bool(scales),
        sorted(along, key=lambda each: each.axis),
    )


def _scales(inputs: Mapping[int, NDArray[np.generic] | None], policy: str, sizes: Sequence[int]) -> list[float]:
    """The scales that are given, or that a policy makes of the sizes; none where the sizes decide."""
    scales, wanted = inputs.get(2), inputs.get(3)
    if scales is not None and scales.size:
        return [float(scale) for scale in scales.astype(np.float64)]
    if wanted is None or policy == "stretch":
        return []
    ratios = [float(each) / size for each, size in zip(wanted.astype(np.int64), sizes, strict=True)]
    return [min(ratios) if policy == "not_larger" else max(ratios)] * len(ratios)


def weights(resize: Resize, along: AlongAxis) -> tuple[Floats, Floats]:
    """How a linear or cubic Resize without antialiasing computes elements along an axis: weights [result, size], and
    what is added [result], which is the extrapolation value where a crop lies outside.

    The formulas are those of the operator's definition (https://onnx.ai/onnx/operators/onnx__Resize.html).
    """
    at_places = places(resize.coordinates, along)
    found = np.zeros((along.result, along.size))
    lowest = np.floor(at_places).astype(int)
    part = at_places - lowest
    if resize.mode == "linear":
        taps = [(0, 1 - part), (1, part)]
    else:
        taps = [(tap, _cubic(np.abs(part - tap), resize.cubic)) for tap in (-1, 0, 1, 2)]
    rows = np.arange(along.result)
    for tap, weight in taps:
        at = lowest + tap
        inside = (at >= 0) & (at < along.size)
        kept = weight * inside if resize.excludes and resize.mode == "cubic" else weight
        np.add.at(found, (rows, at.clip(0, along.size - 1)), kept)
    if resize.excludes and resize.mode == "cubic":
        found /= found.sum(1, keepdims=True)
    added = np.zeros(along.result)
    if resize.coordinates == "tf_crop_and_resize":
        gone = (at_places < 0) | (at_places > along.size - 1)
        found[gone], added[gone] = 0.0, resize.outside
    return found, added


def places(coordinates: str, along: AlongAxis) -> Floats:
    """Where in the axis each element of the result lies: in float32 and in this order, as onnxruntime computes it, so
    that a tie is one here as well. By a scale of 1 it moves nothing, nor does it look at a crop.
    """
    return _places(coordinates, along).astype(np.float64)


def _places(coordinates: str, along: AlongAxis) -> NDArray[np.float32]:
    at = np.arange(along.result, dtype=np.float32)
    size, result, scale, half = map(np.float32, (along.size, along.result, along.scale, 0.5))
    begin, end = np.float32(along.begin), np.float32(along.end)
    if scale == 1:
        return at
    match coordinates:
        case "asymmetric":
            return at / scale
        case "align_corners":
            return at * (size - 1) / (result - 1) if result > 1 else np.zeros_like(at)
        case "tf_crop_and_resize":
            if result == 1:
                return half * (begin + end) * (size - 1) + at
            return begin * (size - 1) + at * (end - begin) * (size - 1) / (result - 1)
        case "half_pixel_symmetric":
            return size / 2 * (1 - result / (scale * size)) + (at + half) / scale - half
        case "pytorch_half_pixel" if result == 1:
            return np.zeros_like(at)
    return (at + half) / scale - half


def _cubic(distance: Floats, a: float) -> Floats:
    """Keys' kernel, https://ieeexplore.ieee.org/document/1163711."""
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    return np.where(distance <= 1, near, np.where(distance < 2, far, 0.0))
