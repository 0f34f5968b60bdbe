"""Llama 1 to 3, SmolLM2, Mistral: the plain decoder (https://arxiv.org/abs/2307.09288)."""

from __future__ import annotations

from pipeline.graph.language.builder import GraphBuilder
from pipeline.graph.language.decoder import Variant, build_decoder

NAMES = ("llama", "mistral")


def build(builder: GraphBuilder) -> None:
    """Put the graph into the builder; ModelError as :func:`pipeline.graph.language.decoder.build_decoder`."""
    build_decoder(builder, Variant())
