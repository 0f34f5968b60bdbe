"""Multiply in a Gemm by what is computed, and add what is no row, with nodes of their own.

Before, and after where b is computed, or c is computed or has several rows::

    Gemm(a, b, c, transA, transB)        Add(MatMul(a, b), c), Transposes before it

QNN's FullyConnected, which a quantized Gemm becomes, takes no second matrix of 16 bits that is computed, and a bias for
each column alone: such a node stayed on the CPU, or nothing was compiled.

The result keeps its name. Left alone: other types than floats, and factors other than 1.
"""

from __future__ import annotations

from onnx import NodeProto

from pipeline.graph.ir.attributes import integer, real
from pipeline.graph.ir.index import GraphIndex, is_float, is_op
from pipeline.graph.ir.node_builder import Additions, each_node

AFTER = {"fold_gemm_factors": "it leaves no other factor than 1"}
"""What runs before, and why."""

_BIAS = 2


@each_node
def apply(added: Additions, node: NodeProto) -> bool:
    """Split a Gemm that QNN has no operator for."""
    index = added.index
    if not is_op(node, "Gemm") or not is_float(index, node.output[0]) or _has_factors(node):
        return False
    bias = node.input[_BIAS] if len(node.input) > _BIAS else ""
    if node.input[1] in index.initializers and (not bias or _is_row(index, bias)):
        return False
    result = str(node.output[0])
    left, right = (_turned(added, node, place) for place in range(_BIAS))
    if not bias:
        added.replace("MatMul", left, right, out=result)
        return True
    product = added.op("MatMul", left, right, out=f"{result}_product")
    added.replace("Add", product, bias, out=result)
    return True


def _has_factors(node: NodeProto) -> bool:
    return any(real(node, name, 1.0) != 1 for name in ("alpha", "beta"))


def _is_row(index: GraphIndex, name: str) -> bool:
    return name in index.initializers and all(size == 1 for size in index.initializers[name].dims[:-1])


def _turned(added: Additions, node: NodeProto, place: int) -> str:
    """One of the two matrices, as MatMul takes it."""
    name = str(node.input[place])
    if not integer(node, ("transA", "transB")[place]):
        return name
    constant = added.index.constant(name)
    if constant is not None:
        return added.constant(f"{name}_turned", constant.T.copy())
    return added.op("Transpose", name, out=f"{name}_turned_for_{node.output[0]}", perm=[1, 0])
