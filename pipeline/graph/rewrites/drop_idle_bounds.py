"""Drop bounds that bound nothing.

Before, as exporters write a maximum that starts from nothing, or a bound on one side::

    Max(x, -inf)    Min(x, inf)    Clip(x, low, inf)    Clip(x, -inf, high)    Clip(x, -inf, inf)

After::

    x               x              Clip(x, low)         Clip(x, "", high)      x

No encoding holds an infinity. A bound of :data:`LIMIT` or beyond is taken for one: no finite float32 crosses it, and
in the float16 of HTP it is an infinity. A constant of many elements is dropped where all of them are such; where it
broadcasts, an Expand stays in its place. NaN passes through Max and Min on onnxruntime, as it does now.

One thing changes: an x that is itself infinite stays so where a bound of 3.4e38 made it finite. Bounds that float16
holds, 65504 among them, are left alone: they hold back what overflows there. So are an infinity on the side where it
bounds everything, one in any other operator, and integers.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import ModelProto, NodeProto, helper, numpy_helper

from pipeline.graph.ir.index import GraphIndex, is_op
from pipeline.graph.ir.inference import shape_of

LIMIT = 3.39e38
"""The largest float32 is 3.4028235e38, which exporters round."""


def apply(model: ModelProto, folder: Path) -> int:
    """Drop every bound of no effect; returns the number of nodes changed."""
    index = GraphIndex(model, folder)
    same_as: dict[str, str] = {}
    changed = 0
    added: list[tuple[int, NodeProto]] = []
    for number, node in enumerate(model.graph.node):
        for position, name in enumerate(node.input):
            node.input[position] = same_as.get(name, name)
        kept = _kept_inputs(node, index)
        if kept == list(node.input):
            continue
        changed += 1
        if _expanded(kept, node, index):
            made = node.output[0] if len(kept) == 1 else index.unused(f"{node.output[0]}_expanded")
            expand = _expand(kept[0], made, node.output[0], index)
            if len(kept) == 1:
                node.CopyFrom(expand)
                continue
            added.append((number + len(added), expand))
            kept[0] = made
        del node.input[:]
        node.input.extend(kept)
        if len(kept) == 1:
            _bypass(node, index, same_as)
    for number, expand in added:
        model.graph.node.insert(number, expand)
    return changed


def _kept_inputs(node: NodeProto, index: GraphIndex) -> list[str]:
    """The inputs without the bounds of no effect; an empty name stands for a Clip's lower bound."""
    inputs = list(node.input)
    if is_op(node, "Max", "Min"):
        sign = -1 if node.op_type == "Max" else 1
        return [name for name in inputs if not _is_beyond(name, sign, index)] or inputs
    if is_op(node, "Clip"):
        kept = [
            "" if position and _is_beyond(name, 1 if position == 2 else -1, index) else name
            for position, name in enumerate(inputs)
        ]
        while not kept[-1]:
            kept.pop()
        return kept if len(kept) < len(inputs) or kept != inputs else inputs
    return inputs


def _is_beyond(name: str, sign: int, index: GraphIndex) -> bool:
    """Whether a value is a constant of floats that are all at or beyond the limit of this sign."""
    if name not in index.initializers:
        return False
    pieces = index.pieces(name)
    return (
        pieces.dtype.kind == "f"
        and pieces.nbytes > 0
        and all(
            (sign * each.astype(np.float64) >= LIMIT).all()
            for each in pieces  # float16 has no such limit
        )
    )


def _expanded(kept: list[str], node: NodeProto, index: GraphIndex) -> bool:
    """Whether the result had its shape from what was dropped."""
    if not is_op(node, "Max", "Min"):
        return False
    shapes = [_shape(name, index) for name in kept]
    return np.broadcast_shapes(*shapes) != shape_of(index.types[node.output[0]])


def _shape(name: str, index: GraphIndex) -> tuple[int, ...]:
    tensor = index.initializers.get(name)
    return tuple(tensor.dims) if tensor is not None else shape_of(index.types[name])


def _expand(given: str, made: str, like: str, index: GraphIndex) -> NodeProto:
    """An Expand of `given` to the shape of `like`."""
    shape = index.unused(f"{like}_shape")
    graph = index.model.graph
    dims = np.array(shape_of(index.types[like]), np.int64)
    graph.initializer.append(numpy_helper.from_array(dims, shape))
    index.initializers[shape] = graph.initializer[-1]
    if made != like:
        graph.value_info.add(name=made, type=index.types[like])
    return helper.make_node("Expand", [given, shape], [made], made)


def _bypass(node: NodeProto, index: GraphIndex, same_as: dict[str, str]) -> None:
    """Let all that reads the result read what was bounded; a result of the model stays, as an Identity."""
    if node.output[0] in index.outputs:
        node.CopyFrom(helper.make_node("Identity", [node.input[0]], list(node.output), node.name))
    else:
        same_as[node.output[0]] = node.input[0]


AFTER = {
    "narrow_doubles": "bounds of float64 become those of float32",
}
