"""Massive activations: products of a few layers that one token drives to hundreds of times what others have.

In trained language models the first token drives some layer's gated product, and what the residual stream gets of it,
to thousands (https://arxiv.org/abs/2402.17762; SmolLM2-135M: 24,896 in layer 11, where other layers have 45). A grid of
16 bits that holds it has steps of 0.5, in which all other tokens drown. Such products stay in float16.

SmolLM2-135M at w8a16 with a cache of 8 bits and the residual stream in float16, prefill of 275 unseen tokens on the
CPU: a divergence of 0.0211 nats without this, 0.0125 with it (five layers), 0.0105 with the products of all 30 layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from pipeline.contracts.scheme import FP16, Rule, Scheme
from pipeline.graph.ir.index import GraphIndex, is_op
from pipeline.graph.quantization.calibration.ranges import Range
from pipeline.graph.quantization.weights.block_minima import separated_parts

TIMES = 8.0
"""How many times the median of all layers is massive."""
_PRODUCTS = "/down"


def with_massive(index: GraphIndex, ranges: Mapping[str, Range], scheme: Scheme) -> Scheme:
    """The scheme in which massive products of a language model's graph, and what they multiply, stay in float16."""
    products = [node for node in index.model.graph.node if is_op(node, "MatMul") and node.name.endswith(_PRODUCTS)]
    parts = {node.name: separated_parts(index, node) for node in products}
    sizes = {name: max(_size(ranges[part.output[0]]) for part in own) for name, own in parts.items()}
    if not sizes:
        return scheme
    limit = TIMES * median(sizes.values())
    massive = [node for node in products if sizes[node.name] > limit]
    makers = [index.makers[node.input[0]].name for node in massive if node.input[0] in index.makers]
    names = (*(part.name for node in massive for part in parts[node.name]), *makers)
    return scheme.with_rules([Rule(nodes=(name,), precision=FP16) for name in names])


def _size(span: Range) -> float:
    return max(-span.low, span.high)
