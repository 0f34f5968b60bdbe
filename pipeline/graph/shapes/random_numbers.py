"""Refuses models that draw random numbers: no two runs give the same, so nothing can be held against anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TypeProto, helper

from pipeline.errors import ModelError
from pipeline.graph.ir.index import is_op
from pipeline.graph.ir.inference import is_static, shape_of
from pipeline.graph.ir.traverse import label
from pipeline.graph.shapes.cut_points import ends_before
from pipeline.graph.shapes.folding import RANDOM
from pipeline.plain_text import cutting, quoted


class Silence:
    """Finds products of random numbers and 0, which are zeros in every run: no calibration has to see the numbers."""

    def __init__(self, known: Callable[[str], NDArray[Any] | None]) -> None:
        """`known` gives the value of a constant, None for what is computed."""
        self._known = known
        self._drawn: set[str] = set()

    def results(self, node: NodeProto, types: Mapping[str, TypeProto] | None) -> dict[str, NDArray[Any]]:
        """The zeros that a node makes, if it is such a product; called with the nodes of a graph in their order."""
        if is_op(node, *RANDOM):
            self._drawn.update(node.output)
        if types is None or not is_op(node, "Mul") or self._drawn.isdisjoint(node.input):
            return {}
        kind = types.get(node.output[0])
        if kind is None or not is_static(kind) or not any(map(self._is_zero, node.input)):
            return {}
        element = helper.tensor_dtype_to_np_dtype(kind.tensor_type.elem_type)
        return {node.output[0]: np.zeros(shape_of(kind), element)}

    def _is_zero(self, name: str) -> bool:
        value = self._known(name)
        return value is not None and value.size == 1 and not value.any()


def check_random_numbers(model: ModelProto) -> None:
    """Refuse a static model with a node that draws random numbers.

    Raises:
        ModelError: it has one; the first is named.
    """
    graph = model.graph
    for node in graph.node:
        if is_op(node, *RANDOM):
            ends = ends_before(graph, node, {tensor.name for tensor in graph.initializer})
            raise ModelError(
                f"node {label(node)} draws random numbers",
                where=f"its output {node.output[0]!r}",
                why="each run draws others, so what the chip computes can't be held against the original",
                remedy=f"say begin: {quoted(node.output[:1])} in the component's config, beside what is there already,"
                f" and what it draws is an input, for the application to draw; or {cutting(ends)}where a factor of the"
                " noise is an input, constants: {its name: 0} builds the model without any",
            )
