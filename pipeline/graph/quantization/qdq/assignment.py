"""Which type each node computes in and each value and constant is stored in, by a scheme and its rules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from onnx import NodeProto

from pipeline.contracts.scheme import FP16, Rule, Scheme, bits
from pipeline.graph.ir.index import GraphIndex, is_float, is_op
from pipeline.graph.quantization.bounds.embedding_indices import cast_as_given
from pipeline.graph.quantization.operand_rules import TABLES, Operand, Role, channel_groups, moves_data, operands
from pipeline.graph.quantization.qdq.packed_tables import why_not_packed
from pipeline.graph.quantization.weights.weight_layout import takes_sixteen_bits, why_no_blocks
from pipeline.graph.quantization.weights.weight_rounding import Recipe

FLOAT = "float"
"""The type of a node that stays in float."""

_EIGHT_BITS, _SIXTEEN_BITS = "uint8", "uint16"
_TAKE_FOUR_BITS = ("Conv", "ConvTranspose", "Gemm", "MatMul")


@dataclass(frozen=True)
class Stored:
    """How a constant is stored: symmetric with a scale per index of `axis` or one scale, or as activations are.

    Readers that need it alike share one copy.
    """

    kind: str
    symmetric: bool = False
    axis: int | None = None
    block: int | None = None
    """How many inputs share a scale along with `axis`; None for all of them."""


class RulesByName:
    """Finds the rules about a node or a value, the later ones, which win, first.

    Most rules name one value, hundreds of them of a language model's cache, and are looked up by it.
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = rules
        self._plain: dict[str, list[int]] = {}
        self._globs: list[int] = []
        for number, rule in enumerate(rules):
            if any(set(place) & {"*", "?"} for place in rule.places):
                self._globs.append(number)
            else:
                for place in rule.places:
                    self._plain.setdefault(place, []).append(number)

    def of_tensor(self, name: str) -> Iterator[Rule]:
        """The rules that name a value."""
        return (rule for rule in self._among(name) if rule.matches_tensor(name))

    def of_node(self, node: NodeProto, *constants: str) -> Iterator[Rule]:
        """The rules that name a node or its operator, or one of these constants that it reads."""
        for rule in self._among(node.op_type, node.name, *constants):
            if rule.matches_node(node.op_type, node.name) or any(map(rule.matches_tensor, constants)):
                yield rule

    def _among(self, *names: str) -> Iterator[Rule]:
        if not self._rules:
            return iter(())
        found = {number for name in names for number in self._plain.get(name, ())}
        return (self._rules[number] for number in sorted({*found, *self._globs}, reverse=True))


class Assignment:
    """A scheme applied to one graph whose nodes are in topological order.

    A node computes in the type that the last rule about it says, or the scheme. One that only moves data and that no
    rule is about keeps the type of what it moves.
    """

    def __init__(self, index: GraphIndex, scheme: Scheme) -> None:
        """Rules that name nothing in the graph have no effect; see
        :mod:`pipeline.graph.quantization.qdq.rule_checks`.
        """
        self._index = index
        self._scheme = scheme
        self._rules = RulesByName(scheme.overrides)
        self._stored: dict[str, str] = {}
        self._computes: dict[str, str] = {}
        self._cast_as_given = cast_as_given(index)
        for value in index.model.graph.input:
            if is_float(index, value.name):
                self._stored[value.name] = self.ruled(value.name) or self._of_input(value.name)
        for node in index.model.graph.node:
            kind = self._computes[_key(node)] = self._of_node(node)
            for name in node.output:
                if name and is_float(index, name):
                    self._stored[name] = self.ruled(name) or kind

    @property
    def wide_products(self) -> bool:
        """Whether 16 bit activations may be multiplied with each other at full width."""
        return self._scheme.wide_products

    def recipe(self, kind: str) -> Recipe:
        """How weights become integers of a type."""
        return Recipe(kind, self._scheme.clip, self._scheme.rounding if bits(kind) < 16 else "nearest")

    def computes_in(self, node: NodeProto) -> str:
        """The type of a node's float inputs and outputs, :data:`FLOAT` if it is not quantized."""
        return self._computes[_key(node)]

    def packed(self, node: NodeProto) -> int | None:
        """How many neighbours in a row share a scale in the table of a quantized node whose table has 4 bits; None for
        any other node.
        """
        return None if self.computes_in(node) == FLOAT else self._packed(node)

    def stored_in(self, value: str) -> str:
        """The type that a float value which is no constant is stored in; :data:`FLOAT` if it has no encoding."""
        return self._stored[value]

    def ruled(self, value: str) -> str | None:
        """The type that rules give a value alone."""
        rules = self._rules.of_tensor(value)
        return next((rule.activations for rule in rules if rule.activations is not None), None)

    def constant(self, node: NodeProto, operand: Operand) -> Stored:
        """How a constant other than a bias is stored for a quantized node that reads it."""
        if operand.role is Role.SCALE:
            return Stored(_EIGHT_BITS)
        if operand.role is Role.TABLE:
            return Stored(self._table_type(node, operand))
        if operand.role is Role.OPERAND:
            return Stored(self.ruled(operand.name) or self.computes_in(node))
        kind, block = self._asked_weights(node, operand.name) or (self._scheme.weights, self._scheme.block)
        if bits(kind) == 4 and not (is_op(node, *_TAKE_FOUR_BITS) and (operand.position or is_op(node, "Gemm"))):
            kind, block = _EIGHT_BITS, None
        if bits(kind) == 16 and not takes_sixteen_bits(self._index, node):
            kind = _EIGHT_BITS
        wide = bits(self.computes_in(node)) == 16
        if block is not None and wide and why_no_blocks(self._index, node, block) is None:
            return Stored(kind, symmetric=True, axis=operand.axis, block=block)
        if operand.axis is not None and self._per_channel(node, operand.name):
            return Stored(kind, symmetric=True, axis=operand.axis)
        return Stored(kind, symmetric=not kind.startswith("u") or channel_groups(node) > 1)

    def _of_node(self, node: NodeProto) -> str:
        asked = self._asked_type(node)
        for operand in operands(self._index, node) if is_op(node, *TABLES) and asked != FLOAT else ():
            if operand.role is Role.TABLE and is_float(self._index, operand.name):
                return self._table_type(node, operand)
        if asked is None and moves_data(self._index, node):
            return self._stored.get(node.input[0], self._scheme.activations)
        if asked is None and is_op(node, "Cast") and node.output[0] in self._cast_as_given:
            return FLOAT
        return asked or self._scheme.activations

    def _of_input(self, value: str) -> str:
        """The widest type of those who read an input of the model; movers that no rule is about take what comes.

        An input that is cast to integers as it is has no encoding, whoever else reads it.
        """
        if value in self._cast_as_given:
            return FLOAT
        readers = self._index.readers.get(value, [])
        asked = [(self._asked_type(node), moves_data(self._index, node)) for node in readers]
        kinds = {kind or self._scheme.activations for kind, moves in asked if kind is not None or not moves}
        if kinds == {FLOAT}:
            return FLOAT
        return max(kinds - {FLOAT}, key=bits, default=self._scheme.activations)

    def _asked_type(self, node: NodeProto) -> str | None:
        for rule in self._rules.of_node(node):
            if rule.precision == FP16:
                return FLOAT
            if rule.activations is not None:
                return rule.activations
        return None

    def _table_type(self, node: NodeProto, operand: Operand) -> str:
        """As wide as a rule wants weights to be, 8 bits in place of 4; else that of the reader, 8 bits where weights
        have 4. Its result has the same encoding, so it is of a type that activations have: 16 bits of 4 in blocks.
        """
        asked = self._asked_weights(node, operand.name)
        if self._packed(node) is not None:
            return _SIXTEEN_BITS
        if asked is not None:
            return _SIXTEEN_BITS if bits(asked[0]) == 16 else _EIGHT_BITS
        if bits(self._scheme.weights) == 4:
            return _EIGHT_BITS
        return self.ruled(operand.name) or self._asked_type(node) or self._scheme.activations

    def _packed(self, node: NodeProto) -> int | None:
        kind, block = self._asked_weights(node, node.input[0]) or ("", None) if node.input else ("", None)
        wanted = block is not None and bits(kind) == 4
        return block if wanted and why_not_packed(self._index, node, block or 0) is None else None

    def _asked_weights(self, node: NodeProto, constant: str) -> tuple[str, int | None] | None:
        asked = ((rule.weights, rule.block) for rule in self._about(node, constant) if rule.weights is not None)
        return next(asked, None)

    def _per_channel(self, node: NodeProto, constant: str) -> bool:
        asked = (rule.per_channel for rule in self._about(node, constant) if rule.per_channel is not None)
        return next(asked, self._scheme.per_channel)

    def _about(self, node: NodeProto, constant: str) -> Iterator[Rule]:
        """Rules about a constant of a node, the winning ones first."""
        return self._rules.of_node(node, constant)


def _key(node: NodeProto) -> str:
    """What tells nodes of one graph apart: no two make the same value."""
    return next((str(name) for name in node.output if name), str(node.name))
