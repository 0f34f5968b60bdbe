"""Gemma 3, its text model: norms behind each part and in each head, two rotations, scaled embeddings.

https://arxiv.org/abs/2503.19786. Five of six layers see a window of the text and have a rotation of their own; contexts
beyond the window are refused, so that one mask serves all layers. Norm weights are those of GGUF: 1 is in them.
"""

from __future__ import annotations

import math

from pipeline.graph.language.builder import GraphBuilder
from pipeline.graph.language.decoder import Variant, build_decoder

NAMES = ("gemma3", "gemma3_text")
_SHRUNK = 16.0
"""The residual stream of Gemma 3 270M reaches 104,000 (layer 14), and float16 ends at 65,504."""


def build(builder: GraphBuilder) -> None:
    """Put the graph into the builder; ModelError as :func:`pipeline.graph.language.decoder.build_decoder`."""
    scale = math.sqrt(builder.hyper.hidden)
    variant = Variant(head_norms=True, output_norms=True, gelu=True, embedding_scale=scale, shrunk=_SHRUNK)
    build_decoder(builder, variant)
