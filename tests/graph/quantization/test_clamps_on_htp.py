"""What the quantizer does as HTP computes past encodings, or in those of inputs: on the real compiler and emulator."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import ArrayLike

from tests.support.graphs import graph
from tests.support.on_htp import on_chip, on_cpu, sqnr_db, without_rewrites

FORMS: dict[str, tuple[str, dict[str, ArrayLike]]] = {
    "zeros": ("m = MatMul (x, w) s = Add (m, none) y = Relu (s)", {"none": np.zeros(8, np.float32)}),
    "almost zeros": ("m = MatMul (x, w) s = Sub (m, none) y = Relu (s)", {"none": np.float32(1e-12)}),
    "one": ("m = MatMul (x, w) s = Div (m, one) y = Relu (s)", {"one": np.float32(1)}),
    "sums": ("m = MatMul (x, w) s = CumSum (m, last) y = Clip (s, low, top)",
             {"last": np.array(2), "low": np.float32(-1), "top": np.float32(2)}),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("activations", ["uint16", "uint8"])
@pytest.mark.parametrize("form", FORMS)
def test_what_is_clamped_comes_out_right(form: str, activations: str, tmp_path: Path) -> None:
    body, constants = FORMS[form]
    weight = np.random.default_rng(1).normal(size=(8, 8)).astype(np.float32)
    model = graph(f"g (float[1,12,8] x) => (float[1,12,8] y) {{ {body} }}", {"w": weight, **constants})
    feeds = [{"x": np.random.default_rng(0).normal(size=(1, 12, 8)).astype(np.float32)}]
    component = without_rewrites(tmp_path / "net", model)
    quantized = component.quantize("all", component.calibrate(feeds), activations=activations)

    on_htp = on_chip(quantized, feeds, tmp_path / "chip").outputs

    assert sqnr_db(on_cpu(quantized, feeds), on_htp, "y") > (60 if activations == "uint16" else 25)


@pytest.mark.slow
@pytest.mark.parametrize("activations", ["uint16", "uint8"])
def test_what_is_padded_holds_what_it_is_padded_with(activations: str, tmp_path: Path) -> None:
    constants: dict[str, ArrayLike] = {"pads": np.array([0, 0, 1, 0, 0, 1]), "value": np.float32(-5)}
    model = graph("g (float[1,12,8] x) => (float[1,12,10] y) { y = Pad (x, pads, value) }", constants)
    feeds = [{"x": np.linspace(-1, 1, 96, dtype=np.float32).reshape(1, 12, 8)}]
    component = without_rewrites(tmp_path / "net", model)
    quantized = component.quantize("all", component.calibrate(feeds), activations=activations)

    on_htp = on_chip(quantized, feeds, tmp_path / "chip").outputs

    assert sqnr_db(on_cpu(component.ingest, feeds), on_htp, "y") > (60 if activations == "uint16" else 30)
