"""Files that onnxruntime's quantizers write are taken as the float models that they stand for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import ArrayLike, NDArray
from onnxruntime.quantization import quantize_dynamic

from pipeline.errors import ModelError
from pipeline.graph.files.model_file import MODEL, load_graph
from tests.support.graphs import operators
from tests.support.quantized_files import (
    BIASED,
    BIASED_CONV,
    CASES,
    FIXED,
    FLOAT_CONV,
    INPUTS,
    ROUNDED,
    RUN_TIME,
    WHOLE,
    WORDS,
    float_source,
    quantized,
)
from tests.support.sources import ingested, model, numbers, outputs, shaped


@pytest.mark.parametrize("case", CASES)
def test_a_quantized_file_is_built_from_its_floats(case: str, tmp_path: Path) -> None:
    text, _, least_db = CASES[case]
    source, file = quantized(tmp_path, case)
    assert set(operators(file)) & {"QLinearConv", "DequantizeLinear", "MatMulInteger", "DynamicQuantizeLSTM"}

    made = ingested(tmp_path, file).folder / MODEL

    left = operators(load_graph(made))
    assert not any("Quantize" in kind or kind.startswith("QLinear") or "Integer" in kind for kind in left), left
    feeds = {source.graph.input[0].name: INPUTS[text]}
    assert decibels(outputs(file, feeds)[0], outputs(made, feeds)[0]) >= least_db
    assert decibels(outputs(source, feeds)[0], outputs(made, feeds)[0]) >= 15, "weights have 8 bits a matrix"


@pytest.mark.parametrize(("start", "bias"), [(RUN_TIME, ROUNDED), (FIXED, ROUNDED), (FIXED, WHOLE)])
def test_a_bias_in_the_units_of_a_product_is_not_rounded(start: str, bias: str, tmp_path: Path) -> None:
    """As onnxruntime before 1.6 wrote it: next to a scale of 1, which the input gets, a step would be a large part."""
    known = {name: each for name, each in BIASED.items() if start == FIXED or name not in "sz"}
    made = ingested(tmp_path, model(BIASED_CONV.format(start=start, bias=bias), known)).folder / MODEL
    x = numbers(1, 3, 12, 12) / 4
    weights = (BIASED["wq"] - np.float32(130)) * BIASED["ws"]
    added = BIASED["b"] if bias == ROUNDED else BIASED["n"] * BIASED["ws"] * BIASED["s"]
    wanted = outputs(model(FLOAT_CONV, {"w": weights}), {"x": x})[0] + added.reshape(1, 8, 1, 1)
    assert decibels(wanted, outputs(made, {"x": x})[0]) > 100


def test_integers_are_added_to_no_product_whose_scale_is_found_at_run_time(tmp_path: Path) -> None:
    known = {name: each for name, each in BIASED.items() if name not in "sz"}
    with pytest.raises(ModelError, match="can't be written in floats") as caught:
        ingested(tmp_path, model(BIASED_CONV.format(start=RUN_TIME, bias=WHOLE), known))
    assert caught.value.why == "'i' is added to a product whose scale is found at run time"


def test_a_relu_that_the_quantizer_left_to_the_range_stays(tmp_path: Path) -> None:
    source = model(
        """g (float[1,4] x) => (float[1,4] y) {
        q = QuantizeLinear (x, scale, zero) r = Reshape (q, rows) y = DequantizeLinear (r, scale, zero) }""",
        {"scale": np.array(0.5, np.float32), "zero": np.array(0, np.uint8), "rows": np.array([1, 4])},
    )
    made = ingested(tmp_path, source).folder / MODEL
    given = np.array([[-3, 0.2, 7, 900]], np.float32)
    np.testing.assert_array_equal(outputs(made, {"x": given})[0], np.array([[0, 0.2, 7, 127.5]], np.float32))


@pytest.mark.parametrize("opset", [11, 13])
def test_a_softmax_of_an_early_opset_is_over_all_axes_behind(opset: int, tmp_path: Path) -> None:
    source = model(
        f"""g (float[1,4,6] x) => (float[1,4,6] y) {{ q = QuantizeLinear (x, coarse, middle)
        p = com.microsoft.QLinearSoftmax <axis = 1, opset = {opset}> (q, coarse, middle, fine, low)
        y = DequantizeLinear (p, fine, low) }}""",
        {
            "coarse": np.array(0.05, np.float32), "middle": np.array(128, np.uint8),
            "fine": np.array(1 / 256, np.float32), "low": np.array(0, np.uint8),
        },
    )  # fmt: skip
    feeds = {"x": numbers(1, 4, 6)}
    made = ingested(tmp_path, source).folder / MODEL
    np.testing.assert_allclose(outputs(made, feeds)[0], outputs(source, feeds)[0], atol=0.02)


def test_inputs_and_outputs_stay_quantized(tmp_path: Path) -> None:
    source = model(
        """g (uint8[1,n] x) => (int8[1,n] y) { d = DequantizeLinear (x, fine, middle) r = Tanh (d)
        y = QuantizeLinear (r, coarse, low) }""",
        {
            "fine": np.array(0.02, np.float32), "middle": np.array(128, np.uint8),
            "coarse": np.array(1 / 128, np.float32), "low": np.array(-3, np.int8),
        },
    )  # fmt: skip
    made = ingested(tmp_path, source).folder / MODEL
    assert "QuantizeLinear" not in operators(load_graph(made))
    feeds = {"x": np.arange(256, dtype=np.uint8)[None]}
    np.testing.assert_array_equal(outputs(made, feeds)[0], outputs(source, feeds)[0])


def test_scales_that_differ_between_rounding_and_back_are_kept(tmp_path: Path) -> None:
    source = model(
        """g (float[1,4] x) => (float[1,4] y) {
        q = QuantizeLinear (x, one, zero) y = DequantizeLinear (q, two, three) }""",
        {
            "one": np.array(1, np.float32), "two": np.array(2, np.float32), "zero": np.array(0, np.int8),
            "three": np.array(3, np.int8),
        },
    )  # fmt: skip
    feeds = {"x": np.array([[-200, -3, 5, 40]], np.float32)}
    np.testing.assert_array_equal(
        outputs(ingested(tmp_path, source).folder / MODEL, feeds)[0], outputs(source, feeds)[0]
    )


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("(uint8[1,n] y) { y, s, z = DynamicQuantizeLinear (x) }", "output 'y' is quantized by a scale"),
        ("(bool[1,n] y) { q, s, z = DynamicQuantizeLinear (x) y = Equal (q, z) }", "node 'y' (Equal) computes"),
    ],
)
def test_values_that_stay_quantized_at_run_time_are_refused(text: str, what: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError) as caught:
        ingested(tmp_path, model(f"g (float[1,n] x) => {text}"))
    assert what in caught.value.what
    assert "'onnx/model.onnx'" in str(caught.value.remedy)


def test_pools_whose_last_windows_onnxruntime_divides_otherwise_are_refused(tmp_path: Path) -> None:
    """QLinearAveragePool of onnxruntime 1.31 gives 0.103 where AveragePool gives 0.222: 3 values in a window of 6."""
    attributes = "ceil_mode = 1, count_include_pad = 1, kernel_shape = [2, 3], strides = [2, 1]"
    body = f"y = com.microsoft.QLinearAveragePool <{attributes}> (x, s, z, s, z)"
    constants: dict[str, ArrayLike] = {"s": np.float32(0.1), "z": np.uint8(3)}
    source = model(f"g (uint8[1,1,5,6] x) => (uint8[1,1,3,4] y) {{ {body} }}", constants)
    with pytest.raises(ModelError, match="ceil_mode with count_include_pad"):
        ingested(tmp_path, source)


def test_a_float_model_is_left_as_it_is(tmp_path: Path) -> None:
    source = model("g (float[1,n] x) => (float[1,n] y) { a = Relu (x) y = Neg (a) }")
    taken = ingested(tmp_path, source)
    assert [node.op_type for node in load_graph(taken.folder / MODEL).graph.node] == ["Relu", "Neg"]


def test_what_is_made_has_no_dynamic_dim(tmp_path: Path) -> None:
    source = float_source(WORDS)
    onnx.save(source, tmp_path / "float.onnx")
    quantize_dynamic(tmp_path / "float.onnx", tmp_path / "quantized.onnx")
    made = shaped(tmp_path, onnx.load(tmp_path / "quantized.onnx"), n=7).folder / MODEL
    assert operators(load_graph(made)).get("MatMul") == 3


def decibels(wanted: NDArray[Any], made: NDArray[Any]) -> float:
    """Signal over noise; both are float arrays of one shape."""
    assert wanted.shape == made.shape
    noise = float(((wanted - made) ** 2).sum())
    return 10 * float(np.log10(float((wanted**2).sum()) / noise)) if noise else np.inf


QUANTIZED: Mapping[str, NDArray[Any]] = {
    "s": np.array(0.05, np.float32), "i": np.array(5, np.int8), "u": np.array(130, np.uint8),
    "r": np.array(0.04, np.float32),
    "w": np.random.default_rng(1).integers(-99, 99, (4, 24)).astype(np.int8), "k": np.full(24, 0.02, np.float32),
    "n": np.array(3, np.int8), "c": np.random.default_rng(2).integers(-900, 900, 24).astype(np.int32), "b": numbers(24),
    "o": np.array(1 / 256, np.float32), "m": np.array(-128, np.int8),
}  # fmt: skip
M = "com.microsoft"
OPERATORS = {
    "a sum of int8 without a zero point": f"q = QuantizeLinear (x, s, i) t = {M}.QLinearAdd (q, s, i, q, s, i, r)",
    "a product of int8 without a zero point": f"""q = QuantizeLinear (x, s, t0)
        t = {M}.QLinearMul (q, s, t0, q, s, t0, r)""",
    "a Gemm that scales what is added": f"""q = QuantizeLinear (x, s, i)
        t = {M}.QGemm <alpha = 0.5> (q, s, i, w, s, n, c, r, i)""",
    "a Softmax of the last axis": f"q = QuantizeLinear (x, s, i) t = {M}.QLinearSoftmax <opset = 11> (q, s, i, o, m)",
}
STEP = {
    "a Softmax of the last axis": ("o, m", 1 / 256),
    "a sum of int8 without a zero point": ("r", 0.04),
    "a product of int8 without a zero point": ("r", 0.04),
}


@pytest.mark.parametrize("case", OPERATORS)
def test_what_a_quantized_operator_leaves_out_is_what_onnxruntime_takes(case: str, tmp_path: Path) -> None:
    """Inputs are on the grid of their scale: only the output is rounded, by half a step."""
    to, step = STEP.get(case, ("r, i", 0.04))
    back = {"r": "r, t0", "o, m": "o, m"}.get(to, to)
    text = f"g (float[3,4] x) => (float[n,m] y) {{ {OPERATORS[case]} y = DequantizeLinear (t, {back}) }}"
    words = set(re.findall(r"\w+", text))
    source = model(
        text, {name: each for name, each in {**QUANTIZED, "t0": np.array(0, np.int8)}.items() if name in words}
    )
    feeds = {"x": (np.random.default_rng(3).integers(-100, 100, (3, 4)) * np.float32(0.05)).astype(np.float32)}
    made = ingested(tmp_path, source).folder / MODEL
    np.testing.assert_allclose(outputs(made, feeds)[0], outputs(source, feeds)[0], rtol=0, atol=step * 0.51 + 1e-5)


@pytest.mark.parametrize("name", ["", "y", "attention"])
@pytest.mark.parametrize("scale", ["r", "k"])
def test_an_attention_of_integers_has_any_name(name: str, scale: str, tmp_path: Path) -> None:
    """It is written out twice, as Attention and as products: names of values are not taken twice."""
    source = model(
        f"""g (float[2,3,4] x) => (float[2,3,8] y) {{ q = QuantizeLinear (x, s, u)
        y = {M}.QAttention <num_heads = 2, unidirectional = 1> (q, w, b, s, {scale}, , u, n) }}""",
        {each: QUANTIZED[each] for each in ("s", "u", "w", "b", "n", scale)},
    )
    source.graph.node[1].name = name
    feeds = {"x": (np.random.default_rng(3).integers(-100, 100, (2, 3, 4)) * np.float32(0.05)).astype(np.float32)}
    made = shaped(tmp_path, source).folder / MODEL
    np.testing.assert_allclose(outputs(made, feeds)[0], outputs(source, feeds)[0], rtol=1e-3, atol=1e-3)
