"""What of a model scales with its inputs, and which of that a logarithm or a compressing root is taken of.

A value has a degree: where an input becomes `k` times as large, it becomes `k ** degree` times as large. Spectra of
sound have one, from the samples over a transform without a bias to its magnitudes (1) or powers (2). A logarithm makes
a distance of a ratio: what is 60 dB below the loudest counts as much as the loudest itself, while a format of fixed
steps has nothing left of it. So models that take one are wrong on quiet inputs first, and on ordinary samples last.

Floors and small numbers that are added, as below a logarithm, count as nothing. A bias, a function with a knee and
whatever else is not known to scale ends a degree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from onnx import NodeProto

from pipeline.graph.ir.index import GraphIndex, is_float, is_op
from pipeline.graph.ir.ops import MOVES_FIRST
from pipeline.graph.ir.traverse import DEFAULT_DOMAINS, input_at

_MOVES = (
    *MOVES_FIRST, "Abs", "AveragePool", "Cast", "DepthToSpace", "DequantizeLinear", "Dropout", "GlobalAveragePool",
    "GlobalMaxPool", "LeakyRelu", "MaxPool", "Neg", "Pad", "QuantizeLinear", "ReduceL1", "ReduceL2", "ReduceMax",
    "ReduceMean", "ReduceMin", "ReduceSum", "Relu", "SpaceToDepth",
)  # fmt: skip
"""Operators whose results are as many times as large as what they are given first."""
_WEIGHS = ("Conv", "ConvTranspose", "DFT", "Gemm", "MatMul", "STFT")
"""The same, if the rest is constant and no bias is added."""
_COMPRESSES, _LOGARITHMS = ("Sqrt", "Pow"), ("Log", "ReduceLogSum")
_LARGEST_ADDED, _LARGEST_SUBTRACTED = 1.0, 0.01
"""What is added to a value that scales, or is its floor, and what is subtracted from it: no more, or it is a value."""


@dataclass(frozen=True)
class Scaling:
    """How a value scales with `inputs` of the model. A degree of 0 is that of a quotient of what scales alike."""

    degree: float
    inputs: frozenset[str]


@dataclass(frozen=True)
class Heard:
    """A logarithm, or a root that compresses: its node, and how what it is taken of scales.

    `values` are those in front of it that scale, the inputs of the model included.
    """

    node: NodeProto
    given: Scaling
    values: frozenset[str]


def heard_by_logarithms(index: GraphIndex) -> list[Heard]:
    """The logarithms and compressing roots of what scales with an input, in the graph's order."""
    compressing = [node for node in index.model.graph.node if is_op(node, *_COMPRESSES, *_LOGARITHMS)]
    known = scalings(index) if compressing else {}
    found: list[Heard] = []
    for node in compressing:
        given = known.get(node.input[0]) if node.input else None
        if given is None or given.degree <= 0:
            continue
        made = known.get(node.output[0])
        compresses = is_op(node, *_COMPRESSES) and made is not None and 0 < made.degree < 1
        if compresses or is_op(node, *_LOGARITHMS):
            found.append(Heard(node, given, _behind(index, known, node.input[0])))
    return found


def inputs_heard(index: GraphIndex) -> tuple[str, ...]:
    """The inputs of whose scale a logarithm is taken, sorted."""
    return tuple(sorted({name for each in heard_by_logarithms(index) for name in each.given.inputs}))


def scalings(index: GraphIndex) -> dict[str, Scaling]:
    """How each value scales of which that is known, the inputs included; the graph is in topological order."""
    known: dict[str, Scaling] = {}
    for value in index.model.graph.input:
        if is_float(index, value.name) and value.name not in index.initializers:
            known[value.name] = Scaling(1.0, frozenset([value.name]))
    for node in index.model.graph.node:
        made = _through(index, node, known)
        if made is not None:
            known |= {str(name): made for name in node.output if name}
    return known


def _behind(index: GraphIndex, known: Mapping[str, Scaling], name: str) -> frozenset[str]:
    """A value and those that it is made of, of which is known how they scale."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        name = waiting.pop()
        if name in found or name not in known:
            continue
        found.add(name)
        maker = index.makers.get(name)
        waiting += maker.input if maker is not None else []
    return frozenset(found)


def floor_below(index: GraphIndex, name: str) -> float:
    """The least that a Max, a Clip or a number that is added leaves of a value; 0 if none is known."""
    node = index.makers.get(name)
    while node is not None and node.op_type in ("QuantizeLinear", "DequantizeLinear"):
        node = index.makers.get(node.input[0])
    if node is None or not is_op(node, "Max", "Clip", "Add"):
        return 0.0
    numbers = [_number(index, each) for each in (node.input[1:2] if is_op(node, "Clip") else node.input) if each]
    return max((each for each in numbers if each is not None), default=0.0)


def _through(index: GraphIndex, node: NodeProto, known: Mapping[str, Scaling]) -> Scaling | None:
    """How the results of a node scale; None if they do not, or it is not known."""
    # Of whichever domain: for types that ONNX's own doesn't take in an opset, onnxruntime's Q and DQ are used.
    known_domain = node.domain in DEFAULT_DOMAINS or node.op_type in ("QuantizeLinear", "DequantizeLinear")
    rule = _RULES.get(node.op_type) if known_domain else None
    return rule(index, node, known) if rule is not None and node.input else None


def _moved(index: GraphIndex, node: NodeProto, known: Mapping[str, Scaling]) -> Scaling | None:
    return known.get(node.input[0])


def _weighed(index: GraphIndex, node: NodeProto, known: Mapping[str, Scaling]) -> Scaling | None:
    bias = node.input[2] if is_op(node, "Conv", "ConvTranspose", "Gemm") and len(node.input) > 2 else ""
    if bias and _number(index, bias) != 0:
        return None
    return _product(index, node, known, list(node.input[:2]))


def _multiplied(index: GraphIndex, node: NodeProto, known: Mapping[str, Scaling]) -> Scaling | None:
    return _product(index, node, known, list(node.input))


def _product(
    index: GraphIndex, node: NodeProto, known: Mapping[str, Scaling], names: list[str], sign: float = 1.0
) -> Scaling | None:
    parts = [known[name] for name in names if name in known]
    if not parts or any(name not in known and not _is_constant(index, name) for name in names if name):
        return None
    degrees = [known[name].degree * (sign if place else 1.0) for place, name in enumerate(names) if name in known]
    return _joined(parts, sum(degrees))


def _divided(index: GraphIndex, node: NodeProto, known: Mapping[str, Scaling]) -> Scaling | None:
    return _product(index, node, known, list(node.input), sign=-1.0)


def _summed(index: GraphIndex, node: NodeProto, known: Mapping[str, Scaling]) -> Scaling | None:
    """What is added or compared scales alike, but for numbers that are small and above zero."""
    parts = [known[name] for name in node.input if name in known]
    most = _LARGEST_SUBTRACTED if is_op(node, "Sub") else _LARGEST_ADDED
    for place, name in enumerate(node.input):
        if name and name not in known:
            number = _number(index, name)
            if number is None or not 0 <= number <= most or (is_op(node, "Sub") and place == 0):
                return None
    return _joined(parts, parts[0].degree) if parts and len({part.degree for part in parts}) == 1 else None


def _concatenated(index: GraphIndex, node: NodeProto, known: Mapping[str, Scaling]) -> Scaling | None:
    """Of what is put side by side, a part that scales is enough: a context of other samples is an input of its own."""
    parts = [known[name] for name in node.input if name in known]
    return _joined(parts, parts[0].degree) if parts and len({part.degree for part in parts}) == 1 else None


def _clipped(index: GraphIndex, node: NodeProto, known: Mapping[str, Scaling]) -> Scaling | None:
    low = _number(index, node.input[1]) if input_at(node, 1) else 0.0
    return known.get(node.input[0]) if low is not None and low <= _LARGEST_ADDED else None


def _root(index: GraphIndex, node: NodeProto, known: Mapping[str, Scaling]) -> Scaling | None:
    given = known.get(node.input[0])
    power = 0.5 if is_op(node, "Sqrt") else _number(index, node.input[1])
    return _joined([given], given.degree * power) if given is not None and power is not None else None


def _squared(index: GraphIndex, node: NodeProto, known: Mapping[str, Scaling]) -> Scaling | None:
    given = known.get(node.input[0])
    return _joined([given], given.degree * 2) if given is not None else None


def _joined(parts: list[Scaling], degree: float) -> Scaling:
    return Scaling(degree, frozenset[str]().union(*(part.inputs for part in parts)))


def _is_constant(index: GraphIndex, name: str) -> bool:
    maker = index.makers.get(name)
    dequantized = maker is not None and maker.op_type == "DequantizeLinear" and maker.input[0] in index.initializers
    return name in index.initializers or dequantized


def _number(index: GraphIndex, name: str) -> float | None:
    """The number that a constant is, or stands for in a model with Q and DQ nodes; None for all else."""
    maker = index.makers.get(name)
    if maker is None or maker.op_type != "DequantizeLinear":
        return index.scalar(name)
    parts = [index.scalar(each) if each else 0.0 for each in (*maker.input, "")[:3]]
    integer, scale, zero = parts
    return (integer - zero) * scale if integer is not None and scale is not None and zero is not None else None


_Rule = Callable[[GraphIndex, NodeProto, Mapping[str, Scaling]], Scaling | None]
_RULES: Mapping[str, _Rule] = {
    **dict.fromkeys(_MOVES, _moved),
    **dict.fromkeys(_WEIGHS, _weighed),
    "Mul": _multiplied,
    "Div": _divided,
    **dict.fromkeys(("Add", "Sub", "Max", "Min", "Sum"), _summed),
    "Concat": _concatenated,
    "Clip": _clipped,
    **dict.fromkeys(_COMPRESSES, _root),
    "ReduceSumSquare": _squared,
}
"""How operators scale."""
