"""Models that can't be built are refused, each with its reason and what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, helper, numpy_helper

from pipeline.errors import ModelError
from tests.support.sources import fetched, ingested, model, numbers
from tests.support.stage_runs import run_stage

Change = Callable[[ModelProto], None]


def nothing(source: ModelProto) -> None:
    """The text alone is what is refused."""


def attribute(name: str, value: Any) -> Change:
    return lambda source: source.graph.node[0].attribute.append(helper.make_attribute(name, value))


def opset(version: int) -> Change:
    def change(source: ModelProto) -> None:
        source.opset_import[0].version = version

    return change


def sparse(source: ModelProto) -> None:
    values, indices = numpy_helper.from_array(numbers(1), "s"), numpy_helper.from_array(np.array([0]), "i")
    source.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [4]))


def no_rank(source: ModelProto) -> None:
    source.graph.input[0].type.tensor_type.ClearField("shape")


def duplicate(source: ModelProto) -> None:
    source.graph.output.append(source.graph.output[0])


X = "g (float[n,4] x) => (float[n,4] y)"
RELU = X + "{ y = Relu (x) }"
LOCAL = '<domain: "local", opset_import: ["local" : 1]>'
INVALID = "model.onnx is not a valid ONNX model"
QUANTIZED = "model.onnx is quantized in a form that can't be turned into floats"
REFUSED: list[tuple[str, Change, str, str]] = [
    (X + "{ y = com.microsoft.QMoE (x, x, x) }", nothing, QUANTIZED, "'onnx/model.onnx'"),
    (X + "{ y = com.microsoft.QOrderedMatMul (x, x, x, x, x) }", nothing, QUANTIZED, "QOrderedMatMul"),
    (X + "{ y = com.microsoft.GroupQueryAttention (x, x, x, , , x, x) }", nothing,
     "model.onnx was optimized for another runtime", "'language_model'"),
    (X + "{ y = com.microsoft.nchwc.ReorderInput (x) }", nothing, "model.onnx was optimized for one kind of processor",
     "ORT_ENABLE_EXTENDED"),
    (X + "{ d = Cast <to = 11> (x) t = ai.onnx.ml.TreeEnsembleRegressor (d) y = Cast <to = 1> (t) }", nothing,
     "model.onnx is an ensemble of decision trees", "let onnxruntime run it on the CPU"),
    (X + "{ y = com.microsoft.EPContext (x) }", nothing, "model.onnx is a compiled context model", "was compiled from"),
    (X + "{ y = ai.onnx.preview.training.Adam (x) }", nothing, "no operator that onnxruntime knows", ".training'"),
    (X + "{ y = com.acme.Magic (x) }", nothing, "no operator that onnxruntime knows", "domain 'com.acme'"),
    (X + "{ y = BatchNormalization <training_mode = 1> (x, x, x, x, x) }", nothing, "in training mode", "model.eval()"),
    (X + "{ y = Relu (nowhere) }", nothing, INVALID, "input 'nowhere'"),
    (RELU, attribute("alpha", 1), INVALID, "Unrecognized attribute: alpha"),
    (X + "{ y = Softmaxx (x) }", nothing, INVALID, "No Op registered for Softmaxx"),
    (X + "{ y = Relu (x)  y = Neg (x) }", nothing, INVALID, "single static assignment"),
    (RELU, sparse, "initializer 's' is sparse", "dense weights"),
    (RELU, opset(99), "the model is of opset 99", "an earlier opset"),
    (RELU, no_rank, "input 'x' has no rank", "the shape of each input"),
    (RELU, duplicate, "the model gives one output twice", "export the model again"),
    ("g (float[n,4] x) => () { y = Relu (x) }", nothing, "the model has no outputs", "export the model again"),
    ("g (seq(float[4]) x) => (float[4] y) { y = ConcatFromSequence <axis = 0> (x) }", nothing,
     "'x' is not a tensor", "sequence_type"),
    (X + "{ y = local.f (x) }" + LOCAL + "f (x) => (y) { y = local.f (x) }", nothing,
     "function 'f' of the model calls itself", "'f' -> 'f'"),
    (X + "{ y = local.f (x, x) }" + LOCAL + "f (x) => (y) { y = local.g (x) }" + LOCAL + "g (x) => (y) { y = Neg (x) }",
     nothing, "the functions of the model can't be written out", "export the model again"),
    (X + "{ y = Scan <num_scan_inputs = 1, body = b (float[4] r) => (float[4] o) { o = Neg (r) }> ( , x) }", opset(8),
     "the model is of opset 8 and can't be converted to 17", "'y' (Scan)"),
    (
        X.replace(" y)", " y, bool[1] m)") + "{ y, m = Dropout (x) }",
        opset(11),
        "the model is of opset 11 and can't be converted to 17",
        "'y' (Dropout)",
    ),
    (X + "{ y = Hardmax (x) }", opset(11), "the model is of opset 11 and can't be converted to 17", "'y' (Hardmax)"),
    (X + "{ a = Reshape (w, w)  y = Add (x, a) }", nothing, "node 'a' (Reshape) reads don't go together", "'w'"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "change", "what", "detail"), REFUSED)
def test_models_that_are_refused(text: str, change: Change, what: str, detail: str, tmp_path: Path) -> None:
    source = model(text, {"w": np.array([5.0], np.float32)} if "(w, w)" in text else None)
    change(source)
    with pytest.raises(ModelError) as caught:
        ingested(tmp_path, source)
    assert caught.value.exit_code == 12
    assert what in caught.value.what
    assert detail in str(caught.value)
    assert caught.value.remedy


@pytest.mark.parametrize("variant", ["quantized", "int8", "uint8", "q4f16", "bnb4"])
def test_quantized_files_point_to_the_float_one(variant: str, tmp_path: Path) -> None:
    file = f"onnx/model_{variant}.onnx"
    source = model(X + "{ y = com.microsoft.MatMulFpQ4 (x, x, x) }")
    with pytest.raises(ModelError) as caught:
        run_stage("ingest", tmp_path / "out", {"file": file}, {"fetch": fetched(tmp_path / "fetch", source, file)})
    assert str(caught.value) == (
        f"{file} is quantized in a form that can't be turned into floats\n"
        "  where: node 'y' (com.microsoft::MatMulFpQ4)\n"
        "  why: HTP needs its own quantization, made from the float model\n"
        "  next: name the fp32 file of the component: 'onnx/model.onnx'"
    )


def test_functions_that_explode_are_refused(tmp_path: Path) -> None:
    header = '<domain: "local", opset_import: ["" : 17, "local" : 1]>'
    text = X + "{ y = local.f30 (x) }" + f"{header} f0 (x) => (y) {{ y = Relu (x) }}"
    for level in range(1, 31):
        text += f"{header} f{level} (x) => (y) {{ a = local.f{level - 1} (x)  y = local.f{level - 1} (a) }}"
    with pytest.raises(ModelError, match="the model has too many nodes") as caught:
        ingested(tmp_path, model(text))
    assert caught.value.why == "1073741824 with its functions written out, the limit is 1000000"
