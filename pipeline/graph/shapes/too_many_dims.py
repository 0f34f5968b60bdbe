"""Finds values of more dims than HTP has: no precision cures that, so it is told before one is looked for."""

from __future__ import annotations

from onnx import ModelProto

from pipeline.contracts.rewrite import TooManyDims
from pipeline.graph.ir.axis_groups import MOST_DIMS
from pipeline.graph.ir.index import is_op
from pipeline.graph.ir.inference import Types, shape_of, spell
from pipeline.graph.ir.moves import VIEWS
from pipeline.graph.ir.traverse import label, reads
from pipeline.graph.shapes.cut_points import ends_before


def too_many_dims(model: ModelProto) -> TooManyDims | None:
    """The first value of a rewritten model with more dims than QNN takes, inputs and outputs before others."""
    graph = model.graph
    types: Types = {value.name: value.type for value in (*graph.input, *graph.value_info, *graph.output)}
    for kind, values in (("input", graph.input), ("output", graph.output)):
        for value in values:
            if _dims(types, value.name) > MOST_DIMS:
                at = f"{kind} {value.name!r}"
                return TooManyDims(at, f"{at} {spell(value.type)}", _dims(types, value.name), MOST_DIMS)
    deep = [node for node in graph.node if any(_dims(types, name) > MOST_DIMS for name in (*node.output, *reads(node)))]
    if not deep:
        return None
    # Others spell the dims that this one wants.
    node = next((each for each in deep if not is_op(each, *VIEWS)), deep[0])
    name = next(each for each in (*reads(node), *node.output) if _dims(types, each) > MOST_DIMS)
    ends = ends_before(graph, node, {tensor.name for tensor in graph.initializer})
    value_of = f"its {'output' if name in node.output else 'input'} {name!r} {spell(types[name])}"
    return TooManyDims(f"node {label(node)}", value_of, _dims(types, name), MOST_DIMS, len(deep), tuple(ends))


def _dims(types: Types, name: str) -> int:
    return len(shape_of(types[name])) if name in types and types[name].HasField("tensor_type") else 0
