"""Clamps that an encoding does for free: Relu and Clip behind the node whose result they bound."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from onnx import NodeProto

from pipeline.contracts.scheme import Rule
from pipeline.graph.ir.index import GraphIndex, is_float, is_op
from pipeline.graph.ir.node_builder import Additions
from pipeline.graph.quantization.calibration.ranges import MIN_WIDTH, ROUNDED_BITS, Ranges
from pipeline.graph.quantization.operand_rules import FIXED_16_BIT, ONE_ENCODING, WRAPPING, moves_data
from pipeline.graph.quantization.qdq.assignment import FLOAT, Assignment
from pipeline.graph.quantization.qdq.value_encodings import ValueEncodings

_POOLS = ("AveragePool", "MaxPool", "Resize")
"""Operators that move data, and whose input HTP does not give another encoding."""


@dataclass(frozen=True)
class HeldClamps:
    """The values that were put in, each with the value whose range it has, and rules about their nodes."""

    made: Mapping[str, str]
    rules: tuple[Rule, ...]

    def with_ranges(self, ranges: Ranges) -> Ranges:
        """Ranges that hold the new values, too."""
        measured, chosen = dict(ranges), {bits: dict(each) for bits, each in ranges.chosen.items()}
        for spans in (measured, *chosen.values()):
            spans |= {name: spans[source] for name, source in self.made.items() if source in spans}
        return Ranges(measured, chosen)


def hold_clamps(index: GraphIndex, assignment: Assignment, values: ValueEncodings) -> HeldClamps | None:
    """Write out the clamps that HTP would lose; the index is stale then. None where nothing was done.

    Before and after, for bounds of -0.3 and 1.1::

        Concat(Clip(x), other)        Concat(Min(Clip(x), 1.1), other)        where the encoding of the Concat is wider
        Pad(Clip(x), value=5)         Pad(Min(Max(x, -0.3), 1.1), value=5)    where that of the Clip itself is

    HTP (2.51, emulated, 8 and 16 bits) leaves a Clip to the encoding of its result, whether :func:`drop_clamps` took it
    out or not, and lets the operator in front of a Concat or another clamp, and of views in front of it, give its
    result in the encoding of that. So a clamp is lost behind a Conv, ConvTranspose, Add, Sub, BatchNormalization or
    AveragePool: 0 to 17 dB in place of 75 to 80; of a Clip from 0 where the Concat is 0 and more, and not where it
    reaches below 0. A Relu ends above at the largest number that was seen, and loses nothing. A Min or Max is never
    left out.
    """
    added, made, rules = Additions(index), dict[str, str](), list[Rule]()
    clamped = set[str]()
    found: dict[tuple[str, str], list[NodeProto]] = {}
    for node in index.model.graph.node:
        if not (node.output and is_float(index, node.output[0])):
            continue
        if is_op(node, "Clip") and _is_overrun(index, assignment, values, node):
            first = len(added.nodes)
            made |= _write_out(added, node)
            names = tuple(each.name for each in added.nodes[first:])
            rules.append(Rule(nodes=names, activations=assignment.computes_in(node)))
        elif is_op(node, "Clip", "Concat", "Relu"):
            inputs = clamped.intersection(node.input)
            for name in sorted(inputs):
                if _is_widened(assignment, values, name, node):
                    found.setdefault((name, assignment.stored_in(name)), []).append(node)
            clamped.update(node.output if inputs or is_op(node, "Clip") else ())
        elif moves_data(index, node) and not is_op(node, *_POOLS) and node.input[0] in clamped:
            clamped.update(node.output)
    for (name, kind), readers in found.items():
        covers = values.encoding(name, kind).covers
        operator, end = ("Min", covers.high) if covers.high >= -covers.low else ("Max", covers.low)
        held = added.op(operator, name, added.number(f"{name}_end", end), out=f"{name}_held")
        made[held] = name
        rules.append(Rule(nodes=(held,), activations=kind))
        for reader in readers:
            for position, given in enumerate(reader.input):
                if given == name:
                    reader.input[position] = held
    added.join()
    return HeldClamps(made, tuple(rules)) if rules else None


def _is_overrun(index: GraphIndex, assignment: Assignment, values: ValueEncodings, clip: NodeProto) -> bool:
    """Whether a Clip through zero computes in integers whose encoding reaches beyond one of its constant bounds.

    Bounds beyond zero were taken out of it before (`split_clips`).
    """
    kind, bounds = assignment.computes_in(clip), [name for name in clip.input[1:] if name]
    if kind == FLOAT or not bounds or any(name not in index.initializers for name in bounds):
        return False
    low, high = ((index.scalar(name) or 0.0) if name else 0.0 for name in [*clip.input[1:], ""][:2])
    through_zero = low <= 0 <= high and assignment.stored_in(clip.output[0]) == kind
    return through_zero and not _ends_there(index, values, clip, kind)


def _write_out(added: Additions, clip: NodeProto) -> dict[str, str]:
    """Write a Clip as a Max and a Min. Returns the value that this puts in, and the one whose range it has."""
    given, result = str(clip.input[0]), str(clip.output[0])
    steps = [(op, str(bound)) for op, bound in zip(("Max", "Min"), clip.input[1:], strict=False) if bound]
    made = {}
    for operator, bound in steps[:-1]:
        above = added.op(operator, given, bound, out=f"{result}_above")
        made[above], given = given, above
    operator, bound = steps[-1]
    added.replace(operator, given, bound, out=result)
    return made


def _is_widened(assignment: Assignment, values: ValueEncodings, name: str, reader: NodeProto) -> bool:
    """Whether the encoding of what a node makes of a value reaches further than that of the value."""
    kinds = assignment.stored_in(name), assignment.stored_in(reader.output[0])
    if FLOAT in (*kinds, assignment.computes_in(reader)):
        return False
    own = values.encoding(name, kinds[0])
    made = values.encoding(reader.output[0], kinds[1]).covers
    return made.low < own.covers.low - own.scale or made.high > own.covers.high + own.scale


def drop_clamps(index: GraphIndex, assignment: Assignment, values: ValueEncodings) -> int:
    """Drop every Relu and Clip that reads what nobody else does; returns how many. The index is stale then.

    The maker of what it reads then makes its result, whose encoding ends where the clamp would::

        Conv -> x -> Relu -> y        becomes        Conv -> y

    A clamp stays whose encoding ends elsewhere: every encoding holds zero, and some reach further than what was
    measured, as for what a Pad puts beside the values. So does one behind an operator of :data:`WRAPPING`, one behind a
    sum or quotient that HTP leaves out, and one behind a Clip, whose encoding would go.
    """
    graph = index.model.graph
    dropped = [number for number, node in enumerate(graph.node) if _is_free(index, assignment, values, node)]
    for number in dropped:
        clamp = graph.node[number]
        maker = index.makers[clamp.input[0]]
        for position, name in enumerate(maker.output):
            if name == clamp.input[0]:
                maker.output[position] = clamp.output[0]
        index.makers[clamp.output[0]] = maker  # for a clamp behind this one
    for number in reversed(dropped):
        del graph.node[number]
    return len(dropped)


def _is_free(index: GraphIndex, assignment: Assignment, values: ValueEncodings, node: NodeProto) -> bool:
    if not is_op(node, "Relu", "Clip") or any(name and name not in index.initializers for name in node.input[1:]):
        return False
    given = node.input[0]
    maker = index.makers.get(given)
    if maker is None or index.sole_reader(given, node.op_type) is None:
        return False
    if moves_data(index, maker) or is_op(maker, "Softmax", *FIXED_16_BIT, *ONE_ENCODING):
        return False  # these have encodings of their own
    if is_op(maker, "Clip", *WRAPPING) or _is_left_out(index, maker):
        return False
    if assignment.ruled(given) is not None:
        return False
    kind = assignment.computes_in(node)
    return assignment.computes_in(maker) == kind != FLOAT and _ends_there(index, values, node, kind)


def _is_left_out(index: GraphIndex, node: NodeProto) -> bool:
    """Whether HTP takes what a node reads for its result, whose integers are then those of another encoding."""
    constants = [index.constant(name) for name in node.input if name in index.initializers]
    if is_op(node, "Add", "Sub"):
        return any(constant is not None and np.abs(constant).max(initial=0) < MIN_WIDTH for constant in constants)
    return is_op(node, "Mul", "Div") and any(constant is not None and (constant == 1).all() for constant in constants)


def _ends_there(index: GraphIndex, values: ValueEncodings, node: NodeProto, kind: str) -> bool:
    """Whether the encoding of a clamp's result ends at its bounds: no further than ranges are rounded."""
    if is_op(node, "Clip") and values.is_exact(node.output[0]):
        return False
    given = [index.scalar(name) if name else None for name in node.input[1:]] if is_op(node, "Clip") else [0.0]
    low, high = (*given, None, None)[:2]
    encoding = values.encoding(node.output[0], kind)
    covers = encoding.covers
    room = max(encoding.scale / 2, max(-covers.low, covers.high) * 2 ** (1 - ROUNDED_BITS))
    ends_low = low is None or low - room <= covers.low <= 0 >= low
    return ends_low and (high is None or high + room >= covers.high >= 0 <= high)
