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

LAYERS, KV, SIZE, VOCABULARY, TOTAL, WINDOW, HIDDEN = 2, 2, 16, 288, 32, 8, 64
TARGET = HtpTarget(60, 73)
_UINT8, _UINT16, _INT32 = 0x0408, 0x0416, 0x0032
MASK, TURN, CACHE = BinaryEncoding(50 / 65535, 65535), BinaryEncoding(2 / 65535, 32768), BinaryEncoding(0.02, 128)
ROWS = BinaryEncoding(3e-6, 30000)


def tiny_facts(theta: float = 10000.0) -> LanguageFacts:
    """Of the model that tests/support/gguf_files.py writes."""
    return LanguageFacts(
        architecture="llama",
        layers=LAYERS,
        hidden=HIDDEN,
        heads=4,
        kv_heads=KV,
        head_dim=SIZE,
        vocabulary=VOCABULARY,
        context=2048,
        rotations={"": Rotation(theta, frequencies(theta, SIZE))},
        stops=(263, 265),
        pad=263,
    )


def spoken_graph(
    sequence: int, *, binary: str = "model_ctx_qnn.bin", rows: int | None = None, on_host: bool = False
) -> SpokenGraph:
    """A graph of `sequence` tokens; `rows` of logits if not all. `on_host`: it takes rows of a table."""
    past = TOTAL - sequence
    tokens = EdgeTensor("input_ids", 1, _INT32, (1, sequence), None)
    inputs = [
        EdgeTensor("inputs_embeds", 1, _UINT16, (1, sequence, HIDDEN), ROWS) if on_host else tokens,
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


def spoken_graphs(*, on_host: bool = False) -> tuple[SpokenGraph, ...]:
    """Decode and prefill in one binary."""
    return spoken_graph(1, on_host=on_host), spoken_graph(WINDOW, on_host=on_host)


def write_rows(path: Path) -> Path:
    """A table of embeddings for graphs that take its rows: row r, column c is 64 r + c, until 16 bits are full."""
    np.arange(VOCABULARY * HIDDEN).astype("<u2").tofile(path)
    return path


def spoken_source(folder: Path) -> Path:
    """What ingest leaves of the tiny model beside its graph."""
    folder.mkdir(parents=True, exist_ok=True)
    tiny_gguf(folder / "tiny.gguf")
    (folder / TOKENIZER).write_text(tokenizer_json(read_gguf(folder / "tiny.gguf")), "utf-8")
    (folder / TEMPLATE).write_text(TEMPLATE_TEXT, "utf-8")
    return folder


def bundle_folder(tmp_path: Path, *, on_host: bool = False) -> tuple[Path, bundle.Facts]:
    """The folder that engines open, as `bundle` writes it, and its facts."""
    out = tmp_path / "bundle"
    out.mkdir()
    table = write_rows(tmp_path / "rows") if on_host else None
    graphs = spoken_graphs(on_host=on_host)
    return out, write_bundle(spoken_source(tmp_path / "source"), tiny_facts(), graphs, TARGET, out, table)


def causal(sequence: int, known: int) -> np.ndarray:
    """What each of `sequence` tokens after `known` others sees of the last TOTAL positions, bool [sequence, TOTAL]."""
    places = np.arange(TOTAL)[None, :]
    last = np.arange(TOTAL - sequence, TOTAL)[:, None]
    return np.asarray((places <= last) & (places >= TOTAL - sequence - known))
