"""Writing ONNX graphs in the form that torch's exporter gives them: small nodes, constants as nodes, scoped names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

Operand = str | int | float | Sequence[int] | NDArray[Any]
"""The name of a value, or a constant: numbers are float32 or int64 scalars, sequences int64 vectors."""

Shape = Sequence[int | str]
OPSET = 17


class Graph:
    """A graph under construction. Weights are drawn from `seed`, in the order they are asked for."""

    def __init__(self, name: str, seed: int) -> None:
        self._name = name
        self._random = np.random.default_rng(seed)
        self._scope: list[str] = []
        self._used: Counter[str] = Counter()
        self._nodes: list[NodeProto] = []
        self._weights: list[TensorProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Names within start with `name`."""
        self._scope.append(name)
        try:
            yield
        finally:
            self._scope.pop()

    def input(self, name: str, dtype: str, shape: Shape) -> str:
        self._inputs.append(_value(name, dtype, shape))
        return name

    def output(self, name: str, dtype: str, shape: Shape) -> None:
        """Declare a value that a node was told to write as an output."""
        self._outputs.append(_value(name, dtype, shape))

    def op(self, kind: str, *operands: Operand, out: str = "", **attributes: Any) -> str:
        """Append a node with one output; returns the output's name."""
        inputs = [self._named(operand) for operand in operands]
        name = self._unique("/" + "/".join([*self._scope, kind]))
        output = out or f"{name}_output_0"
        self._nodes.append(helper.make_node(kind, inputs, [output], name, **attributes))
        return output

    def weight(self, name: str, values: NDArray[Any]) -> str:
        """An initializer, float64 stored as float32."""
        full = self._unique(".".join([*self._scope, name]))
        stored = values.astype(np.float32) if values.dtype == np.float64 else values
        self._weights.append(numpy_helper.from_array(stored, full))
        return full

    def normal(self, name: str, *shape: int, scale: float = 1.0, mean: float = 0.0) -> str:
        """An initializer of normally distributed values."""
        return self.weight(name, self._random.normal(mean, scale, shape))

    def model(self) -> ModelProto:
        """The finished model, checked."""
        graph = helper.make_graph(self._nodes, self._name, self._inputs, self._outputs, self._weights)
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8, producer_name="stand-in"
        )
        onnx.checker.check_model(model, full_check=True)
        return model

    def _named(self, operand: Operand) -> str:
        if isinstance(operand, str):
            return operand
        floating = isinstance(operand, float)
        values = operand if isinstance(operand, np.ndarray) else np.array(operand, np.float32 if floating else np.int64)
        return self.op("Constant", value=numpy_helper.from_array(values))

    def _unique(self, name: str) -> str:
        self._used[name] += 1
        return name if self._used[name] == 1 else f"{name}_{self._used[name] - 1}"


def dim(graph: Graph, value: str, axis: int) -> str:
    """The size of an axis as an int64 scalar, found while the model runs."""
    return graph.op("Gather", graph.op("Shape", value), axis, axis=0)


def reshape(graph: Graph, value: str, *dims: int | str) -> str:
    """Reshape to dims of which some are scalars computed in the graph."""
    if all(isinstance(size, int) for size in dims):
        return graph.op("Reshape", value, [int(size) for size in dims])
    return graph.op("Reshape", value, vector(graph, *dims))


def vector(graph: Graph, *numbers: int | str) -> str:
    """An int64 vector of numbers of which some are scalars computed in the graph."""
    parts = [
        graph.op("Constant", value=numpy_helper.from_array(np.array([number], np.int64)))
        if isinstance(number, int)
        else graph.op("Unsqueeze", number, [0])
        for number in numbers
    ]
    return graph.op("Concat", *parts, axis=0)


def save(model: ModelProto, path: Path, *, data: str | None = None) -> None:
    """Write a model, its tensors of 1 KiB and more to `data` beside it if given."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if data is None:
        path.write_bytes(model.SerializeToString(deterministic=True))
        return
    (path.parent / data).unlink(missing_ok=True)  # onnx appends
    onnx.save_model(model, path, save_as_external_data=True, location=data, size_threshold=1024)


def _value(name: str, dtype: str, shape: Shape) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), list(shape))
