"""Refuses values of more dims than HTP has: no precision cures that, so it is told before one is looked for."""

from __future__ import annotations

from collections.abc import Sequence

from onnx import ModelProto, NodeProto

from pipeline.errors import ModelError
from pipeline.graph.ir.axis_groups import MOST_DIMS
from pipeline.graph.ir.index import is_op
from pipeline.graph.ir.inference import Types, shape_of, spell
from pipeline.graph.ir.moves import VIEWS
from pipeline.graph.ir.traverse import label, reads
from pipeline.graph.shapes.ends import ends_before
from pipeline.plain_text import cutting

_CONVERSIONS = 5
"""Nodes that stay on the CPU for one: with the conversions of its inputs and outputs where it is quantized."""


def check_dims(model: ModelProto) -> None:
    """Refuse a rewritten model with values of more dims than QNN takes.

    Raises:
        ModelError: it has one; the first is named, with its shape and the node that makes or reads it.
    """
    graph = model.graph
    types: Types = {value.name: value.type for value in (*graph.input, *graph.value_info, *graph.output)}
    for kind, values in (("input", graph.input), ("output", graph.output)):
        for value in values:
            if _dims(types, value.name) > MOST_DIMS:
                raise ModelError(
                    f"{kind} {value.name!r} has {_dims(types, value.name)} dims: QNN takes at most {MOST_DIMS}",
                    where=f"{kind} {value.name!r} {spell(value.type)}",
                    why="HTP has no tensors of more dims, in no precision",
                    remedy=f"export the model with at most {MOST_DIMS} dims there, dims of 1 left out and neighbours"
                    " merged, and let the application reshape",
                )
    deep = [node for node in graph.node if any(_dims(types, name) > MOST_DIMS for name in (*node.output, *reads(node)))]
    if deep:
        raise _refused(model, deep, types)


def _refused(model: ModelProto, deep: Sequence[NodeProto], types: Types) -> ModelError:
    graph = model.graph
    # Others spell the dims that this one wants.
    node = next((each for each in deep if not is_op(each, *VIEWS)), deep[0])
    name = next(each for each in (*reads(node), *node.output) if _dims(types, each) > MOST_DIMS)
    ends = ends_before(graph, node, {tensor.name for tensor in graph.initializer})
    return ModelError(
        f"node {label(node)} has a tensor of {_dims(types, name)} dims: QNN takes at most {MOST_DIMS}",
        where=f"its {'output' if name in node.output else 'input'} {name!r} {spell(types[name])}",
        why="HTP has no tensors of more dims, in no precision; dims of 1 were left out and neighbours merged wherever"
        f" that leaves {MOST_DIMS}, and here it does not",
        remedy=f"{cutting(ends)}export the model with fewer dims around it; or leave it to the CPU with thresholds:"
        f" {{max_cpu_nodes: {_CONVERSIONS * len(deep)}, max_partitions: 2}}",
    )


def _dims(types: Types, name: str) -> int:
    return len(shape_of(types[name])) if name in types and types[name].HasField("tensor_type") else 0
