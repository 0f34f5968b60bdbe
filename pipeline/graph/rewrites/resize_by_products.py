"""Resize by products with the weights of the neighbours, where HTP does not know how.

Before (x float32 [n, c, h, w]; linear or cubic with `antialias`, `exclude_outside`, coordinates `half_pixel_symmetric`
or `tf_crop_and_resize`, `pytorch_half_pixel` to one element, or scales that the sizes do not come to, given or of a
ratio that is kept)::

    Resize(x)

After, w and h being what of the width and the height each element is made of, [w, w'] and [h, h']::

    Transpose(MatMul(Transpose(MatMul(x, w)), h))

A crop that lies outside has an Add of the extrapolation value.

HTP (2.51, emulated) does not look at `exclude_outside`, and goes by sizes where scales are given: it computes other
numbers, in every format. In float16 it takes the middle for one element. The others it leaves to the CPU.

The result keeps its name. Left alone: nearest neighbours; antialiasing where the size for a kept ratio was rounded up.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper

from pipeline.graph.cpu import unoptimized_session
from pipeline.graph.ir.index import opset
from pipeline.graph.ir.node_builder import Additions, each_node
from pipeline.graph.ir.resizes import AlongAxis, Floats, Resize, read_resize, weights
from pipeline.graph.rewrites.resize_axes_apart import is_plain

Floats32 = NDArray[np.float32]

_NOTHING = 1e-12
_MOST_DIMS = 4


@each_node
def apply(added: Additions, node: NodeProto) -> bool:
    """Replace a linear or cubic Resize that HTP does not know."""
    resize = read_resize(added.index, node)
    if resize is None or resize.mode == "nearest" or is_plain(resize):
        return False
    if resize.antialias and not all(each.by_sizes or each.is_cut for each in resize.axes):
        return False
    made = [(each, *_weights(resize, each, opset(added.index.model))) for each in resize.axes]
    steps = [(each, by, plus) for each, by, plus in made if not _is_idle(by, plus)]
    if steps:
        _replace(added, node, sorted(steps, key=lambda step: step[0].result / step[0].size))
    return bool(steps)


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
    """What onnxruntime makes along an axis of rows [count, size]: [count, result].

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


def _replace(added: Additions, node: NodeProto, steps: Sequence[tuple[AlongAxis, Floats, Floats]]) -> None:
    value, result = node.input[0], node.output[0]
    rank = len(added.shape(value))
    for along, by, plus in steps:
        stem, last = f"{result}_along_{along.axis}", rank - 1
        turned = [*range(rank)]
        turned[along.axis], turned[last] = last, along.axis
        if along.axis != last:
            value = added.op("Transpose", value, out=f"{stem}_turned", perm=turned)
        dims = added.shape(value)
        if rank > _MOST_DIMS:
            flat = added.integers(f"{stem}_flat", prod(dims[:-1]), dims[-1])
            value = added.op("Reshape", value, flat, out=f"{stem}_rows")
        matrix = added.constant(f"{stem}_weights", np.where(np.abs(by) < _NOTHING, 0, by).T.astype(np.float32))
        value = added.op("MatMul", value, matrix, out=f"{stem}_product")
        if plus.any():
            value = added.op(
                "Add", value, added.constant(f"{stem}_outside", plus.astype(np.float32)), out=f"{stem}_sum"
            )
        if rank > _MOST_DIMS:
            shape = added.integers(f"{stem}_dims", *dims[:-1], along.result)
            value = added.op("Reshape", value, shape, out=f"{stem}_shaped")
        if along.axis != last:
            value = added.op("Transpose", value, out=f"{stem}_back", perm=turned)
    added.nodes[-1].output[0] = result
