"""Leave out what a Where leaves out before the root or logarithm of it is taken.

Before, with values of one size from the Sqrt or Log to the Where, and nothing else that reads those in between::

    Where(kept, Mul(Sqrt(x), a), z)
    Where(Greater(x, t), Log(x), z)                               any comparison of x with a number

After::

    Where(kept, Mul(Sqrt(Where(kept, x, 0)), a), z)               1 for 0 where the root is divided by
    Where(Greater(x, t), Log(Where(Greater(x, t), x, t)), z)      1 for a t that is not above 0

What is kept is computed from the same x, so the result is the same to the bit, whatever x is. What was left out may
have been NaN or -inf, of numbers below 0, which no encoding holds: a build was refused for it.

Results keep their names. Left alone: a Log under another condition, as its x would have 1 in its range; types other
than float32.
"""

from __future__ import annotations

import numpy as np
from onnx import NodeProto

from pipeline.graph.ir.index import GraphIndex, is_float32, is_op
from pipeline.graph.ir.node_builder import Additions, each_node
from pipeline.graph.ir.traverse import other_input

_ELEMENTWISE = ("Abs", "Add", "Div", "Exp", "Log", "Mul", "Neg", "Pow", "Reciprocal", "Sqrt", "Sub")
_NOT_OF_ZERO = ("Div", "Log", "Pow", "Reciprocal")
_COMPARISONS = ("Greater", "GreaterOrEqual", "Less", "LessOrEqual")
_VALUE, _OTHER = 1, 2
"""The inputs of a Where behind its condition."""


@each_node
def apply(added: Additions, node: NodeProto) -> bool:
    """Choose before a Sqrt or Log whose result a Where chooses from."""
    if not is_op(node, "Sqrt", "Log") or not is_float32(added.index, node.output[0]):
        return False
    source, result, dims = node.input[0], node.output[0], added.shape(node.output[0])
    between: list[str] = []
    reader, value = added.index.sole_reader(result, *_ELEMENTWISE, "Where"), result
    while reader is not None and reader.op_type != "Where":
        between.append(reader.op_type)
        value = reader.output[0]
        if added.shape(value) != dims:
            return False
        reader = added.index.sole_reader(value, *_ELEMENTWISE, "Where")
    if reader is None or list(reader.input).count(value) != 1 or reader.input[0] == value:
        return False
    condition = reader.input[0]
    instead = _instead(added.index, node, condition, between)
    if instead is None or np.broadcast_shapes(added.shape(condition), dims) != dims:
        return False
    before = added.index.maker(source, "Where")
    if (before is not None and before.input[0] == condition) or added.shape(reader.output[0]) != dims:
        return False
    harmless = added.number(f"{result}_instead", instead)
    sides = (source, harmless) if reader.input[_VALUE] == value else (harmless, source)
    node.input[0] = added.op("Where", condition, *sides, out=f"{result}_of", name=f"{result}_chosen_before")
    return True


def _instead(index: GraphIndex, node: NodeProto, condition: str, between: list[str]) -> float | None:
    """The number to compute where nothing is kept; None if there is none that would do no harm."""
    if node.op_type == "Sqrt":
        return float(any(kind in _NOT_OF_ZERO for kind in between))
    inverse = index.maker(condition, "Not")
    comparison = index.maker(condition if inverse is None else inverse.input[0], *_COMPARISONS)
    if comparison is None or node.input[0] not in comparison.input:
        return None
    limit = index.scalar(other_input(comparison, node.input[0]))
    if limit is None or not np.isfinite(limit):
        return None
    return limit if limit > 0 else 1.0
