"""Take elements in one go where a Gather is spelled over more dims than QNN has.

Before, as PyTorch exports Unfold (im2col) in opsets up to 17, with places of known kernels and strides::

    a = Gather(x, rows, axis=2)                 [n, c, kh, h, w']
    b = Gather(a, columns, axis=4)              [n, c, kh, h, kw, w]
    y = Reshape(Transpose(b), [n, c * kh * kw, h * w])

After, where all of it takes the same elements of each of ``n * c`` blocks::

    y = Reshape(Gather(Reshape(x, [n * c, h' * w']), places, axis=1), [n, c * kh * kw, h * w])

QNN EP 2.7 has tensors of five dims at most: it leaves the nodes around `b` to the CPU, a partition for each place.
The result keeps its name. Left alone: values of up to five dims, or that others read; indices that are computed; what
takes more than 4 million elements; Transpose and Reshape alone, which QNN EP joins by itself.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto

from pipeline.graph.ir.attributes import integer, integers
from pipeline.graph.ir.index import GraphIndex, LazyIndex, is_op
from pipeline.graph.ir.inference import is_static, shape_of
from pipeline.graph.ir.node_builder import Additions
from pipeline.graph.ir.ops import VIEWS

_MOST_DIMS = 5
_LARGEST = 1 << 22
_MOVING = ("Gather", "Transpose", *VIEWS)


def apply(model: ModelProto, folder: Path) -> int:
    """Replace every such chain; returns their number."""
    added = Additions(LazyIndex(model, folder))
    chains = [chain for node in model.graph.node if (chain := _chain(added.index, node)) and _replace(added, chain)]
    if chains:
        added.join(removed=[node for chain in chains for node in chain])
    return len(chains)


def _chain(index: GraphIndex, node: NodeProto) -> list[NodeProto]:
    """The nodes from a value of few dims to the next one, if the first above them is made by this Gather."""
    if not is_op(node, "Gather") or not _moves(index, node) or _rank(index, node.output[0]) <= _MOST_DIMS:
        return []
    if _rank(index, node.input[0]) > _MOST_DIMS:
        return []
    chain = [node]
    while (before := index.maker(chain[0].input[0], "Gather")) is not None and _moves(index, before):
        if index.sole_reader(before.output[0], "Gather") is None or _rank(index, before.input[0]) > _MOST_DIMS:
            break  # in the second case it ends another chain
        chain.insert(0, before)
    while _rank(index, chain[-1].output[0]) > _MOST_DIMS:
        after = index.sole_reader(chain[-1].output[0], *_MOVING)
        if after is None or not _moves(index, after) or after.input[0] != chain[-1].output[0]:
            return []
        chain.append(after)
    return chain


def _moves(index: GraphIndex, node: NodeProto) -> bool:
    """Whether a node takes elements of its first input from known places."""
    if not is_op(node, *_MOVING) or not (_rank(index, node.input[0]) and _rank(index, node.output[0])):
        return False
    if node.op_type != "Gather":
        return True
    indices = index.constant(node.input[1])
    if indices is None or not indices.size:
        return False
    size = shape_of(index.types[node.input[0]])[integer(node, "axis")]
    return bool(indices.min() >= -size and indices.max() < size)


def _rank(index: GraphIndex, name: str) -> int:
    """The number of dims; 0 where they are not known."""
    kind = index.types.get(name)
    return len(shape_of(kind)) if is_static(kind) and kind is not None else 0


def _replace(added: Additions, chain: list[NodeProto]) -> bool:
    source, result = chain[0].input[0], chain[-1].output[0]
    dims, made = added.shape(source), added.shape(result)
    largest = max(math.prod(added.shape(name)) for name in (source, *(node.output[0] for node in chain)))
    if not 0 < largest <= _LARGEST or 0 in made:
        return False
    taken = np.arange(math.prod(dims)).reshape(dims)
    for node in chain:
        taken = _moved(added.index, node, taken, added.shape(node.output[0]))
    blocks, places = _of_each_block(taken.ravel(), dims)
    flat = added.op("Reshape", source, added.integers(f"{result}_blocks", blocks, math.prod(dims) // blocks),
                    out=f"{result}_flat")  # fmt: skip
    found = added.op("Gather", flat, added.constant(f"{result}_places", places), out=f"{result}_taken", axis=1)
    added.replace("Reshape", found, added.integers(f"{result}_shape", *made), out=result)
    return True


def _moved(index: GraphIndex, node: NodeProto, array: NDArray[Any], dims: tuple[int, ...]) -> NDArray[Any]:
    if node.op_type == "Gather":
        indices = index.constant(node.input[1])
        assert indices is not None
        return np.take(array, indices, axis=integer(node, "axis"))
    if node.op_type == "Transpose":
        return array.transpose(integers(node, "perm") or None)
    return array.reshape(dims)


def _of_each_block(taken: NDArray[Any], dims: tuple[int, ...]) -> tuple[int, NDArray[np.int64]]:
    """How many blocks the leading dims are, at most, of each of which the same places are taken; and these places."""
    size = math.prod(dims)
    for rank in range(len(dims), 0, -1):
        blocks = math.prod(dims[:rank])
        if taken.size % blocks:
            continue
        within = taken.reshape(blocks, -1) - np.arange(blocks)[:, None] * (size // blocks)
        if within.min() >= 0 and within.max() < size // blocks and (within == within[0]).all():
            return blocks, within[0].astype(np.int64)
    return 1, taken.astype(np.int64)
