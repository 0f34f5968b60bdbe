"""Operators of files that round as they run, each held alone against what was read of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, numpy_helper

from pipeline.graph.accuracy.reading.own_rounding import hold_alone
from pipeline.graph.accuracy.reading.source_file import SourceFile
from pipeline.graph.files.model_file import MODEL
from pipeline.graph.floats.rewriting import Replacing
from tests.support.quantized_files import BIASED, BIASED_CONV, CASES, FIXED, INPUTS, ROUNDED, RUN_TIME, WHOLE, quantized
from tests.support.sources import ingested, model, numbers

RANDOM = np.random.default_rng(7)
X = "g (float[1,n,16] x) => (float[1,n,16] y)"
DYNAMIC = "q, s, z = DynamicQuantizeLinear (x)"
M = "com.microsoft"
WEIGHTS: Mapping[str, NDArray[Any]] = {
    "w": RANDOM.integers(0, 256, (16, 16)).astype(np.uint8), "ws": np.array(0.02, np.float32),
    "wz": np.array(131, np.uint8), "b": numbers(16), "w48": RANDOM.integers(0, 256, (16, 48)).astype(np.uint8),
    "b48": numbers(48),
    "wf": numbers(16, 16), "fine": np.array(1 / 256, np.float32), "coarse": np.array(0.05, np.float32),
    "first": np.array([0]), "low": np.array(0, np.uint8), "middle": np.array(128, np.uint8),
}  # fmt: skip
FORMS = {
    "DynamicQuantizeMatMul": f"{X} {{ r = Relu (x) y = {M}.DynamicQuantizeMatMul (r, w, ws, wz, b) }}",
    "MatMulIntegerToFloat": f"{X} {{ {DYNAMIC} y = {M}.MatMulIntegerToFloat (q, w, s, ws, z, wz, b) }}",
    "QAttention": f"{X} {{ {DYNAMIC} y = {M}.QAttention <num_heads = 2> (q, w48, b48, s, ws, , z, wz) }}",
    "values that move while they are quantized": f"""{X} {{ {DYNAMIC} t = Transpose <perm = [0, 2, 1]> (q)
        u = Transpose <perm = [0, 2, 1]> (t) d = DequantizeLinear (u, s, z) y = MatMul (d, wf) }}""",
    "parts of a quantized value": f"""{X} {{ q = QuantizeLinear (x, coarse, middle) u, v = Split <axis = 2> (q)
        c = Concat <axis = 2> (v, u) d = DequantizeLinear (c, coarse, middle) y = MatMul (d, wf) }}""",
    "a number without dims": f"""{X} {{ {DYNAMIC} d = DequantizeLinear (q, s, z) m = ReduceMax <keepdims = 0> (d)
        k = Unsqueeze (m, first) y = Add (d, k) }}""",
    "QLinearSoftmax": f"""{X} {{ q = QuantizeLinear (x, coarse, middle)
        p = {M}.QLinearSoftmax <axis = 2, opset = 13> (q, coarse, middle, fine, low)
        y = DequantizeLinear (p, fine, low) }}""",
    "a quantized output": """g (float[1,n,16] x) => (uint8[1,n,16] y) { r = Tanh (x)
        y = QuantizeLinear (r, fine, low) }""",
}


def held(folder: Path, source: ModelProto, feeds: Mapping[str, NDArray[Any]], read: ModelProto | None = None) -> str:
    """The operators of a file, held against what `ingest` makes of it, or of `read` in its place."""
    made = ingested(folder, read or source).folder / MODEL
    path = folder / "file" / "net.onnx"
    path.parent.mkdir()
    onnx.save(source, path)
    outputs = tuple(value.name for value in source.graph.output)
    return hold_alone(SourceFile(path, outputs, (), (), {}), made, feeds, "onnxruntime")


@pytest.mark.parametrize("case", CASES)
def test_rounding_explains_a_file_that_was_read_rightly(case: str, tmp_path: Path) -> None:
    _, source = quantized(tmp_path, case)
    found = held(tmp_path, source, {source.graph.input[0].name: INPUTS[CASES[case][0]]})
    assert found == ""


@pytest.mark.parametrize("form", FORMS)
def test_rounding_explains_operators_of_quantized_values(form: str, tmp_path: Path) -> None:
    text = FORMS[form]
    words = set(text.replace("(", " ").replace(")", " ").replace(",", " ").split())
    source = model(text, {name: each for name, each in WEIGHTS.items() if name in words})
    assert held(tmp_path, source, {"x": numbers(1, 5, 16)}) == ""


@pytest.mark.parametrize(("start", "bias"), [(RUN_TIME, ROUNDED), (FIXED, ROUNDED), (FIXED, WHOLE)])
def test_a_bias_in_the_units_of_a_product_is_compared_in_them(start: str, bias: str, tmp_path: Path) -> None:
    known = {name: each for name, each in BIASED.items() if start == FIXED or name not in "sz"}
    source = model(BIASED_CONV.format(start=start, bias=bias), known)
    assert held(tmp_path, source, {"x": numbers(1, 3, 12, 12) / 4}) == ""


def broken(monkeypatch: pytest.MonkeyPatch, name: str, change: Callable[..., tuple[Any, ...]]) -> None:
    sound = getattr(Replacing, name)
    monkeypatch.setattr(Replacing, name, lambda made, *given, **more: sound(made, *change(*given), **more))


def without_zero(name: str, scale: str, zero: str = "", *more: Any) -> tuple[Any, ...]:
    return (name, scale, "", *more) if zero or more else (name, "")


@pytest.mark.parametrize("form", ["DynamicQuantizeMatMul", "MatMulIntegerToFloat", "QAttention"])
def test_a_zero_point_that_is_not_read_is_not_explained(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch, "number", without_zero)
    text = FORMS[form]
    words = set(text.replace("(", " ").replace(")", " ").replace(",", " ").split())
    source = model(text, {name: each for name, each in WEIGHTS.items() if name in words})
    found = held(tmp_path, source, {"x": numbers(1, 5, 16)})
    assert "gives something else than was read of it" in found


MISREAD = {"operators of quantized values": 1.02, "a convolution": 1.02, "the same, a scale for each channel": 1.02}
"""Factors of the scales of weights that are found; what an LSTM rounds inside of itself hides more."""


@pytest.mark.parametrize(("case", "factor"), [*MISREAD.items(), ("an LSTM", 1.25)])
def test_a_scale_of_weights_that_is_misread_is_not_explained(case: str, factor: float, tmp_path: Path) -> None:
    _, source = quantized(tmp_path, case)
    changed = ModelProto()
    changed.CopyFrom(source)
    for tensor in changed.graph.initializer:
        if tensor.name.endswith("_scale") and not tensor.name.startswith("x_"):
            values = numpy_helper.to_array(tensor) * np.float32(factor)
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    found = held(tmp_path, source, {source.graph.input[0].name: INPUTS[CASES[case][0]]}, read=changed)
    assert "gives something else than was read of it" in found
