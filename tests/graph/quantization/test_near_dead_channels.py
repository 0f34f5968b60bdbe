"""Channels whose products HTP can't rescale: their scales are raised, on the real compiler and emulator."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto

from pipeline.graph.files.model_file import MODEL, load_graph
from pipeline.graph.ir.index import GraphIndex
from pipeline.graph.quantization.chip_limits import REQUANTIZE
from pipeline.model import StageInput
from tests.support.graphs import graph
from tests.support.on_htp import on_chip, on_cpu, sqnr_db, without_rewrites

FORMS = {
    "Conv": ((1, 256, 32), (8, 256, 1), 0, "(float[1,256,32] x) => (float[1,8,32] y) { y = Conv (x, w) }"),
    "Gemm": ((32, 256), (256, 8), 1, "(float[32,256] x) => (float[32,8] y) { y = Gemm (x, w) }"),
    "MatMul": ((1, 32, 256), (256, 8), 1, "(float[1,32,256] x) => (float[1,32,8] y) { y = MatMul (x, w) }"),
    "left of MatMul": ((256, 32), (8, 256), 0, "(float[256,32] x) => (float[8,32] y) { y = MatMul (w, x) }"),
}  # fmt: skip


def product(form: str, dead: float) -> ModelProto:
    """A product of which every second channel has `dead` times the weights of the others."""
    _, shape, axis, text = FORMS[form]
    weight = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    np.moveaxis(weight, axis, 0)[1::2] *= np.float32(dead)
    return graph(f"g {text}", {"w": weight})


def ratios(quantized: StageInput) -> NDArray[np.float64]:
    """``scale_in * scale_weight / scale_out`` of the one product in a QDQ model, by channel."""
    index = GraphIndex(load_graph(quantized.folder / MODEL), quantized.folder)
    (node,) = (node for node in index.model.graph.node if node.op_type in ("Conv", "Gemm", "MatMul"))

    def scale(conversion: NodeProto) -> NDArray[np.float64]:
        found = index.constant(conversion.input[1])
        assert found is not None
        return np.asarray(found, np.float64)

    left, right = (scale(index.makers[name]) for name in node.input[:2])
    return np.asarray(left * right / scale(index.readers[node.output[0]][0]), np.float64)


@pytest.mark.parametrize("form", FORMS)
def test_near_dead_channels_are_not_saturated(form: str, tmp_path: Path) -> None:
    component = without_rewrites(tmp_path / "net", product(form, dead=2.0**-16))
    feeds = [{"x": np.random.default_rng(seed).normal(size=FORMS[form][0]).astype(np.float32)} for seed in range(2)]
    quantized = component.quantize("all", component.calibrate(feeds))

    assert ratios(quantized).min() >= REQUANTIZE
    on_htp = on_chip(quantized, feeds, tmp_path / "out").outputs
    assert sqnr_db(on_cpu(quantized, feeds), on_htp, "y") > 60
    assert sqnr_db(on_cpu(component.ingest, feeds), on_htp, "y") > 30, "and the raised scales cost nothing"


def test_other_channels_keep_their_scales(tmp_path: Path) -> None:
    feeds = [{"x": np.random.default_rng(0).normal(size=(1, 256, 32)).astype(np.float32)}]
    scales = []
    for dead in (1.0, 2.0**-16):
        component = without_rewrites(tmp_path / str(dead), product("Conv", dead))
        scales.append(ratios(component.quantize("all", component.calibrate(feeds)))[::2])
    assert scales[1] == pytest.approx(scales[0], rel=0.3)  # of the output there is less, of the weight there is not


def test_8_bit_activations_are_left_alone(tmp_path: Path) -> None:
    """They have no such limit."""
    component = without_rewrites(tmp_path / "net", product("Conv", dead=2.0**-16))
    feeds = [{"x": np.random.default_rng(0).normal(size=(1, 256, 32)).astype(np.float32)}]
    quantized = component.quantize("all", component.calibrate(feeds), activations="uint8")
    assert ratios(quantized).min() < REQUANTIZE
