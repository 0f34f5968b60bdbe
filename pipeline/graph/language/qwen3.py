"""Qwen 3: queries and keys are normed head by head before they are turned (https://arxiv.org/abs/2505.09388)."""

from __future__ import annotations

from pipeline.graph.language.builder import GraphBuilder
from pipeline.graph.language.decoder import Variant, build_decoder

NAMES = ("qwen3",)


def build(builder: GraphBuilder) -> None:
    """Put the graph into the builder; ModelError as :func:`pipeline.graph.language.decoder.build_decoder`."""
    build_decoder(builder, Variant(head_norms=True))
