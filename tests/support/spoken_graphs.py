"""Graphs of a tiny language model as a context binary declares them, and the folder that engines open, without QNN."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pipeline.contracts import bundle
from pipeline.contracts.language import LanguageFacts, Rotation
from pipeline.contracts.target import HtpTarget
from pipeline.graph.language.hyper import frequencies
from pipeline.graph.language.names import TEMPLATE, TOKENIZER
from pipeline.inputs.bundle_files import write_bundle
from pipeline.inputs.gguf.file import read_gguf
from pipeline.inputs.gguf.tokenizer import tokenizer_json
from pipeline.qnn.engines.graphs import SpokenGraph
from pipeline.qnn.format.context_binary import GraphInfo
from pipeline.qnn.format.graph_io import BinaryEncoding, EdgeTensor
from tests.support.gguf_files import TEMPLATE as TEMPLATE_TEXT
from tests.support.gguf_files import tiny_gguf

LAYERS, KV, SIZE, VOCABULARY, TOTAL, WINDOW = 2, 2, 16, 288, 32, 8
TARGET = HtpTarget(60, 73)
_UINT8, _UINT16, _INT32 = 0x0408, 0x0416, 0x0032
MASK, TURN, CACHE = BinaryEncoding(50 / 65535, 65535), BinaryEncoding(2 / 65535, 32768), BinaryEncoding(0.02, 128)


def tiny_facts(theta: float = 10000.0) -> LanguageFacts:
    """Of the model that tests/support/gguf_files.py writes."""
    return LanguageFacts(
        architecture="llama",
        layers=LAYERS,
        hidden=64,
        heads=4,
        kv_heads=KV,
        head_dim=SIZE,
        vocabulary=VOCABULARY,
        context=2048,
        rotations={"": Rotation(theta, frequencies(theta, SIZE))},
        stops=(263, 265),
        pad=263,
    )


def spoken_graph(sequence: int, *, binary: str = "model_ctx_qnn.bin", rows: int | None = None) -> SpokenGraph:
    """A graph of `sequence` tokens; `rows` of logits if not all."""
    past = TOTAL - sequence
    inputs = [
        EdgeTensor("input_ids", 1, _INT32, (1, sequence), None),
        EdgeTensor("attention_mask", 2, _UINT16, (1, 1, sequence, TOTAL), MASK),
        *(EdgeTensor(f"position_ids_{part}", 3, _UINT16, (1, 1, sequence, SIZE // 2), TURN) for part in ("cos", "sin")),
    ]
    outputs = [EdgeTensor("logits", 4, _UINT16, (1, rows or sequence, VOCABULARY), BinaryEncoding(0.001, 30000))]
    for layer in range(LAYERS):
        for kind, before, made in (
            ("key", (KV, 1, SIZE, past), (KV, 1, SIZE, sequence)),
            ("value", (KV, 1, past, SIZE), (KV, 1, sequence, SIZE)),
        ):
            inputs.append(EdgeTensor(f"past_{kind}_{layer}_in", 5, _UINT8, before, CACHE))
            outputs.append(EdgeTensor(f"past_{kind}_{layer}_out", 6, _UINT8, made, CACHE))
    name = f"model_{sequence}x{past}"
    info = GraphInfo(name, 4, 3, 0, tuple(inputs), tuple(outputs))
    return SpokenGraph(f"{name}_ctx.onnx", (binary,), TARGET.soc_model, TARGET.htp_arch, info)


def spoken_graphs() -> tuple[SpokenGraph, ...]:
    """Decode and prefill in one binary."""
    return spoken_graph(1), spoken_graph(WINDOW)


def spoken_source(folder: Path) -> Path:
    """What ingest leaves of the tiny model beside its graph."""
    folder.mkdir(parents=True, exist_ok=True)
    tiny_gguf(folder / "tiny.gguf")
    (folder / TOKENIZER).write_text(tokenizer_json(read_gguf(folder / "tiny.gguf")), "utf-8")
    (folder / TEMPLATE).write_text(TEMPLATE_TEXT, "utf-8")
    return folder


def bundle_folder(tmp_path: Path) -> tuple[Path, bundle.Facts]:
    """The folder that engines open, as `bundle` writes it, and its facts."""
    out = tmp_path / "bundle"
    out.mkdir()
    return out, write_bundle(spoken_source(tmp_path / "source"), tiny_facts(), spoken_graphs(), TARGET, out)


def causal(sequence: int, known: int) -> np.ndarray:
    """What each of `sequence` tokens after `known` others sees of the last TOTAL positions, bool [sequence, TOTAL]."""
    places = np.arange(TOTAL)[None, :]
    last = np.arange(TOTAL - sequence, TOTAL)[:, None]
    return np.asarray((places <= last) & (places >= TOTAL - sequence - known))
