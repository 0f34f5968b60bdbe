"""Layers that name the activations they have anyway, as tf2onnx and OnnxMLTools write them, lose the names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.graph.files.model_file import MODEL, load_graph
from tests.support.on_htp import on_chip, with_rewrites
from tests.support.sources import ingested, model, numbers, outputs, same

LAYERS = {
    "LSTM": (4, '["Sigmoid", "Tanh", "Tanh"]'),
    "GRU": (3, '["sigmoid", "TANH"]'),
    "RNN": (1, '["Tanh"]'),
}


def layer(kind: str, activations: str, directions: int = 1) -> tuple[str, dict[str, NDArray[np.float32]]]:
    gates = LAYERS[kind][0]
    direction = "bidirectional" if directions == 2 else "forward"
    text = f"""g (float[5,1,4] x) => (float[5,{directions},1,3] y) {{
        y = {kind} <hidden_size = 3, direction = "{direction}", activations = {activations}> (x, w, r) }}"""
    return text, {"w": numbers(directions, 3 * gates, 4), "r": numbers(directions, 3 * gates, 3)}


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("directions", [1, 2])
def test_usual_activations_are_not_named(kind: str, directions: int, tmp_path: Path) -> None:
    named = LAYERS[kind][1]
    source = model(*layer(kind, named if directions == 1 else f"{named[:-1]}, {named[1:]}", directions))
    path = ingested(tmp_path, source).folder / MODEL
    assert {each.name for each in load_graph(path).graph.node[0].attribute} == {"hidden_size", "direction"}
    feeds = {"x": numbers(5, 1, 4)}
    assert same(outputs(path, feeds), outputs(source, feeds))


@pytest.mark.parametrize(
    ("kind", "activations"),
    [("LSTM", '["HardSigmoid", "Tanh", "Tanh"]'), ("GRU", '["Sigmoid", "Relu"]'), ("RNN", '["Relu"]')],
)
def test_other_activations_stay(kind: str, activations: str, tmp_path: Path) -> None:
    (node,) = load_graph(ingested(tmp_path, model(*layer(kind, activations))).folder / MODEL).graph.node
    assert "activations" in {each.name for each in node.attribute}


@pytest.mark.slow
def test_the_chip_takes_a_layer_that_named_them(tmp_path: Path) -> None:
    source = model(*layer("LSTM", LAYERS["LSTM"][1]))
    feeds = [{"x": numbers(5, 1, 4)}]
    ran = on_chip(with_rewrites(tmp_path / "model", source).rewrite["all"], feeds, tmp_path / "chip")
    assert not ran.cpu_ops
    np.testing.assert_allclose(ran.outputs[0]["y"], outputs(source, feeds[0])[0], atol=0.01)
