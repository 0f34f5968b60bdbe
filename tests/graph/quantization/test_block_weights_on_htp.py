"""Weights in blocks through the real compiler and emulator: every operator that may have them, on old chips and new."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.contracts.scheme import Scheme
from pipeline.contracts.target import HtpTarget
from pipeline.errors import CompileError
from pipeline.graph.files.model_file import load_graph, tensor_array
from pipeline.qnn.target import BLOCKS_HTP_ARCH
from tests.support.graphs import graph
from tests.support.on_htp import on_chip, on_cpu, sqnr_db, with_rewrites
from tests.support.stage_runs import X_ELITE, Component, part

pytestmark = pytest.mark.slow

MODEL = """
net (float[1, 64, 4, 4] x) => (float[16, 24] y)
{
  a = Conv (x, w1, b1)
  r = Relu (a)
  f = Reshape (r, rows)
  m = MatMul (f, w2)
  h = Gemm <transB = 1> (m, wt, bt)
  y = Gemm (h, wn, bn)
}
"""
OLD, FIRST = HtpTarget(30, 68, 4), HtpTarget(36, BLOCKS_HTP_ARCH, 8)


def feeds(count: int) -> list[dict[str, NDArray[Any]]]:
    made = np.random.default_rng(5)
    return [{"x": made.normal(size=(1, 64, 4, 4)).astype(np.float32)} for _ in range(count)]


@pytest.mark.parametrize(
    ("kind", "block", "target"),
    [("int8", 32, X_ELITE), ("int4", 64, X_ELITE), ("int4", 16, X_ELITE), ("int8", 16, FIRST)],
)
def test_the_chip_computes_what_the_cpu_does(kind: str, block: int, target: HtpTarget, tmp_path: Path) -> None:
    component, scheme = net(tmp_path / "model"), Scheme("uint16", kind, per_channel=True, block=block)
    made = part(component.quantize_all(component.calibrate(feeds(4)), scheme), "all")

    chip = on_chip(made, feeds(4), tmp_path / "chip", target)

    assert chip.context.partitions == 1
    assert not chip.cpu_ops
    assert sqnr_db(on_cpu(made, feeds(4)), chip.outputs, "y") > 55


def test_scales_of_either_sign_are_computed_with(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    stored = rng.integers(-7, 8, (2, 32, 24)).astype(np.float32)
    stored[:, 5] = -8
    scale = (rng.uniform(0.01, 0.1, (2, 1, 24)) * rng.choice([-1, 1], (2, 1, 24))).astype(np.float16)
    weight = (stored * scale.astype(np.float32)).reshape(64, 24)
    model = graph("net (float[1, 8, 64] x) => (float[1, 8, 24] y) { y = MatMul (x, w) }", {"w": weight}, opset=21)
    component = with_rewrites(tmp_path / "model", model)
    given = [{"x": rng.normal(size=(1, 8, 64)).astype(np.float32)} for _ in range(4)]
    made = component.quantize("all", component.calibrate(given), weights="int4", block=32)

    chip = on_chip(made, given, tmp_path / "chip")

    scales = load_graph(made.folder / "model.onnx").graph.initializer
    kept = next(tensor_array(tensor, made.folder) for tensor in scales if tensor.name == "w_scale")
    assert np.array_equal(kept, scale[:, 0].astype(np.float32))  # those of Q4_0 stay as they are
    assert sqnr_db(on_cpu(component.rewrite["all"], given), chip.outputs, "y") > 60


def test_a_chip_before_v69_takes_none(tmp_path: Path) -> None:
    """This is why a config is refused that asks for it; when it passes, so may the config."""
    component, scheme = net(tmp_path / "model"), Scheme("uint16", "int8", per_channel=True, block=32)
    made = part(component.quantize_all(component.calibrate(feeds(4)), scheme), "all")

    with pytest.raises(CompileError):
        on_chip(made, [], tmp_path / "chip", OLD)


def test_a_convolution_over_rows_is_no_matter_for_the_cpu(tmp_path: Path) -> None:
    """As a spectrum is computed, with a kernel of sines: QNN takes blocks of weights with 4 dims alone."""
    rng = np.random.default_rng(3)
    model = graph(
        "net (float[1, 64, 20] x) => (float[1, 32, 20] y) { y = Conv (x, w) }",
        {"w": rng.normal(size=(32, 64, 1)).astype(np.float32)},
    )
    component = with_rewrites(tmp_path / "model", model)
    given = [{"x": rng.normal(size=(1, 64, 20)).astype(np.float32)} for _ in range(4)]
    scheme = Scheme("uint16", "int8", per_channel=True, block=32)
    made = part(component.quantize_all(component.calibrate(given), scheme), "all")

    chip = on_chip(made, given, tmp_path / "chip")

    assert chip.context.partitions == 1
    assert not chip.cpu_ops
    assert sqnr_db(on_cpu(made, given), chip.outputs, "y") > 55


def net(root: Path) -> Component:
    numbers = np.random.default_rng(3)
    shapes = {
        "w1": (64, 64, 1, 1), "b1": (64,), "w2": (64, 64), "wt": (64, 64), "bt": (64,), "wn": (64, 24), "bn": (24,),
    }  # fmt: skip
    given = {name: (numbers.normal(size=shape) / 8).astype(np.float32) for name, shape in shapes.items()}
    return with_rewrites(root, graph(MODEL, {**given, "rows": np.array([16, 64], np.int64)}))
