from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.graph.cpu import load_session, run
from pipeline.graph.rewrites import apply_all, divide_one
from pipeline.qnn.child import compile_apart, run_apart
from pipeline.qnn.target import HtpTarget
from tests.graphs import constant, graph, operators, outputs
from tests.stage_runs import Component

X = np.linspace(0.02, 0.1, 64, dtype=np.float32).reshape(1, 64)
TARGET = HtpTarget(60, 73, 8)


@pytest.mark.parametrize(("kind", "dtype"), [("float", np.float32), ("float16", np.float16)])
def test_a_reciprocal_becomes_a_quotient(kind: str, dtype: type[np.floating], tmp_path: Path) -> None:
    model = graph(f"g ({kind}[1,64] x) => ({kind}[1,64] y) {{ a = Reciprocal (x) b = Neg (a) y = Reciprocal (b) }}")
    x = X.astype(dtype)
    before = outputs(model, {"x": x})["y"]

    assert apply_all(model, tmp_path)["divide_one"] == 2

    assert operators(model) == {"Div": 2, "Neg": 1}
    assert constant(model, "one_divided").dtype == dtype
    assert len(model.graph.initializer) == 1, "one for all"
    np.testing.assert_allclose(outputs(model, {"x": x})["y"], before, rtol=1e-6 if dtype == np.float32 else 2e-3)
    assert divide_one.apply(model, tmp_path) == 0


def test_the_name_of_the_one_is_free(tmp_path: Path) -> None:
    model = graph("g (float[1,64] x) => (float[1,64] y) { one_divided = Neg (x) y = Reciprocal (one_divided) }")
    before = outputs(model, {"x": X})["y"]
    divide_one.apply(model, tmp_path)
    np.testing.assert_array_equal(outputs(model, {"x": X})["y"], before)


@pytest.mark.slow
def test_the_chip_divides_rightly(tmp_path: Path) -> None:
    model = graph("g (float[1,length] x) => (float[1,length] y) { y = Reciprocal (x) }")
    component = Component(tmp_path / "net", model, {"64": {"length": 64}})
    quantized = component.quantize("64", component.calibrate([{"x": X}])).folder / "model.onnx"
    out, work = tmp_path / "out", tmp_path / "work"
    out.mkdir()
    work.mkdir()
    facts = compile_apart(quantized, "net", TARGET, out)

    ((chip,),) = run_apart(out, str(facts["context_model"]), TARGET, [{"x": X}], work)

    (cpu,) = run(load_session(quantized), {"x": X}).values()
    assert sqnr_db(cpu, chip) > 60


def sqnr_db(truth: NDArray[np.float32], tested: NDArray[np.float32]) -> float:
    return float(10 * np.log10((truth**2).sum() / ((tested - truth) ** 2).sum()))
