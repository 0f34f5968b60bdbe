"""Nodes that are as ONNX defines their operators: what guesses may look at without asking how many inputs there are.

`doit init` looks into files before a build checks them. A node that lacks an input says nothing then; what is wrong
with it is for the steps of the build to say, which meet it next.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from onnx import ModelProto, NodeProto

from pipeline.graph.ir.inference import Opsets
from pipeline.graph.ir.traverse import all_graphs

_MANY = 1 << 31


@dataclass(frozen=True)
class _Form:
    """How many inputs and outputs an operator has, what its attributes hold, and which it can't do without."""

    inputs: range
    outputs: range
    kinds: Mapping[str, int]
    needed: frozenset[str]

    @classmethod
    def of(cls, node: NodeProto, opsets: Opsets) -> _Form:
        """The form of a node's operator; of one that ONNX doesn't know, any with an input and an output."""
        schema = opsets.schema(node) or opsets.schema(NodeProto(op_type=node.op_type))
        if schema is None:
            return cls(range(1, _MANY), range(1, _MANY), {}, frozenset())
        attributes: Mapping[str, Any] = schema.attributes  # ONNX's stubs don't say that a type is a number
        return cls(
            range(schema.min_input, schema.max_input + 1),
            range(max(schema.min_output, 1), schema.max_output + 1),
            {name: int(attribute.type) for name, attribute in attributes.items()},
            frozenset(name for name, attribute in attributes.items() if attribute.required),
        )

    def fits(self, node: NodeProto) -> bool:
        """Whether a node has it."""
        return (
            len(node.input) in self.inputs
            and len(node.output) in self.outputs
            and all(node.input[place] for place in range(self.inputs.start))
            and self.needed.issubset(attribute.name for attribute in node.attribute)
            and all(self.kinds.get(attribute.name, attribute.type) == attribute.type for attribute in node.attribute)
        )


def drop_malformed(model: ModelProto) -> None:
    """Remove the nodes, those of subgraphs included, with too few or too many inputs or outputs, or without an
    attribute that they need, or with one of another type.

    Operators of other domains than ONNX's are taken for those of its own that have their name.
    """
    opsets, forms = Opsets.of(model), dict[tuple[str, str], _Form]()
    for graph in all_graphs(model.graph):
        for place in reversed(range(len(graph.node))):
            node = graph.node[place]
            kind = node.domain, node.op_type
            if kind not in forms:
                forms[kind] = _Form.of(node, opsets)
            if not forms[kind].fits(node):
                del graph.node[place]
