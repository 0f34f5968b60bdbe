"""Casts to integers are given numbers of which HTP makes the right integers.

Before, where the Cast computes in integers::

    y = Cast(x, to int32)

After, where calibration saw what is below zero::

    y = Sub(Cast(Relu(x), to int32), Cast(Relu(Neg(x)), to int32))

HTP (2.51, emulated) makes -3 of -4, and so of every other negative power of two, if the encoding has steps between
whole numbers; of all that is not negative it makes the right integer, and of the rest below zero.

Where x is whole by what computes it, but a sum, a Round comes first: HTP's sum of 62 whole numbers is a step off, and
-898.94 would become -898.

Left alone: casts in float16, which are right; casts to other types than int32 and int64 of what is not whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from onnx import NodeProto, TensorProto

from pipeline.contracts.scheme import Rule, Scheme
from pipeline.graph.ir.index import WHOLE, GraphIndex, element_type, is_float, is_op
from pipeline.graph.ir.node_builder import Additions
from pipeline.graph.quantization.bounds.whole_numbers import is_rounded, whole_values
from pipeline.graph.quantization.calibration.ranges import Range, Ranges
from pipeline.graph.quantization.qdq.assignment import FLOAT, Assignment

_SIGNED = (TensorProto.INT32, TensorProto.INT64)


@dataclass(frozen=True)
class PreparedCasts:
    """What holds for a model whose casts are prepared."""

    ranges: Ranges
    scheme: Scheme
    """With rules about the nodes that were put in."""


def prepare_casts(index: GraphIndex, ranges: Mapping[str, Range], scheme: Scheme) -> PreparedCasts | None:
    """Do so in the float model of `index`, which is stale then. None where no Cast needs it."""
    casts = [node for node in index.model.graph.node if is_op(node, "Cast")]
    if not casts:
        return None
    assignment = Assignment(index, scheme)
    casts = [node for node in casts if _is_quantized(index, node, assignment)]
    whole = whole_values(index) if casts else frozenset[str]()
    sums = {name for node in casts if (name := str(node.input[0])) in whole and not is_rounded(index, name)}
    found = [node for node in casts if node.input[0] in sums or _is_signed(index, node, ranges)]
    if not found:
        return None
    measured = dict(ranges)
    chosen = {bits: dict(each) for bits, each in ranges.chosen.items()} if isinstance(ranges, Ranges) else {}
    added, rules = Additions(index), list[Rule]()
    for node in found:
        given, result, first = str(node.input[0]), str(node.output[0]), len(added.nodes)
        cast, made = given, dict[str, str]()
        if given in sums:
            cast = made["rounded"] = added.op("Round", given, out=f"{result}_rounded")
        if _is_signed(index, node, ranges):
            made |= _split(index, added, cast, result)
        else:
            added.replace("Cast", cast, out=result, to=element_type(index, result))
        rules.append(
            Rule(nodes=tuple(each.name for each in added.nodes[first:]), activations=assignment.computes_in(node))
        )
        for spans in (measured, *chosen.values()):
            if given in spans:
                spans |= {made[part]: _PARTS[part](spans[given]) for part in made}
    added.join()
    return PreparedCasts(Ranges(measured, chosen), scheme.with_rules(rules))


_PARTS: Mapping[str, Callable[[Range], Range]] = {
    "rounded": lambda span: span,
    "above": lambda span: Range(0.0, max(span.high, 0.0)),
    "negative": lambda span: Range(-span.high, -span.low),
    "below": lambda span: Range(0.0, max(-span.low, 0.0)),
}
"""The range of each value that is put in, by that of what is cast."""


def _split(index: GraphIndex, added: Additions, cast: str, result: str) -> dict[str, str]:
    """Cast a value by its magnitudes. Returns the float values that this puts in, by part."""
    to = element_type(index, result)
    above = added.op("Relu", cast, out=f"{result}_above")
    negative = added.op("Neg", cast, out=f"{result}_negative")
    below = added.op("Relu", negative, out=f"{result}_below")
    added.replace("Sub", *(added.op("Cast", each, out=f"{each}_whole", to=to) for each in (above, below)), out=result)
    return {"above": above, "negative": negative, "below": below}


def _is_quantized(index: GraphIndex, node: NodeProto, assignment: Assignment) -> bool:
    if node.input[0] in index.initializers or not is_float(index, node.input[0]):
        return False
    return element_type(index, node.output[0]) in WHOLE and assignment.computes_in(node) != FLOAT


def _is_signed(index: GraphIndex, node: NodeProto, ranges: Mapping[str, Range]) -> bool:
    return element_type(index, node.output[0]) in _SIGNED and ranges[node.input[0]].low < 0
