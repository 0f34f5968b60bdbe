"""Whether the rules of a scheme can be followed on a graph: before anything is encoded."""

from __future__ import annotations

from collections.abc import Iterable

from onnx import NodeProto

from pipeline.contracts.scheme import FP16, Rule, Scheme
from pipeline.errors import QuantizationError
from pipeline.graph.ir.index import GraphIndex, is_float
from pipeline.graph.ir.traverse import label
from pipeline.graph.quantization.operand_rules import Role, operands
from pipeline.graph.quantization.qdq.assignment import Assignment
from pipeline.graph.quantization.weights.weight_layout import why_no_blocks
from pipeline.plain_text import did_you_mean

_WEIGHTY = "MatMul, Gemm, Conv and ConvTranspose"


def check_rules(index: GraphIndex, scheme: Scheme) -> None:
    """Refuse a rule that names nothing in the graph, says nothing, or says what can't be.

    Raises:
        QuantizationError: with the rule by its number and places.
    """
    if not scheme.overrides:
        return
    assignment, known = Assignment(index, scheme), _RuledValues(index)
    for number, rule in enumerate(scheme.overrides, 1):
        where = f"rule {number} of 'overrides', {rule.kind}: {', '.join(rule.places)}"
        _check_form(rule, where)
        if rule.kind == "tensors":
            _check_tensors(known, rule, where)
        else:
            _check_nodes(index, rule, where)
        if rule.block is not None:
            _check_block(index, assignment, rule, rule.block, where)


def _check_form(rule: Rule, where: str) -> None:
    if sum(bool(places) for places in (rule.ops, rule.nodes, rule.tensors)) != 1:
        raise QuantizationError(
            "a rule has to name its places in one way",
            where=where,
            why="operators, nodes and values are three ways to name them, and a rule takes one",
            remedy="give either 'ops', 'nodes' or 'tensors'; make two rules of one that needs both",
        )
    settings = {"activations": rule.activations, "weights": rule.weights, "per_channel": rule.per_channel}
    said = [key for key, value in settings.items() if value is not None]
    if rule.precision == FP16 and said:
        raise QuantizationError(
            f"a rule says precision: fp16 and {said[0]} at once",
            where=where,
            why="what stays in float has no integer types",
            remedy=f"drop '{said[0]}', or 'precision'",
        )
    if rule.precision == FP16 and rule.tensors:
        raise QuantizationError(
            "a value alone can't be fp16",
            where=where,
            why="it is nodes that compute in float16; a value between two quantized nodes is an integer",
            remedy="name the nodes that make and read it under 'nodes'",
        )
    if rule.precision is None and not said:
        raise QuantizationError(
            "a rule changes nothing",
            where=where,
            remedy="give it 'activations', 'weights', 'per_channel' or 'precision'",
        )


def _check_nodes(index: GraphIndex, rule: Rule, where: str) -> None:
    nodes = [node for node in index.model.graph.node if rule.matches_node(node.op_type, node.name)]
    if not nodes:
        known = (node.op_type if rule.ops else node.name for node in index.model.graph.node)
        raise _matches_nothing("operator" if rule.ops else "node", rule, where, known)
    if rule.activations is None and rule.precision is None and not any(_weights(index, node) for node in nodes):
        raise _no_weight(where)


class _RuledValues:
    """What rules about values may name, found once for hundreds of them."""

    def __init__(self, index: GraphIndex) -> None:
        self.values = dict.fromkeys(name for name in (*index.types, *index.initializers) if is_float(index, name))
        self.weights = {name for node in index.model.graph.node for name in _weights(index, node)}

    def named(self, rule: Rule) -> list[str]:
        """The values that a rule names."""
        if any(set(place) & {"*", "?"} for place in rule.tensors):
            return [name for name in self.values if rule.matches_tensor(name)]
        return [name for name in rule.tensors if name in self.values]


def _check_tensors(known: _RuledValues, rule: Rule, where: str) -> None:
    names, weights = known.named(rule), known.weights
    if not names:
        raise _matches_nothing("value", rule, where, known.values)
    if (rule.weights is not None or rule.per_channel is not None) and not weights.intersection(names):
        raise _no_weight(where)
    if rule.activations is not None and weights.issuperset(names):
        raise QuantizationError(
            "a rule gives weights a type of activations",
            where=where,
            why=f"{names[0]!r} is a constant that {_WEIGHTY} multiply with",
            remedy="say 'weights' in place of 'activations'",
        )


def _check_block(index: GraphIndex, assignment: Assignment, rule: Rule, block: int, where: str) -> None:
    """Refuse blocks where not one of the places can have them; those that can't have a scale for each channel."""
    reasons = []
    for node in index.model.graph.node:
        for name in _weights(index, node):
            if rule.matches_node(node.op_type, node.name) or rule.matches_tensor(name):
                if assignment.packed(node) is not None:
                    return
                kind = assignment.computes_in(node)
                narrow = f"it computes in {kind}, and QNN's kernel for blocks takes 16 bits alone"
                why = why_no_blocks(index, node, block) or (narrow if kind == "uint8" else None)
                if why is None:
                    return
                reasons.append(f"node {label(node)}: {why}")
    raise QuantizationError(
        f"a rule asks for weights in blocks of {block} where none can have them",
        where=where,
        why=reasons[0] + (f"; and {len(reasons) - 1} more nodes" if len(reasons) > 1 else ""),
        remedy="say weights: int8 or int4 without 'block', which gives each output channel a scale",
    )


def _weights(index: GraphIndex, node: NodeProto) -> list[str]:
    """The constants of a node that have the scheme's weight type, tables included, which may be given one."""
    return [
        operand.name
        for operand in operands(index, node)
        if operand.role in (Role.WEIGHT, Role.TABLE) and is_float(index, operand.name)
    ]


def _matches_nothing(kind: str, rule: Rule, where: str, known: Iterable[str]) -> QuantizationError:
    names = sorted(set(known))
    asked = " or ".join(map(repr, rule.places))
    shown = f"it has {', '.join(names[:12])}{' and more' if len(names) > 12 else ''}"
    return QuantizationError(
        f"no {kind} of the component is named {asked}{did_you_mean(rule.places[0], names)}",
        where=where,
        why=f"a rule that matches nothing would go unnoticed; after the rewrites {shown}",
        remedy="correct the name, or take the rule out; one that is meant for another component goes under that"
        " component's 'quantization'",
    )


def _no_weight(where: str) -> QuantizationError:
    return QuantizationError(
        "a rule is about weights where there are none",
        where=where,
        why=f"weights are the constants of {_WEIGHTY}, and the tables of Gather",
        remedy="name nodes that have some, or say 'activations'",
    )
