"""What a graph takes is counted by the format of its numbers, by hand in these."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx.shape_inference import infer_shapes

from pipeline.contracts.cost import CostFacts
from pipeline.graph.files.model_file import load_graph
from pipeline.graph.quantization.compiled_cost import count, origins
from pipeline.qnn.format.schematic import Traffic, read_traffic
from pipeline.qnn.peaks import PEAKS, bound
from tests.support.graphs import graph
from tests.support.tiny_models import LAYERS, WIDTH, float_model, qdq_model


def test_a_qdq_graph(tmp_path: Path) -> None:
    found = count(infer_shapes(load_graph(qdq_model(tmp_path))))
    assert found.macs == {"w8a16": LAYERS * 8 * WIDTH * WIDTH}
    assert found.elements == LAYERS * 8 * WIDTH, "the Relus"
    assert found.weight_bytes == LAYERS * WIDTH * WIDTH
    made = [8 * WIDTH * 2] * (2 * LAYERS)
    assert found.activation_bytes == sum(made)
    assert found.edge_bytes == 2 * 8 * WIDTH * 2


def test_a_float_graph_is_of_16_bits(tmp_path: Path) -> None:
    found = count(infer_shapes(load_graph(float_model(tmp_path))))
    assert found.macs == {"fp16": LAYERS * 8 * WIDTH * WIDTH}
    assert found.weight_bytes == LAYERS * WIDTH * WIDTH * 2


def test_products_of_activations_and_convolutions() -> None:
    model = graph(
        """
        g (float[1, 4, 6] a, float[1, 6, 5] b) => (float[1, 4, 5] y)
        <float[1, 4, 6] a_dq, float[1, 6, 5] b_dq, uint16[1, 4, 6] a_q, uint8[1, 6, 5] b_q>
        {
            a_q = QuantizeLinear(a, s, z16)
            a_dq = DequantizeLinear(a_q, s, z16)
            b_q = QuantizeLinear(b, s, z8)
            b_dq = DequantizeLinear(b_q, s, z8)
            y = MatMul(a_dq, b_dq)
        }
        """,
        {"s": np.float32(0.1), "z16": np.uint16(0), "z8": np.uint8(0)},
        opset=21,
    )
    found = count(infer_shapes(model))
    assert found.macs == {"a8a16": 4 * 5 * 6}
    assert found.weight_bytes == 0, "scales and zero points are no weights"
    assert found.edge_bytes == 4 * 6 * 2 + 6 * 5 * 1 + 4 * 5 * 2


def test_a_product_that_is_an_output_counts_though_what_it_makes_has_no_type() -> None:
    """Of what only a Q node reads, a QDQ model gives no type; the last layer of most models is such a product."""
    model = graph(
        """
        g (float[4, 6] a) => (float[4, 5] y)
        {
            a_q = QuantizeLinear(a, s, z)
            a_dq = DequantizeLinear(a_q, s, z)
            w_dq = DequantizeLinear(w, s, zw)
            made = MatMul(a_dq, w_dq)
            y_q = QuantizeLinear(made, s, z)
            y = DequantizeLinear(y_q, s, z)
        }
        """,
        {"s": np.float32(0.1), "z": np.uint16(0), "zw": np.uint8(0), "w": np.ones((6, 5), np.uint8)},
        opset=21,
    )
    found = count(model)
    assert found.macs == {"w8a16": 4 * 5 * 6}
    assert found.activation_bytes == 4 * 5 * 2


def test_names_of_operators() -> None:
    model = graph("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    model.graph.node[0].name = "n"
    assert origins(model) == {"n": "Relu"}


def test_the_traffic_of_a_schematic(tmp_path: Path) -> None:
    path = tmp_path / "g_schematic.bin"
    line = '{"opid" : 0x4f33, "dram_read": %d , "dram_write": %d , "vtcm_read": 0 , "vtcm_write": 9, "is_dma": 1},\n'
    path.write_bytes(b"\0\xff# text\n" + (line % (2048, 0) + line % (0, 256)).encode() + b"x" * 200_000 + b"\n")
    assert read_traffic(path) == Traffic(2048, 256)
    path.write_bytes(b"another form\n")
    assert read_traffic(path) is None
    assert read_traffic(tmp_path / "none") is None


def cost(**changed: int | None) -> CostFacts:
    return CostFacts.from_json(
        {
            "macs": {"w8a16": 45_000_000_000_000}, "elements": 1, "weight_bytes": 100, "activation_bytes": 1,
            "edge_bytes": 35, "operators": {}, "vtcm_bytes": 1, "spill_bytes": 0, **changed,
        }
    )  # fmt: skip


def test_a_bound_is_of_published_peaks() -> None:
    found = bound("snapdragon-x-elite", cost())
    assert found is not None
    assert found.compute_s == pytest.approx(2.0), "45 T multiply-accumulates are 90 T operations"
    assert found.move_s == pytest.approx(1e-9), "135 bytes at 135 GB/s"
    moved = bound("snapdragon-x-elite", cost(dram_read_bytes=200, dram_write_bytes=70))
    assert moved is not None
    assert moved.move_s == pytest.approx(2e-9), "what the compiler plans to move"
    phone = bound("sm8650", cost())
    assert phone is not None
    assert phone.compute_s is None, "no figure is published"
    assert bound("sxr1230p", cost()) is None
    assert all(peak.source for peak in PEAKS.values())


@pytest.mark.parametrize("before", [0, 1 << 16, (1 << 20) - 40, (1 << 20) + 40, 3 << 20])
def test_the_traffic_of_a_schematic_of_megabytes(before: int, tmp_path: Path) -> None:
    line = b'{"opid" : 0x4f33, "dram_read": 7 , "dram_write": 1 , "vtcm_read": 0 , "is_dma": 1}\n'
    path = tmp_path / "g_schematic.bin"
    path.write_bytes(b"\1" * before + line * 30_000 + b"\2" * before + line[:-1])
    assert read_traffic(path) == Traffic(7 * 30_001, 30_001)
