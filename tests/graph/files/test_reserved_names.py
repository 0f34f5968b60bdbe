"""A model whose names are those that the quantizer gives is quantized all the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pipeline.graph.files.model_file import MODEL, load_graph
from tests.support.sources import ingested, model, numbers, outputs
from tests.support.stage_runs import Component

TEXT = """g (float[1,4] x) => (float[1,3] y) {
    x_scale = Relu (x) x_DequantizeLinear_Output = MatMul (x_scale, w_scale) h = Tanh (x_DequantizeLinear_Output)
    h_QuantizeLinear_Output = Neg (h) y = Add (h_QuantizeLinear_Output, h_zero_point) }"""
CONSTANTS = {"w_scale": numbers(4, 3), "h_zero_point": numbers(3)}


def test_names_of_the_quantizer_are_free(tmp_path: Path) -> None:
    source = model(TEXT, CONSTANTS)
    source.graph.node[0].name = "x_QuantizeLinear"
    made = ingested(tmp_path, source).folder / MODEL
    graph = load_graph(made).graph
    assert graph.node[0].output == ["x_scale_"]
    assert graph.node[0].name == "x_QuantizeLinear_"
    assert {tensor.name for tensor in graph.initializer} == {"w_scale_", "h_zero_point_"}
    feeds = {"x": numbers(1, 4)}
    np.testing.assert_array_equal(outputs(made, feeds)[0], outputs(source, feeds)[0])


def test_inputs_and_outputs_keep_their_names(tmp_path: Path) -> None:
    source = model("g (float[1,4] x_scale) => (float[1,4] y_quantized) { y_quantized = Relu (x_scale) }")
    graph = load_graph(ingested(tmp_path, source).folder / MODEL).graph
    assert (graph.input[0].name, graph.output[0].name) == ("x_scale", "y_quantized")


def test_such_a_model_is_quantized(tmp_path: Path) -> None:
    source = model(TEXT, CONSTANTS)
    component = Component(tmp_path, source, {"all": {}})
    calls = [{"x": numbers(1, 4)} for _ in range(8)]
    quantized = component.quantize("all", component.calibrate(calls))
    wanted, made = outputs(source, calls[0])[0], outputs(quantized.folder / MODEL, calls[0])[0]
    np.testing.assert_allclose(made, wanted, atol=0.05)
