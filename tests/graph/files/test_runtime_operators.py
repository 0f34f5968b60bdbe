"""Norms that onnxruntime writes into ONNX's own domain at any opset are taken."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipeline.graph.files.model_file import MODEL, load_graph
from tests.support.sources import ingested, model, numbers, outputs


@pytest.mark.parametrize("opset", [11, 14, 17])
@pytest.mark.parametrize("kind", ["LayerNormalization", "SimplifiedLayerNormalization"])
def test_norms_of_the_runtime_are_taken(kind: str, opset: int, tmp_path: Path) -> None:
    source = model(
        f"g (float[1,n,6] x) => (float[1,n,6] y) {{ a = {kind} <axis = -1, epsilon = 0.01> (x, s) y = Relu (a) }}",
        {"s": numbers(6)},
        opset=opset,
    )
    feeds = {"x": numbers(1, 3, 6)}
    wanted = outputs(source, feeds)[0]
    made = ingested(tmp_path, source).folder / MODEL
    nodes = load_graph(made).graph.node
    assert [(node.domain, node.op_type) for node in nodes] == [("", kind), ("", "Relu")]
    np.testing.assert_array_equal(outputs(made, feeds)[0], wanted)
