"""Refuses models that draw random numbers: no two runs give the same, so nothing can be held against anything."""

from __future__ import annotations

from onnx import ModelProto, NodeProto, TensorProto, numpy_helper

from pipeline.errors import ModelError
from pipeline.graph.files.model_file import is_external
from pipeline.graph.ir.index import is_op
from pipeline.graph.ir.traverse import label, reads
from pipeline.graph.shapes.ends import ends_before
from pipeline.graph.shapes.folding import RANDOM
from pipeline.graph.shapes.shape_errors import cutting


def check_random_numbers(model: ModelProto) -> None:
    """Refuse a static model with a node that draws random numbers, unless all it makes is multiplied by 0.

    Raises:
        ModelError: it has one; the first is named.
    """
    graph = model.graph
    zeros = {tensor.name for tensor in graph.initializer if _is_zero(tensor)}
    for node in graph.node:
        if is_op(node, *RANDOM) and not _is_left_out(model, node, zeros):
            ends = ends_before(graph, node, {tensor.name for tensor in graph.initializer})
            raise ModelError(
                f"node {label(node)} draws random numbers",
                where=f"its output {node.output[0]!r}",
                why="each run draws others, so what the chip computes can't be held against the original",
                remedy=f"{cutting(ends)}export the model with the noise as an input, which the application draws;"
                " where a factor of the noise is an input, constants: {its name: 0} builds the model without any",
            )


def _is_left_out(model: ModelProto, node: NodeProto, zeros: set[str]) -> bool:
    readers = [each for each in model.graph.node if not {*node.output}.isdisjoint(reads(each))]
    outputs = {value.name for value in model.graph.output}
    return not outputs.intersection(node.output) and all(
        is_op(each, "Mul") and not zeros.isdisjoint(each.input) for each in readers
    )


def _is_zero(tensor: TensorProto) -> bool:
    """Whether a constant is one number, and 0."""
    single = not is_external(tensor) and all(dim == 1 for dim in tensor.dims)
    return single and not numpy_helper.to_array(tensor).any()
