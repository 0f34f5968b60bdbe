"""Phi 3: the plain decoder, whose queries, keys and values are one matrix, and gate and product (arXiv 2404.14219)."""

from __future__ import annotations

from pipeline.graph.language.builder import GraphBuilder
from pipeline.graph.language.decoder import Variant, build_decoder
from pipeline.graph.language.joined_weights import JoinedWeights

NAMES = ("phi3",)


def build(builder: GraphBuilder) -> None:
    """Put the graph into the builder; ModelError as :func:`pipeline.graph.language.decoder.build_decoder`."""
    builder.weights = JoinedWeights(builder.weights, builder.hyper)
    build_decoder(builder, Variant())
