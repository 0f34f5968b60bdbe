"""Attention of ONNX is written out, and computes the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto

from pipeline.errors import ModelError
from pipeline.graph.files.model_file import MODEL, load_graph
from tests.support.graphs import operators
from tests.support.sources import model, numbers, outputs, shaped

HEAD = "g (float[b,4,n,8] x) => (float[b,4,n,8] y)"
FLAT = "g (float[b,n,32] x) => (float[b,n,32] y)"
TABLE: dict[str, NDArray[np.generic]] = {
    "shown": np.tril(np.ones((5, 5), bool)), "bias": numbers(1, 1, 5, 5), "k": numbers(2, 2, 5, 8),
    "past": numbers(2, 4, 3, 8), "places": np.array([[0, 1, 2, 3, 4]] * 2),
    "cosines": np.cos(np.arange(9)[:, None] * np.array([1, 0.3, 0.1])).astype(np.float32),
    "sines": np.sin(np.arange(9)[:, None] * np.array([1, 0.3, 0.1])).astype(np.float32),
}  # fmt: skip
FORMS = {
    "plain": f"{HEAD} {{ y = Attention (x, x, x) }}",
    "a boolean mask": f"{HEAD} {{ y = Attention <scale = 0.2> (x, x, x, shown) }}",
    "a mask that is added, a cap": f"{HEAD} {{ y = Attention <softcap = 2.0> (x, x, x, bias) }}",
    "causal": f"{HEAD} {{ y = Attention <is_causal = 1> (x, x, x) }}",
    "heads in the last axis": f"{FLAT} {{ y = Attention <q_num_heads = 4, kv_num_heads = 4> (x, x, x) }}",
    "fewer keys than queries": f"{HEAD} {{ y = Attention (x, k, k) }}",
    "a past": """g (float[b,4,n,8] x) => (float[b,4,n,8] y, float[b,4,m,8] p, float[b,4,m,8] q) {
        y, p, q = Attention (x, x, x, , past, past) }""",
    "rotary": f"{HEAD} {{ y = RotaryEmbedding <rotary_embedding_dim = 6> (x, cosines, sines, places) }}",
    "rotary, heads in the last axis": f"""{FLAT} {{
        y = RotaryEmbedding <rotary_embedding_dim = 6, num_heads = 4> (x, cosines, sines, places) }}""",
}


def built(text: str) -> ModelProto:
    words = set(text.replace("(", " ").replace(")", " ").replace(",", " ").split())
    source = model(text, {name: array for name, array in TABLE.items() if name in words}, opset=23)
    source.ir_version = 11
    return source


@pytest.mark.parametrize("form", FORMS)
def test_attention_is_written_out(form: str, tmp_path: Path) -> None:
    source = built(FORMS[form])
    feeds = {"x": numbers(2, 5, 32) if FORMS[form].startswith(FLAT) else numbers(2, 4, 5, 8)}

    static = shaped(tmp_path, source, b=2, n=5).folder / MODEL

    assert not {"Attention", "RotaryEmbedding"} & set(operators(load_graph(static)))
    wanted, made = outputs(source, feeds), outputs(static, feeds)
    for one, other in zip(made, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_scores_that_are_read_are_refused(tmp_path: Path) -> None:
    text = "g (float[b,4,n,8] x) => (float[b,4,n,8] y, float[b,4,n,n] s) { y, , , s = Attention (x, x, x) }"
    with pytest.raises(ModelError, match="can't be written out"):
        shaped(tmp_path, built(text), b=2, n=5)
