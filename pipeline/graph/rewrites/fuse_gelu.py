"""Fuse the exact Gelu that exporters spell out with Erf, which QNN doesn't have.

Before (the factors in any order)::

    Mul(Mul(x, Add(Erf(Div(x, sqrt 2)), 1)), 0.5)        or with Mul(x, 1 / sqrt 2) in place of Div

After::

    Gelu(x)          of ONNX from opset 20, before that of com.microsoft, which computes the same

QNN has a Gelu of its own; each Erf left over would split the graph in two with a trip to the CPU between them. The
result keeps its name. Left alone: another constant in any place (the tanh approximation has no Erf to begin with), and
a value in between that something else reads.
"""

from __future__ import annotations

import math

from onnx import NodeProto, helper

from pipeline.graph.ir.index import CONTRIB_DOMAIN, GraphIndex, import_contrib, is_op, opset
from pipeline.graph.ir.node_builder import Additions, each_node
from pipeline.graph.ir.traverse import other_input

_GELU_OPSET = 20
_TOLERANCE = 1e-3
"""Relative; constants of fp16 exports are off by up to 5e-4."""


@each_node
def apply(added: Additions, node: NodeProto) -> bool:
    """Fuse a Gelu that this Erf is part of."""
    model = added.index.model
    matched = _match(added.index, node) if is_op(node, "Erf") else None
    if matched is None:
        return False
    source, last = matched
    domain = "" if opset(model) >= _GELU_OPSET else CONTRIB_DOMAIN
    if domain:
        import_contrib(model)
    gelu = helper.make_node("Gelu", [source], list(last.output), last.name, domain=domain)
    # In place of the last node, so that the order stays topological; the others are now unused.
    last.CopyFrom(gelu)
    return True


def _match(index: GraphIndex, erf: NodeProto) -> tuple[str, NodeProto] | None:
    """The input of the Gelu that an Erf is part of, and its last node."""
    source = _scaled_input(index, erf)
    shifted = index.sole_reader(erf.output[0], "Add")
    if source is None or shifted is None or not _is(index, other_input(shifted, erf.output[0]), 1.0):
        return None
    first = index.sole_reader(shifted.output[0], "Mul")
    if first is None:
        return None
    factor = other_input(first, shifted.output[0])
    if _is_half_of(index, factor, source):
        return source, first
    second = index.sole_reader(first.output[0], "Mul")
    if second is None:
        return None
    last_factor = other_input(second, first.output[0])
    complete = (factor == source and _is(index, last_factor, 0.5)) or (
        _is(index, factor, 0.5) and last_factor == source
    )
    return (source, second) if complete else None


def _scaled_input(index: GraphIndex, erf: NodeProto) -> str | None:
    """The x of Erf(x / sqrt 2)."""
    scale = index.maker(erf.input[0], "Div", "Mul")
    if scale is None or index.sole_reader(erf.input[0], "Erf") is None:
        return None
    if scale.op_type == "Div":
        return scale.input[0] if _is(index, scale.input[1], math.sqrt(2)) else None
    for name in scale.input:
        if _is(index, name, math.sqrt(0.5)):
            return other_input(scale, name)
    return None


def _is_half_of(index: GraphIndex, name: str, source: str) -> bool:
    half = index.maker(name, "Mul")
    return half is not None and source in half.input and _is(index, other_input(half, source), 0.5)


def _is(index: GraphIndex, name: str, expected: float) -> bool:
    value = index.scalar(name)
    return value is not None and math.isclose(value, expected, rel_tol=_TOLERANCE)
