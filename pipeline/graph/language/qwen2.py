"""Qwen 2 and 2.5: the plain decoder with biases for queries, keys and values (https://arxiv.org/abs/2407.10671).

The builder adds a bias wherever the source has one.
"""

from __future__ import annotations

from pipeline.graph.language.builder import GraphBuilder
from pipeline.graph.language.decoder import Variant, build_decoder

NAMES = ("qwen2",)


def build(builder: GraphBuilder) -> None:
    """Put the graph into the builder; ModelError as :func:`pipeline.graph.language.decoder.build_decoder`."""
    build_decoder(builder, Variant())
