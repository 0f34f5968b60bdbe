"""`compiler: qairt`: every argument of the SDK's tools, checked by recorders; no SDK was ever at hand.

The binary that the recorders hand out is onnxruntime-qnn's own, so all that comes behind the tools is the real thing.
"""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper

from pipeline.contracts.target import HtpTarget
from pipeline.errors import CompileError
from pipeline.graph.files.model_file import load_graph
from pipeline.graph.quantization.qdq.overrides import take_apart
from pipeline.qnn.child import run_apart
from pipeline.qnn.compiling.qairt import compile_by_sdk
from tests.support import qairt_sdk, tiny_project
from tests.support.contexts import X_ELITE, build
from tests.support.fresh import fresh
from tests.support.graphs import graph
from tests.support.tiny_models import Scheme, float_model, qdq_model, sample

NAME = "encoder_8"
TOOLS = ["qairt-converter", "qairt-quantizer", "qnn-context-binary-generator"]


def ran(model: onnx.ModelProto | Path, x: NDArray[np.float32]) -> NDArray[np.float32]:
    given = model.SerializeToString() if isinstance(model, onnx.ModelProto) else model
    (y,) = ort.InferenceSession(given, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    return np.asarray(y)


@pytest.mark.parametrize("scheme", [Scheme(), Scheme(per_channel=True, signed=True)])
def test_a_model_is_taken_apart_into_floats_and_encodings(scheme: Scheme, tmp_path: Path) -> None:
    path = qdq_model(tmp_path, scheme=scheme)
    model, told = take_apart(load_graph(path), tmp_path)
    overrides: dict[str, Any] = json.loads(json.dumps(told))
    x = sample(8, seed=3)
    np.testing.assert_allclose(ran(model, x), ran(path, x), atol=2e-3)
    assert [value.name for value in model.graph.output] == ["y"]
    activations = {each["name"]: each for each in overrides["activation_encodings"]}
    assert {"x", "y"} <= activations.keys()
    source = {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(path).graph.initializer}
    of_x = activations["x"]
    assert (of_x["bw"], of_x["enc_type"], of_x["is_sym"]) == (16, "PER_TENSOR", False)
    assert (of_x["scale"], of_x["offset"]) == ([float(source["x_scale"])], [-int(source["x_zero_point"])])
    weight = next(each for each in overrides["param_encodings"] if each["name"] == "w0")
    assert (weight["bw"], weight["is_sym"]) == (8, True)
    assert weight["enc_type"] == ("PER_CHANNEL" if scheme.per_channel else "PER_TENSOR")
    assert set(weight["offset"]) == {-128}
    assert len(weight["scale"]) == source["w0_scale"].size


TWICE = """g (float[2,3] x) => (float[2,3] y, float[2,3] z, float[2,3] given)
    <float scale = {0.03}, uint8 zero = {128}> {
    xq = QuantizeLinear (x, scale, zero)
    xd = DequantizeLinear (xq, scale, zero)
    given = DequantizeLinear (xq, scale, zero)
    bent = Relu (xd)
    bq = QuantizeLinear (bent, scale, zero)
    y = DequantizeLinear (bq, scale, zero)
    z = DequantizeLinear (bq, scale, zero)
}"""


def test_outputs_that_are_one_value_are_all_given(tmp_path: Path) -> None:
    quantized = graph(TWICE)
    onnx.save(quantized, tmp_path / "twice.onnx")
    model, told = take_apart(load_graph(tmp_path / "twice.onnx"), tmp_path)
    onnx.checker.check_model(model, full_check=True)
    x = sample(8, seed=3).reshape(-1)[:6].reshape(2, 3)
    outputs = [
        ort.InferenceSession(each.SerializeToString(), providers=["CPUExecutionProvider"]).run(
            ["y", "z", "given"], {"x": x}
        )
        for each in (model, quantized)
    ]
    for made, expected in zip(*outputs, strict=True):
        np.testing.assert_allclose(made, expected, atol=0.016)
    encodings = json.loads(json.dumps(told))["activation_encodings"]
    assert sorted(each["name"] for each in encodings) == ["given", "x", "y", "z"]


@pytest.mark.slow
@pytest.mark.parametrize("quantized", [True, False])
def test_the_tools_get_documented_options_and_their_binary_is_a_context(
    quantized: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model").mkdir()
    model = qdq_model(tmp_path / "model") if quantized else float_model(tmp_path / "model")
    build(model, tmp_path / "ep")
    root = tmp_path / "sdk"
    for name, value in qairt_sdk.create(root, tmp_path / "ep" / f"{NAME}_ctx_qnn.bin").items():
        monkeypatch.setenv(name, value)
    (tmp_path / "made").mkdir()
    made = fresh(compile_by_sdk, model, NAME, X_ELITE, tmp_path / "made")
    assert (made.partitions, made.fallbacks) == (1, ())
    results = []
    for folder in ("ep", "made"):
        with TemporaryDirectory(dir=tmp_path) as work:
            feeds = [{"x": sample(8, seed=3)}]
            ((y,),) = run_apart(tmp_path / folder, f"{NAME}_ctx.onnx", X_ELITE, feeds, Path(work))
        results.append(y)
    np.testing.assert_array_equal(results[0], results[1])
    called = {call["tool"]: call for call in qairt_sdk.calls(root)}
    assert [*called] == (TOOLS if quantized else [TOOLS[0], TOOLS[2]])
    converter, generator = called[TOOLS[0]], called[TOOLS[2]]
    assert converter["target_backend"] == "HTP"
    assert converter["onnx_skip_simplification"]
    assert converter["preserve_io_datatype"] == [], "of all"
    assert converter["float_bitwidth"] == (None if quantized else "16")
    assert bool(converter["encodings"]) == quantized
    assert (generator["dlc"], generator["binary_file"]) == ("quantized" if quantized else "float", NAME)
    assert generator["settings"] == {
        "graphs": [{"graph_names": [NAME], "O": 3, "fp16_relaxed_precision": 1, "vtcm_mb": 8}],
        "devices": [{"soc_model": 60, "dsp_arch": "v73"}],
    }
    if quantized:
        assert called[TOOLS[1]]["enable_float_fallback"]
        assert (called[TOOLS[1]]["float_bitwidth"], called[TOOLS[1]]["target_backend"]) == ("16", "HTP")


@pytest.mark.slow
def test_what_fails_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = qdq_model(tmp_path / "model")
    (tmp_path / "out").mkdir()

    def compiles() -> None:
        fresh(compile_by_sdk, model, NAME, X_ELITE, tmp_path / "out")

    monkeypatch.delenv("QAIRT_SDK_ROOT", raising=False)
    with pytest.raises(CompileError, match="compiler: qairt needs the QAIRT SDK") as error:
        compiles()
    assert error.value.why == "QAIRT_SDK_ROOT is not set"

    (tmp_path / "prepared.bin").write_bytes(b"no binary")
    for name, value in qairt_sdk.create(tmp_path / "old", tmp_path / "prepared.bin", "2.40.0").items():
        monkeypatch.setenv(name, value)
    with pytest.raises(CompileError, match="the QAIRT SDK is of another version") as error:
        compiles()
    assert "its version is 2.40.0" in error.value.why

    for name, value in qairt_sdk.create(tmp_path / "sdk", tmp_path / "prepared.bin").items():
        monkeypatch.setenv(name, value)
    with pytest.raises(CompileError, match="the context binary can't be read back"):
        compiles()
    (tmp_path / "sdk" / "broken").write_text("qairt-quantizer", "utf-8")
    with pytest.raises(CompileError, match="qairt-quantizer failed") as error:
        compiles()
    assert "ERROR - Encountered Error: no such luck" in error.value.why


@pytest.mark.slow
def test_a_binary_of_another_model_or_chip_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = qdq_model(tmp_path / "model")
    build(qdq_model(tmp_path / "longer", seq=16), tmp_path / "ep")
    for name, value in qairt_sdk.create(tmp_path / "sdk", tmp_path / "ep" / f"{NAME}_ctx_qnn.bin").items():
        monkeypatch.setenv(name, value)
    (tmp_path / "out").mkdir()
    with pytest.raises(CompileError, match="not of this model") as error:
        fresh(compile_by_sdk, model, NAME, X_ELITE, tmp_path / "out")
    assert error.value.why == "'x' is [1, 16, 32], [1, 8, 32] in the model"
    with pytest.raises(CompileError, match="not what was asked for") as error:
        fresh(compile_by_sdk, tmp_path / "longer" / "model.onnx", NAME, HtpTarget(57, 75, 8), tmp_path / "out")
    assert "it is for SoC 60 (HTP v73), SoC 57 (HTP v75) was asked for" in error.value.why


@pytest.mark.slow
def test_a_build_has_the_same_gates_and_manifest(tmp_path: Path) -> None:
    made = []
    environ: dict[str, str] = {}
    for name, written in {"ep": "", "sdk": "compiler: qairt\n"}.items():
        project = tiny_project.create(tmp_path / name, tmp_path / f"{name}_store", buckets=[8], targets=["sm8650"])
        config = project.root / tiny_project.CONFIG
        config.write_text(config.read_text("utf-8") + "quantization: {weights: uint8}\n" + written, "utf-8")
        project.environ |= environ
        assert "emulate:tiny/net/8/sm8650" in project.doit("build:tiny").built
        folder = project.root / "artifacts/tiny/sm8650"
        made.append(json.loads((folder / "manifest.json").read_text("utf-8"))["components"]["net"]["buckets"][0])
        environ = environ or qairt_sdk.create(tmp_path / "tools", folder / "net_8_ctx_qnn.bin")
    by_ep, by_sdk = made
    assert by_sdk["verification"] == by_ep["verification"]
    assert by_sdk.keys() == by_ep.keys()
    assert by_sdk["files"]["net_8_ctx_qnn.bin"] == by_ep["files"]["net_8_ctx_qnn.bin"]
    assert [call["tool"] for call in qairt_sdk.calls(tmp_path / "tools")] == TOOLS
