"""The small constants of a graph, whichever way it has them."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from onnx import GraphProto

from pipeline.errors import ModelError
from pipeline.graph.files.model_file import is_external, tensor_array


def small_constants(graph: GraphProto, most: int) -> dict[str, NDArray[Any]]:
    """Initializers and the values of Constant nodes that have `most` numbers at most, and one at least.

    A damaged one is left out: it is for the steps of the build to name.
    """
    tensors = [(tensor.name, tensor) for tensor in graph.initializer]
    tensors += [
        (node.output[0], attribute.t)
        for node in graph.node
        if node.op_type == "Constant"
        for attribute in node.attribute
        if attribute.name == "value"
    ]
    found: dict[str, NDArray[Any]] = {}
    for name, tensor in tensors:
        if not is_external(tensor) and 1 <= math.prod(tensor.dims) <= most:
            with contextlib.suppress(ModelError):
                found[name] = tensor_array(tensor, Path())
    return found
