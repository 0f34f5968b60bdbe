"""Resize to the nearest neighbour by looking elements up.

Before (x float32, mode "nearest", sizes or scales constant, other than by `asymmetric` coordinates and `floor`)::

    Resize(x)

After, where the same elements are taken as by those::

    Resize(x) <asymmetric, floor>

and else, for each axis whose elements change::

    Gather(x, [0, 0, 1, 2, 2, ...])

HTP (2.51, emulated) is right for `asymmetric` and `floor` by any factor, as torch exports it, and takes another
neighbour or leaves the Resize to the CPU for most other pairs; which, depends on the factor.

The result keeps its name. Left alone: `asymmetric` with `floor`; `half_pixel` and `align_corners` with
`round_prefer_ceil`, which are right; regions of interest; policies of aspect ratio.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper

from pipeline.graph.cpu import unoptimized_session
from pipeline.graph.ir.index import GraphIndex, is_op, opset, substitute
from pipeline.graph.ir.inference import shape_of
from pipeline.graph.ir.node_builder import Additions

NAME = "gather_neighbours"

_PLAIN = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
_RIGHT = {("asymmetric", "floor"), ("half_pixel", "round_prefer_ceil"), ("align_corners", "round_prefer_ceil")}
_COORDINATES = {"half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners", "half_pixel_symmetric"}


def apply(model: ModelProto, folder: Path) -> int:
    """Replace every such Resize; returns their number."""
    index = GraphIndex(model, folder)
    added = Additions(index)
    found = []
    for node in model.graph.node:
        places = _places(index, node)
        if places is not None:
            _replace(added, node, places)
            found.append(node)
    if found:
        substitute(model, found, added.finish())
    return len(found)


def _places(index: GraphIndex, node: NodeProto) -> dict[int, NDArray[np.int64]] | None:
    """Axis -> the elements that a Resize takes along it, of one that is to be replaced; axes that stay are left out."""
    if not is_op(node, "Resize") or index.types[node.input[0]].tensor_type.elem_type != TensorProto.FLOAT:
        return None
    given = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    coordinates = given.get("coordinate_transformation_mode", b"half_pixel").decode()
    rounding = given.get("nearest_mode", b"round_prefer_floor").decode()
    if given.get("mode", b"nearest") != b"nearest" or (coordinates, rounding) in _RIGHT:
        return None
    if coordinates not in _COORDINATES or given.get("keep_aspect_ratio_policy", b"stretch") != b"stretch":
        return None
    before, after = shape_of(index.types[node.input[0]]), shape_of(index.types[node.output[0]])
    if before == after:
        return None
    axes = [axis % len(before) for axis in given.get("axes", range(len(before)))]
    scales = index.constant(node.input[2]) if len(node.input) > 2 and node.input[2] else None
    if len(node.input) > 2 and node.input[2] and scales is None:
        return None
    how = {"mode": "nearest", "coordinate_transformation_mode": coordinates, "nearest_mode": rounding}
    by_axis = {}
    for at, axis in enumerate(axes):
        scale = float(scales[at]) if scales is not None and scales.size else 0.0
        found = _taken(before[axis], after[axis], scale, how, opset(index.model))
        if not np.array_equal(found, np.arange(before[axis])):
            by_axis[axis] = found
    return by_axis or None


def _taken(size: int, result: int, scale: float, how: dict[str, str], version: int) -> NDArray[np.int64]:
    """The elements that onnxruntime takes of `size` to make `result` of them; `scale` is 0 where sizes are given.

    Another axis is doubled, since onnxruntime copies what keeps its shape, whatever the scale.
    """
    sized = helper.make_tensor("s", TensorProto.INT64, [2], [2, result])
    scaled = helper.make_tensor("s", TensorProto.FLOAT, [2], [2.0, scale])
    inputs = ["x", "", "s"] if scale else ["x", "", "", "s"]
    graph = helper.make_graph(
        [helper.make_node("Resize", inputs, ["y"], **how)],
        "axis",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, size])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, result])],
        [scaled if scale else sized],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)], ir_version=8)
    (found,) = unoptimized_session(model, Path()).run(None, {"x": np.arange(size, dtype=np.float32)[None]})
    return np.asarray(found[0], np.int64)


def _replace(added: Additions, node: NodeProto, places: dict[int, NDArray[np.int64]]) -> None:
    source, result = node.input[0], node.output[0]
    dims = added.shape(source)
    plain = {axis: np.arange(len(chosen)) * dims[axis] // len(chosen) for axis, chosen in places.items()}
    if all(np.array_equal(chosen, plain[axis]) for axis, chosen in places.items()):
        sizes = added.integers(f"{result}_sizes", *added.shape(result))
        added.replace("Resize", source, "", "", sizes, out=result, mode="nearest", **_PLAIN)
        return
    *others, last = sorted(places)
    for axis in others:
        indices = added.constant(f"{result}_places_{axis}", places[axis])
        source = added.op("Gather", source, indices, out=f"{result}_along_{axis}", axis=axis)
    indices = added.constant(f"{result}_places_{last}", places[last])
    added.replace("Gather", source, indices, out=result, axis=last)
