"""Resizes that HTP computes wrongly or leaves to the CPU.

Figures are of QNN EP 2.7 and HTP 2.51, emulated. Results keep their names.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper

from pipeline.graph.cpu import unoptimized_session
from pipeline.graph.ir.index import opset
from pipeline.graph.ir.resizes import PLAIN_COORDINATES, AlongAxis, Floats, Resize, places, read_resize, weights
from pipeline.graph.ir.rules import GraphValue, Node, lower, op

Floats32 = NDArray[np.float32]

_NOTHING = 1e-12
_RANK = 4
_FACTORS = {2.0, 4.0}
_RIGHT = {("asymmetric", "floor"), ("half_pixel", "round_prefer_ceil"), ("align_corners", "round_prefer_ceil")}
_COORDINATES = {"half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners", "half_pixel_symmetric"}


@lower("Resize")
def gather_neighbours(n: Node) -> GraphValue | None:
    """Resize to the nearest neighbour by looking elements up, for constant sizes or scales.

    Where the same elements are taken as by `asymmetric` coordinates and `floor` it is such a Resize, and else a Gather
    for each axis whose elements change. HTP is right for those by any sizes, as torch exports it, and takes another
    neighbour or leaves the Resize to the CPU for most other pairs; which, depends on the factor. It goes by sizes where
    scales are given, too: 11 by 1.3 are 14, which are 14 / 11 to it. Left alone: `asymmetric` with `floor`,
    `half_pixel` and `align_corners` with `round_prefer_ceil`, where the sizes come to the scales; regions of interest.
    """
    resize = read_resize(n.index, n.proto)
    if resize is None or resize.mode != "nearest" or resize.coordinates not in _COORDINATES:
        return None
    if (resize.coordinates, resize.nearest) in _RIGHT and not resize.takes_scale():
        return None
    taken: dict[int, NDArray[np.int64]] = {}
    for each in resize.axes:
        if resize.scaled and not each.is_cut:
            found = _rounded(resize, each)
        else:
            row = np.arange(each.size, dtype=np.float32)[None]
            found = resized(resize, each, row, opset(n.index.model))[0].astype(np.int64)
        if not np.array_equal(found, np.arange(each.size)):
            taken[each.axis] = found
    x, dims = n[0], n[0].shape
    if not taken:
        return None
    if all(np.array_equal(each, np.arange(len(each)) * dims[axis] // len(each)) for axis, each in taken.items()):
        how = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        return op.Resize(x, None, None, n.y.shape, **how)
    for axis in sorted(taken):
        x = op.Gather(x, taken[axis], axis=axis)
    return x


def _rounded(resize: Resize, along: AlongAxis) -> NDArray[np.int64]:
    """The elements that are taken where the size of the result was rounded up, as it is for a ratio that is kept."""
    at = places(resize.coordinates, along)
    rounded = {
        "floor": np.floor(at),
        "ceil": np.ceil(at),
        "round_prefer_floor": np.ceil(at - 0.5),
        "round_prefer_ceil": np.floor(at + 0.5),
    }[resize.nearest]
    return rounded.clip(0, along.size - 1).astype(np.int64)


@lower("Resize")
def resize_axes_apart(n: Node) -> GraphValue | None:
    """Resize linearly or cubically one axis after the other, as the last but one or the last of four.

    A cubic Resize [n, c, h, w] by 2 and 4 is two; with align_corners by 2 or 4 on both axes, too. Axes that are not the
    last two of 3 or 4 are between Reshapes, where the mode is linear or the dims are 2. HTP gives the lowest number of
    the encoding for all of such a cubic Resize in 16 bits; by 1.5, 3, 5 and 8, and with half_pixel or asymmetric by 2
    and 2 or 4 and 4, it is right. It takes other places along 5 dims in float16, and leaves other axes to the CPU. One
    axis at a time it is right, in every format, and as exact as at once. A cubic Resize with align_corners by scales
    that the sizes do not come to is left to the CPU; it gets sizes here, by which alone it goes. Left alone: nearest
    neighbours; coordinates and options that HTP does not know, which `resize_by_products` writes.
    """
    resize, value = read_resize(n.index, n.proto), n[0]
    groups = _groups(resize, len(value.shape)) if resize is not None and _is_plain(resize) else None
    if resize is None or groups is None:
        return None
    how: dict[str, Any] = {"mode": resize.mode, "coordinate_transformation_mode": resize.coordinates}
    how |= {"cubic_coeff_a": resize.cubic} if resize.mode == "cubic" else {}
    dims = [*value.shape]
    plain = len(dims) == _RANK and all(each.axis >= _RANK - 2 for group in groups for each in group)
    for group in groups:
        small = _flat(dims, group)
        for each in group:
            dims[each.axis] = each.result
        flat = value if plain else value.reshape(*small)
        value = op.Resize(flat, None, None, _flat(dims, group), **how)
        value = value if plain else value.reshape(*dims)
    return value


def _is_plain(resize: Resize) -> bool:
    """Whether a linear or cubic Resize has coordinates and options that HTP knows, and scales as sizes say."""
    known = resize.coordinates in PLAIN_COORDINATES and not resize.takes_scale()
    if resize.coordinates == "pytorch_half_pixel" and any(each.result == 1 < each.size for each in resize.axes):
        known = False  # the first element in place of the middle, which HTP takes
    excludes = resize.excludes and resize.mode == "cubic"
    return resize.mode != "nearest" and known and not (resize.antialias or excludes)


def _groups(resize: Resize, rank: int) -> list[list[AlongAxis]] | None:
    """The axes that are resized at once, those that shrink most first; None where one Resize is right as it is."""
    changed = [each for each in resize.axes if each.size != each.result]
    planes = [each for each in changed if each.axis >= max(rank - 2, 2)] if rank > 2 else []
    together = len(planes) < 2 or not _is_lost(resize, planes)
    by_sizes = resize.mode == "linear" or all(each.by_sizes for each in resize.axes)
    if together and by_sizes and len(planes) == len(changed) and rank in (3, _RANK):
        return None
    groups = [[each] for each in changed if each not in planes]
    groups += [planes] if together and planes else [[each] for each in planes]
    return sorted(groups, key=lambda group: prod(each.result / each.size for each in group))


def _is_lost(resize: Resize, planes: Sequence[AlongAxis]) -> bool:
    """Whether HTP gives one number for all of a cubic Resize of 16 bits along two axes."""
    factors = {each.result / each.size for each in planes}
    alike = len(factors) == 1 and resize.coordinates != "align_corners"
    return resize.mode == "cubic" and factors <= _FACTORS and not alike


def _flat(dims: Sequence[int], group: Sequence[AlongAxis]) -> list[int]:
    """Four dims in which the axes of a group are the last but one, or the last, or both; others are joined."""
    first, last = group[0].axis, group[-1].axis
    if len(dims) == _RANK and first >= _RANK - 2:
        return [*dims]
    if last == len(dims) - 1:
        lead = dims[: min(first, last - 1)] if len(dims) > 1 else []
        middle = dims[last - 1] if len(dims) > 1 else 1
        return [1, prod(lead), middle, dims[last]]
    return [1, prod(dims[:first]), dims[first], prod(dims[first + 1 :])]


@lower("Resize")
def resize_by_products(n: Node) -> GraphValue | None:
    """``Resize(x) -> Transpose(MatMul(Transpose(MatMul(x, w)), h))`` with the weights of the neighbours.

    For linear or cubic ones with `antialias`, `exclude_outside`, coordinates `half_pixel_symmetric` or
    `tf_crop_and_resize`, `pytorch_half_pixel` to one element, or scales that the sizes do not come to, given or of a
    ratio that is kept. A crop that lies outside has an Add of the extrapolation value. HTP does not look at
    `exclude_outside`, and goes by sizes where scales are given: it computes other numbers, in every format. In float16
    it takes the middle for one element. The others it leaves to the CPU. Left alone: nearest neighbours; antialiasing
    where the size for a kept ratio was rounded up.
    """
    resize, value = read_resize(n.index, n.proto), n[0]
    if resize is None or resize.mode == "nearest" or _is_plain(resize):
        return None
    if resize.antialias and not all(each.by_sizes or each.is_cut for each in resize.axes):
        return None
    made = [(each, *_weights(resize, each, opset(n.index.model))) for each in resize.axes]
    steps = [(each, by, plus) for each, by, plus in made if not _is_idle(by, plus)]
    rank = len(value.shape)
    for along, by, plus in sorted(steps, key=lambda step: step[0].result / step[0].size):
        order = [*range(rank)]
        order[along.axis], order[-1] = rank - 1, along.axis
        last = along.axis == rank - 1
        value = value if last else value.transpose(*order)
        dims = value.shape
        if rank > _RANK:
            value = value.reshape(prod(dims[:-1]), dims[-1])
        value = op.MatMul(value, np.where(np.abs(by) < _NOTHING, 0, by).T.astype(np.float32))
        if plus.any():
            value = op.Add(value, plus.astype(np.float32))
        if rank > _RANK:
            value = value.reshape(*dims[:-1], along.result)
        value = value if last else value.transpose(*order)
    return value if steps else None


def _is_idle(by: Floats, plus: Floats) -> bool:
    return by.shape[0] == by.shape[1] and np.allclose(by, np.eye(by.shape[0]), atol=1e-7) and not plus.any()


def _weights(resize: Resize, along: AlongAxis, version: int) -> tuple[Floats, Floats]:
    """The weights along an axis, [result, size], and what is added, [result]."""
    if not resize.antialias:
        return weights(resize, along)
    zeros_and_ones = np.eye(along.size + 1, along.size, -1, dtype=np.float32)
    of_zeros, *of_ones = resized(resize, along, zeros_and_ones, version)
    # Zeros make something where the crop lies outside: the extrapolation value, whatever the elements.
    return np.where(of_zeros != 0, 0.0, np.stack(of_ones)).T, of_zeros.astype(np.float64)


def resized(resize: Resize, along: AlongAxis, rows: Floats32, version: int) -> Floats32:
    """Rows [count, size] resized along an axis as onnxruntime does: [count, result].

    By the scale, unless the size of the result was rounded up. Another axis is doubled, since onnxruntime copies what
    keeps its shape, whatever the scale.
    """
    how: dict[str, Any] = {"mode": resize.mode, "coordinate_transformation_mode": resize.coordinates}
    if resize.mode == "nearest":
        how["nearest_mode"] = resize.nearest
    if resize.mode == "cubic":
        how["cubic_coeff_a"] = resize.cubic
    if resize.antialias:
        how |= {"antialias": 1, "exclude_outside": int(resize.excludes)}
    constants = []
    if resize.coordinates == "tf_crop_and_resize":
        how["extrapolation_value"] = resize.outside
        ends = [0, 0, 0, along.begin, 1, 1, 1, along.end]
        constants.append(helper.make_tensor("roi", TensorProto.FLOAT, [8], ends))
    roi = "roi" if constants else ""
    if resize.scaled and along.is_cut:
        inputs, given = ["x", roi, "s"], helper.make_tensor("s", TensorProto.FLOAT, [4], [1, 1, 2, along.scale])
    else:
        dims = [1, len(rows), 2, along.result]
        inputs, given = ["x", roi, "", "s"], helper.make_tensor("s", TensorProto.INT64, [4], dims)
    graph = helper.make_graph(
        [helper.make_node("Resize", inputs, ["y"], **how)],
        "axis",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, len(rows), 1, along.size])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, len(rows), 2, along.result])],
        [*constants, given],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)], ir_version=8)
    (found,) = unoptimized_session(model, Path()).run(None, {"x": rows[None, :, None]})
    return np.asarray(found[0, :, 0], np.float32)
