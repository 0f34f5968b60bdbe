"""Models that transformers saved compute here what they compute there."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from pipeline.contracts.language import LanguageFacts, Lengths
from pipeline.graph.cpu import load_session, run
from pipeline.graph.files.blob_writer import BlobWriter
from pipeline.graph.language.architectures import BUILDERS
from pipeline.graph.language.builder import GraphBuilder
from pipeline.graph.language.loop import Walk
from pipeline.inputs.safetensors.source import safetensors_source
from tests.support.exported import save_language_models
from tests.support.safetensors_files import tiny_folder

pytestmark = [pytest.mark.export, pytest.mark.slow]

KINDS = ["llama", "llama3", "mistral", "qwen2", "qwen3", "gemma3"]
TOKENS = [5, 70, 33, 33, 250, 101, 7, 64, 12, 90, 3]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("saved")
    save_language_models(KINDS, TOKENS, out)
    tiny_folder(out / "tiny")
    for kind in KINDS:
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(out / "tiny" / name, out / kind)
    return out


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_transformers(kind: str, saved: Path) -> None:
    folder = saved / kind
    source = safetensors_source(folder / "model.safetensors.index.json")
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
    walk = Walk(facts, lengths.past)
    found = np.concatenate(list(walk.run(lambda feed: run(session, feed), lengths, TOKENS)))

    expected = np.load(folder / "logits.npy")
    np.testing.assert_allclose(found, expected, atol=2e-4 * np.abs(expected).max())
