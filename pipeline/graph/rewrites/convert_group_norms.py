"""Write norms of groups of channels with the InstanceNormalization that QNN has.

Before and after::

    GroupNormalization(x, scale, bias)      Add(Mul(Reshape(InstanceNormalization(Reshape(x))), scale), bias)
    MeanVarianceNormalization(x)            InstanceNormalization(x)       one sample, all axes but the channels

A group is one channel for the Reshape, as PyTorch itself exports it before opset 21. GroupNormalization ends the
compiler's process (QNN EP 2.7), MeanVarianceNormalization is left to the CPU. As InstanceNormalization they have 77 and
84 dB of SQNR in 16 bits. The result keeps its name. Left alone: scales that are computed for each group (before opset
21), and types other than float32.
"""

from __future__ import annotations

import numpy as np
from onnx import NodeProto

from pipeline.graph.ir.attributes import integer, integers, real
from pipeline.graph.ir.index import GraphIndex, is_float32, is_op
from pipeline.graph.ir.inference import shape_of
from pipeline.graph.ir.node_builder import Additions, each_node

_EPSILON = 1e-5
"""ONNX's default."""
_EPSILON_OF_MEAN_VARIANCE = 1e-9
"""That in the definition of MeanVarianceNormalization."""


@each_node
def apply(added: Additions, node: NodeProto) -> bool:
    """Replace a GroupNormalization or MeanVarianceNormalization."""
    if not _matches(added.index, node):
        return False
    if node.op_type == "GroupNormalization":
        _group_norm(added, node)
    else:
        channels = added.shape(node.output[0])[1]
        inputs = [node.input[0], *_ones_and_zeros(added, node.output[0], channels)]
        added.replace("InstanceNormalization", *inputs, out=node.output[0], epsilon=_EPSILON_OF_MEAN_VARIANCE)
    return True


def _matches(index: GraphIndex, node: NodeProto) -> bool:
    if not is_op(node, "GroupNormalization", "MeanVarianceNormalization"):
        return False
    dims = shape_of(index.types[node.output[0]])
    if not is_float32(index, node.output[0]) or len(dims) < 3:
        return False
    if node.op_type == "GroupNormalization":
        return all(name in index.initializers or shape_of(index.types[name]) == dims[1:2] for name in node.input[1:3])
    others = {axis for axis in range(len(dims)) if axis != 1}
    return dims[0] == 1 and others - {0} <= {axis % len(dims) for axis in integers(node, "axes", [0, 2, 3])} <= others


def _group_norm(added: Additions, node: NodeProto) -> None:
    source, result = node.input[0], node.output[0]
    dims = added.shape(result)
    groups, epsilon = integer(node, "num_groups"), real(node, "epsilon", _EPSILON)
    grouped = added.op(
        "Reshape", source, added.integers(f"{result}_groups", dims[0], groups, -1), out=f"{result}_grouped"
    )
    normed = added.op(
        "InstanceNormalization", grouped, *_ones_and_zeros(added, result, groups), out=f"{result}_normed",
        epsilon=epsilon,
    )  # fmt: skip
    shaped = added.op("Reshape", normed, added.integers(f"{result}_dims", *dims), out=f"{result}_shaped")
    scale, bias = (
        _per_channel(added, name, f"{result}_{stem}", dims)
        for stem, name in zip(("gains", "offsets"), node.input[1:3], strict=True)
    )
    added.replace("Add", added.op("Mul", shaped, scale, out=f"{result}_scaled"), bias, out=result)


def _per_channel(added: Additions, name: str, stem: str, dims: tuple[int, ...]) -> str:
    """A scale or bias as [channels, 1, ...]; a constant of before opset 21 has one for each group."""
    array, column = added.index.constant(name), (-1, *(1,) * (len(dims) - 2))
    if array is None:
        return added.op("Reshape", name, added.integers(f"{stem}_dims", *column), out=stem)
    return added.constant(stem, np.repeat(array, dims[1] // array.size).reshape(column))


def _ones_and_zeros(added: Additions, stem: str, count: int) -> tuple[str, str]:
    return (
        added.constant(f"{stem}_ones", np.ones(count, np.float32)),
        added.constant(f"{stem}_zeros", np.zeros(count, np.float32)),
    )
