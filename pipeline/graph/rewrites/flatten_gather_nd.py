"""Write a GatherND with known indices as a Reshape, or as a Gather along one axis.

Before::

    GatherND(data, indices)          indices constant, [..., k]

After, with the k dims that are indexed made one and the places counted along it::

    Reshape(data, shape)                                     if every element is taken once, in order
    Gather(Reshape(data, [places, ...]), places)             else

PyTorch's dynamo exporter writes ``mask[batch, position]``, which every attention mask of transformers goes through, as
a GatherND. QNN EP 2.7 leaves that of a boolean to the CPU, between two partitions, and takes each of the forms above.
The result keeps its name. Left alone: indices that are computed.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto

from pipeline.graph.ir.attributes import integer
from pipeline.graph.ir.index import LazyIndex, is_op, set_nodes
from pipeline.graph.ir.node_builder import Additions


def apply(model: ModelProto, folder: Path) -> int:
    """Replace every GatherND whose indices are known; returns their number."""
    index = LazyIndex(model, folder)
    nodes: list[NodeProto] = []
    added = Additions(index)
    replaced = 0
    for node in model.graph.node:
        indices = index.constant(node.input[1]) if is_op(node, "GatherND") else None
        dims = added.shape(node.input[0]) if indices is not None else ()
        if indices is None or not indices.size or 0 in dims:
            nodes.append(node)
            continue
        start = len(added.nodes)
        _gather(added, node, dims, indices)
        nodes += added.nodes[start:]
        replaced += 1
    if replaced:
        added.finish()
        set_nodes(model, nodes)
    return replaced


def _gather(added: Additions, node: NodeProto, dims: tuple[int, ...], indices: NDArray[Any]) -> None:
    result = node.output[0]
    batch_dims = integer(node, "batch_dims")
    indexed = batch_dims + indices.shape[-1]
    places = _places(indices, dims[:indexed], batch_dims)
    count, rest = math.prod(dims[:indexed]), dims[indexed:]
    if np.array_equal(places.ravel(), np.arange(count)):
        shape = added.integers(f"{result}_shape", *places.shape, *rest)
        added.replace("Reshape", node.input[0], shape, out=result)
        return
    flat = added.op(
        "Reshape", node.input[0], added.integers(f"{result}_flat_shape", count, *rest), out=f"{result}_flat"
    )
    added.replace("Gather", flat, added.constant(f"{result}_places", places), out=result, axis=0)


def _places(indices: NDArray[Any], dims: tuple[int, ...], batch_dims: int) -> NDArray[np.int64]:
    """Each index tuple as one number: its place among all places of the indexed dims, in their order."""
    places: NDArray[np.int64] = np.zeros(indices.shape[:-1], np.int64)
    grid = np.indices(indices.shape[:batch_dims])
    for axis, size in enumerate(dims):
        if axis < batch_dims:
            along: NDArray[Any] = grid[axis].reshape(*indices.shape[:batch_dims], *(1,) * (places.ndim - batch_dims))
        else:
            along = indices[..., axis - batch_dims]
            along = np.where(along < 0, along + size, along)
        places = places * size + along
    return places
