"""Put the factors of a Gemm into what it multiplies and adds.

Before::

    Gemm(a, b, c, alpha, beta)                     = alpha * a * b + beta * c

After, where b and c are constant::

    Gemm(a, b * alpha, c * beta)

A computed operand is multiplied by a Mul; a bias with a beta of 0, which ONNX doesn't add, is left out. Weights that
others read too stay as they are, and a is multiplied: two forms of them would be stored.

QNN (EP 2.7) takes no other factor than 1: such a node stays on the CPU, and a model of nothing else is not compiled.

The result keeps its name. Left alone: types other than floats.
"""

from __future__ import annotations

import numpy as np
from onnx import NodeProto, helper

from pipeline.graph.ir.attributes import real, settings
from pipeline.graph.ir.index import GraphIndex, element_type, is_float, is_op
from pipeline.graph.ir.node_builder import Additions, each_node

_BIAS = 2


@each_node
def apply(added: Additions, node: NodeProto) -> bool:
    """Fold the factors of a Gemm."""
    if not (is_op(node, "Gemm") and _has_factors(added.index, node)):
        return False
    _fold(added.index, added, node)
    return True


def _has_factors(index: GraphIndex, node: NodeProto) -> bool:
    return is_float(index, node.output[0]) and any(real(node, name, 1.0) != 1 for name in ("alpha", "beta"))


def _fold(index: GraphIndex, added: Additions, node: NodeProto) -> None:
    alpha, beta = real(node, "alpha", 1.0), real(node, "beta", 1.0)
    inputs = list(node.input)
    own = [place for place in (1, 0) if inputs[place] in index.initializers and len(index.readers[inputs[place]]) == 1]
    place = own[0] if own else 0
    inputs[place] = _times(index, added, inputs[place], alpha)
    if len(inputs) > _BIAS and inputs[_BIAS]:
        inputs[_BIAS] = _times(index, added, inputs[_BIAS], beta) if beta else ""
    if not inputs[-1]:
        inputs.pop()
    kept = {name: value for name, value in settings(node).items() if name not in ("alpha", "beta")}
    added.replace("Gemm", *inputs, out=node.output[0], **kept)


def _times(index: GraphIndex, added: Additions, name: str, factor: float) -> str:
    """The value, or the constant, times a factor."""
    if factor == 1:
        return name
    constant = index.constant(name)
    if constant is not None:
        return added.constant(f"{name}_times", (constant * factor).astype(constant.dtype))
    kind = helper.tensor_dtype_to_np_dtype(element_type(index, name))
    return added.op("Mul", name, added.constant(f"{name}_factor", np.array(factor, kind)), out=f"{name}_times")
