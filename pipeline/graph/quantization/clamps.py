"""Clamps that an encoding does for free: Relu and Clip behind the node whose result they bound."""

from __future__ import annotations

import numpy as np
from onnx import NodeProto

from pipeline.graph.ir.index import GraphIndex, is_op
from pipeline.graph.quantization.assignment import FLOAT, Assignment
from pipeline.graph.quantization.operand_rules import FIXED_16_BIT, ONE_ENCODING, WRAPPING, moves_data
from pipeline.graph.quantization.ranges import MIN_WIDTH


def drop_clamps(index: GraphIndex, assignment: Assignment, exact: frozenset[str]) -> int:
    """Drop every Relu and Clip that reads what nobody else does; returns how many. The index is stale then.

    The maker of what it reads then makes its result, whose encoding ends where the clamp would::

        Conv -> x -> Relu -> y        becomes        Conv -> y

    A Clip from above zero, or to below it, stays: every encoding holds zero, and would end there. So does a clamp
    behind an operator of :data:`WRAPPING`, and one behind a sum or quotient that HTP leaves out; a Clip to one of the
    `exact` values, whose encodings reach further; and a Clip that another clamp reads, as its encoding would go.
    """
    graph = index.model.graph
    dropped = [number for number, node in enumerate(graph.node) if _is_free(index, assignment, node, exact)]
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


def _is_free(index: GraphIndex, assignment: Assignment, node: NodeProto, exact: frozenset[str]) -> bool:
    if not is_op(node, "Relu", "Clip") or any(name and name not in index.initializers for name in node.input[1:]):
        return False
    if not _holds_zero(index, node):
        return False
    if is_op(node, "Clip") and (
        node.output[0] in exact or index.sole_reader(node.output[0], "Relu", "Clip") is not None
    ):
        return False
    given = node.input[0]
    maker = index.makers.get(given)
    if maker is None or index.sole_reader(given, node.op_type) is None:
        return False
    if moves_data(index, maker) or is_op(maker, "Softmax", *FIXED_16_BIT, *ONE_ENCODING):
        return False  # these have encodings of their own
    if is_op(maker, *WRAPPING) or _is_left_out(index, maker):
        return False
    if assignment.ruled(given) is not None:
        return False
    return assignment.computes_in(maker) == assignment.computes_in(node) != FLOAT


def _is_left_out(index: GraphIndex, node: NodeProto) -> bool:
    """Whether HTP takes what a node reads for its result, whose integers are then those of another encoding."""
    constants = [index.constant(name) for name in node.input if name in index.initializers]
    if is_op(node, "Add", "Sub"):
        return any(constant is not None and np.abs(constant).max(initial=0) < MIN_WIDTH for constant in constants)
    return is_op(node, "Mul", "Div") and any(constant is not None and (constant == 1).all() for constant in constants)


def _holds_zero(index: GraphIndex, node: NodeProto) -> bool:
    bounds = [index.scalar(name) if name else None for name in node.input[1:]]
    low, high = (*bounds, None, None)[:2]
    return (low is None or low <= 0) and (high is None or high >= 0)
