"""What the graph that is built of a language model computes, whatever its weights came in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.contracts.language import LanguageFacts, Lengths
from pipeline.graph.cpu import load_session, run
from pipeline.graph.files.blob_writer import BlobWriter
from pipeline.graph.language.architectures import BUILDERS
from pipeline.graph.language.builder import GraphBuilder
from pipeline.graph.language.loop import Walk
from pipeline.inputs.language_source import LanguageSource

TOKENS = [5, 70, 33, 33, 250, 101, 7, 64, 12, 90, 3]


def logits(source: LanguageSource, folder: Path) -> NDArray[np.float32]:
    """Of :data:`TOKENS`, four at a time, [tokens, vocabulary]; `folder` holds the weights."""
    hyper = source.hyper
    with BlobWriter(folder / "converted.bin") as blob:
        builder = GraphBuilder(hyper, source.weights, blob)
        BUILDERS[hyper.architecture](builder)
        (folder / "model.onnx").write_bytes(builder.model("tiny"))
    session = load_session(folder / "model.onnx")
    facts = LanguageFacts(
        hyper.architecture, hyper.layers, hyper.hidden, hyper.heads, hyper.kv_heads, hyper.head_dim, hyper.vocabulary,
        hyper.context, hyper.rotations,
    )  # fmt: skip
    lengths = Lengths(4, 12)
    return np.concatenate(list(Walk(facts, lengths.past).run(lambda feed: run(session, feed), lengths, TOKENS)))
