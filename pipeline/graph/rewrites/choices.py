"""Where, Trilu, and Dropout: which values are chosen, and on which side.

Figures are of QNN EP 2.7 and HTP 2.51, emulated. Results keep their names.
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from pipeline.graph.ir.ops import ORDERINGS
from pipeline.graph.ir.rules import F32, GraphValue, Node, lower, op

_ELEMENTWISE = ("Abs", "Add", "Div", "Exp", "Log", "Mul", "Neg", "Pow", "Reciprocal", "Sqrt", "Sub")
_NOT_OF_ZERO = ("Div", "Log", "Pow", "Reciprocal")


@lower(
    "Sqrt",
    "Log",
    of=F32,
    after={
        "decompose_activations": "it writes a Sqrt or Log",
    },
)
def choose_before(n: Node) -> bool:
    """Choose before a Sqrt or Log whose result a Where chooses from, with values of one size in between.

    ``Where(kept, Sqrt(x) * a, z) -> Where(kept, Sqrt(Where(kept, x, 0)) * a, z)``, 1 for 0 where the root divides, and
    ``Where(x > t, Log(x), z) -> Where(x > t, Log(Where(x > t, x, t)), z)``, 1 for a t that is not above 0. The result
    is the same to the bit. The values that are not kept may have been NaN or -inf, which no encoding holds: a build was
    refused for it. Left alone: a Log under another condition, as its x would have 1 in its range.
    """
    dims, between, value = n.y.shape, [], n.y
    reader = value.reader(*_ELEMENTWISE, "Where")
    while reader is not None and reader.kind != "Where":
        between.append(reader.kind)
        value = reader.y
        if value.shape != dims:
            return False
        reader = value.reader(*_ELEMENTWISE, "Where")
    if reader is None or list(reader.proto.input).count(value.name) != 1 or reader[0].name == value.name:
        return False
    condition, before = reader[0], n[0].maker("Where")
    instead = float(any(kind in _NOT_OF_ZERO for kind in between)) if n.kind == "Sqrt" else _limit(n[0], condition)
    if instead is None or np.broadcast_shapes(condition.shape, dims) != dims or reader.y.shape != dims:
        return False
    if before is not None and before[0].name == condition.name:
        return False
    sides = (n[0], n.number(instead)) if reader[1].name == value.name else (n.number(instead), n[0])
    return n.read(0, op.Where(condition, *sides))


def _limit(x: GraphValue, condition: GraphValue) -> float | None:
    """The number to compute a Log of where x is not kept; None if none would do no harm."""
    inverse = condition.maker("Not")
    comparison = (inverse[0] if inverse else condition).maker(*ORDERINGS)
    limit = comparison.other(x).scalar if comparison and comparison.reads(x) else None
    return None if limit is None or not np.isfinite(limit) else limit if limit > 0 else 1.0


@lower("Where")
def put_scores_first(n: Node) -> GraphValue | None:
    """``Softmax(Where(hidden, filler, scores)) -> Softmax(Where(Not(hidden), scores, filler))``.

    HTP takes the first form, which torch writes for masked_fill, for a masked softmax of its own where the scores come
    from a MatMul, the filler is one number of -30 or less, and there is more than one head: 41 dB become -1.5 with
    nothing masked, and with other sizes or uint8 it ends the process, as it reads the mask beyond its end. Left alone:
    a computed filler; a Where that something other than Softmax reads.
    """
    hidden, filler, scores = n[0], n[1], n[2]
    ends = n.y.readers
    if hidden.is_constant or scores.is_constant or not filler.is_constant or n.y.is_output:
        return None
    if not ends or any(each.kind != "Softmax" or each.proto.domain for each in ends):
        return None
    shown = n.once(f"Not {hidden.name}", lambda: op.Not(hidden))
    return op.Where(shown, scores, filler, name=n.name)


@lower("Trilu")
def select_triangles(n: Node) -> GraphValue | None:
    """``Trilu(x, k) -> Where(mask, x, 0)`` for a constant k, And of booleans: QNN leaves Trilu to the CPU.

    A product with zeros and ones would make a NaN of an infinity that is left out.
    """
    k = n.get(1)
    moved = k.scalar if k else 0.0
    if moved is None:
        return None
    ones = np.ones(n.y.shape[-2:], np.bool_)
    mask = np.triu(ones, int(moved)) if n.attr("upper", 1) else np.tril(ones, int(moved))
    return op.And(mask, n[0]) if n.y.kind == TensorProto.BOOL else op.Where(mask, n[0], 0)


@lower("Dropout")
def replace_dropouts(n: Node) -> bool:
    """``y, mask = Dropout(x) -> x, true`` outside of training; QNN leaves it to the CPU, and compiles none alone.

    The shape step leaves out a Dropout between nodes whose mask nobody reads. Left alone: training mode, or computed.
    """
    given = n.get(2)
    training = given.array if given else np.zeros(1, np.bool_)
    if training is None or training.any():
        return False
    for at, mask in enumerate(n.proto.output[1:], 1):
        if mask:
            n.become(n.constant(np.ones(n.added.shape(mask), np.bool_)), at)
    return n.become(n[0])
