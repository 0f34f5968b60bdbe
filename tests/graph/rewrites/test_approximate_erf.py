from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.graph.rewrites import apply_all
from pipeline.graph.rewrites.activations import approximate_erf
from tests.support.graphs import graph, operators, outputs
from tests.support.on_htp import on_chip, on_cpu, sqnr_db, with_rewrites, without_rewrites

TEXT = "g (float[1,12,64] x) => (float[1,12,64] y) { h = Mul (x, one)  y = Erf (h) }"


def values(size: float) -> NDArray[np.float32]:
    return np.linspace(-size, size, 768, dtype=np.float32).reshape(1, 12, 64)


def test_it_is_the_function_to_half_a_millionth(tmp_path: Path) -> None:
    model = graph(TEXT, {"one": np.float32(1)})
    assert apply_all(model, tmp_path)["approximate_erf"] == 1
    assert approximate_erf.apply(model, tmp_path) == 0
    for size in (1e-6, 1e-3, 0.1, 1, 3, 4, 100, 1e30):
        x = values(size)
        truth = np.vectorize(math.erf)(x.astype(np.float64))
        made = outputs(model, {"x": x})["y"]
        np.testing.assert_allclose(made, truth, atol=8e-7, rtol=1e-5 if size < 1e-2 else 0)


def test_a_gelu_keeps_its_own(tmp_path: Path) -> None:
    text = """g (float[1,12,64] x) => (float[1,12,64] y) {
        d = Div (x, root)  e = Erf (d)  a = Add (e, one)  m = Mul (x, a)  y = Mul (m, half)
    }"""
    model = graph(text, {"one": np.float32(1), "half": np.float32(0.5), "root": np.float32(np.sqrt(2))})
    assert apply_all(model, tmp_path)["approximate_erf"] == 0
    assert operators(model) == {"Gelu": 1}


@pytest.mark.parametrize("size", [0.1, 1, 4, 50])
@pytest.mark.parametrize("precision", ["fp16", "uint16"])
def test_the_chip_takes_it(precision: str, size: float, tmp_path: Path) -> None:
    calls = [{"x": values(size)}]
    component = with_rewrites(tmp_path / "model", graph(TEXT, {"one": np.float32(1)}))
    made = component.rewrite["all"]
    if precision != "fp16":
        made = component.quantize("all", component.calibrate(calls), activations=precision)

    chip = on_chip(made, calls, tmp_path / "chip")

    assert chip.cpu_ops == set()
    assert sqnr_db(on_cpu(component.ingest, calls), chip.outputs, "y") > 55


def test_qnn_leaves_it_to_the_cpu(tmp_path: Path) -> None:
    calls = [{"x": values(1)}]
    component = without_rewrites(tmp_path / "model", graph(TEXT, {"one": np.float32(1)}))
    assert on_chip(component.rewrite["all"], calls, tmp_path / "chip").cpu_ops == {"Erf"}, "drop approximate_erf"
