"""The scheme for products by weights of 4 bits that have minima: :mod:`pipeline.graph.rewrites.separate_middles`."""

from __future__ import annotations

from onnx import NodeProto

from pipeline.contracts.scheme import Rule, Scheme
from pipeline.graph.files.stored_form import form_of
from pipeline.graph.ir.index import GraphIndex
from pipeline.graph.language.names import BLOCK_MEANS, JOINED, MEANS, MIDDLES

_WEIGHTS = "int8"
"""Of the means and of the middles, which are a 32nd as many numbers as the weight: 4.2 MB in SmolLM2-135M."""


def separated_parts(index: GraphIndex, node: NodeProto) -> list[NodeProto]:
    """A product and what it was separated into: the product by the steps, the means that no other has, and the sum."""
    own = {f"{node.name}{end}" for end in (MEANS, MIDDLES, JOINED)}
    return [node, *(each for each in index.model.graph.node if each.name in own)]


def is_exact(index: GraphIndex, node: NodeProto) -> bool:
    """Whether integers hold the weight of a product as it is: steps, and the means of blocks."""
    form = form_of(index.initializers[node.input[1]])
    return node.input[1].startswith(BLOCK_MEANS) or (form is not None and form.holds_steps)


def with_middles(index: GraphIndex, scheme: Scheme) -> Scheme:
    """The scheme with 8 bits for the means of blocks and what stands in their middle."""
    ends = [end for end in (MEANS, MIDDLES) if any(node.name.endswith(end) for node in index.model.graph.node)]
    return scheme.with_rules([Rule(nodes=tuple(f"*{end}" for end in ends), weights=_WEIGHTS)] if ends else [])
