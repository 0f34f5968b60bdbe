"""Products with constant matrices that are made of some rows alone, which each run chooses.

Before, of a value [a, b, m, k] and a constant matrix [k, n]::

    MatMul(x, w)

After, with `take` the rows that are wanted, and `spread` for each row its place among those::

    Reshape(Gather(MatMul(Gather(Reshape(x, [-1, k]), take), w), spread), [a, b, m, n])

Rows of padding bear on nothing, and most of a short sample is padding. They get the result of the first row that is
wanted, which is as harmless as any: what reads it leaves the rows that are wanted what they are, as was seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from pipeline.graph.ir.index import is_op

Dims = tuple[int, ...]


@dataclass(frozen=True)
class RowProducts:
    """Which nodes of a model can be told what rows to multiply, by name with how many they have."""

    rows: Mapping[str, int]

    def feeds(self, wanted: Mapping[str, NDArray[np.bool_]]) -> dict[str, NDArray[Any]]:
        """What a run is given, for it to multiply the rows that are `wanted` alone, by node; of other nodes all."""
        found: dict[str, NDArray[Any]] = {}
        for name, count in self.rows.items():
            taken = np.flatnonzero(wanted[name]) if name in wanted else np.arange(count)
            taken = taken if len(taken) else np.arange(count)
            spread = np.zeros(count, np.int64)
            spread[taken] = np.arange(len(taken))
            found |= {_take(name): taken.astype(np.int64), _spread(name): spread}
        return found


def choose_rows(model: ModelProto, inputs: Mapping[str, Dims]) -> RowProducts:
    """Let every MatMul of `model` that is in `inputs`, by name with the dims of what it multiplies a constant matrix
    with, be told which rows to multiply.
    """
    rows: dict[str, int] = {}
    nodes = list[NodeProto]()
    for node in model.graph.node:
        dims = inputs.get(node.name, ())
        if not is_op(node, "MatMul") or prod(dims[:-1]) < 2:
            nodes.append(node)
            continue
        rows[node.name] = prod(dims[:-1])
        nodes += _of_some_rows(model, node, dims)
    copies = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del model.graph.node[:]
    model.graph.node.extend(copies)
    return RowProducts(rows)


def _of_some_rows(model: ModelProto, node: NodeProto, dims: Dims) -> list[NodeProto]:
    name, (source, weight), result = node.name, node.input, node.output[0]
    to, back = f"{name}/flat", f"{name}/deep"
    model.graph.initializer.extend(
        numpy_helper.from_array(np.array(values, np.int64), constant)
        for constant, values in ((to, [-1, dims[-1]]), (back, [*dims[:-1], -1]))
    )
    model.graph.input.extend(
        helper.make_tensor_value_info(given, TensorProto.INT64, [size])
        for given, size in ((_take(name), None), (_spread(name), prod(dims[:-1])))
    )
    steps = [
        ("Reshape", source, to),
        ("Gather", "", _take(name)),
        ("MatMul", "", weight),
        ("Gather", "", _spread(name)),
    ]
    made = [f"{name}/rows", f"{name}/some", f"{name}/made", f"{name}/spread"]
    nodes, last = list[NodeProto](), ""
    for (op, first, second), output in zip(steps, made, strict=True):
        nodes.append(helper.make_node(op, [first or last, second], [output], output))
        last = output
    return [*nodes, helper.make_node("Reshape", [last, back], [result], name)]


def _take(name: str) -> str:
    return f"{name}/take"


def _spread(name: str) -> str:
    return f"{name}/spread_by"
