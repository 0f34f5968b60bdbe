"""The context stage, with the real compiler and the real emulator, on tiny models."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper

from pipeline.contracts.target import HtpTarget
from pipeline.errors import CompileError, ModelError, PipelineError, QuantizationError, VerificationError
from pipeline.graph.files.model_file import load_graph, save_graph, tensor_array
from pipeline.model import Json
from pipeline.qnn.compiling import admission
from pipeline.qnn.compiling.compile import compile_context
from pipeline.qnn.format.context_binary import read_binary
from pipeline.qnn.running.emulate import run_context
from pipeline.qnn.session import TESTED, bundled_sdk, check_versions
from tests.support.contexts import X_ELITE, build, edit
from tests.support.fresh import fresh
from tests.support.recurrent import layer
from tests.support.tiny_models import Scheme, float_model, qdq_model, sample

SM8650 = HtpTarget(57, 75, 8)
NAME = "encoder_8"


def refusal(kind: type[PipelineError], model: Path, out: Path, target: HtpTarget = X_ELITE) -> PipelineError:
    """What the stage raises; it must leave nothing behind."""
    with pytest.raises(kind) as caught:
        build(model, out, target)
    assert not list(out.iterdir())
    return caught.value


def refusal_on_sight(kind: type[PipelineError], model: Path, target: HtpTarget = X_ELITE) -> PipelineError:
    """What is raised before the compiler is loaded; that needs no process of its own."""
    with pytest.raises(kind) as caught:
        admission.check(load_graph(model), model.parent, target)
    return caught.value


def emulate(folder: Path, target: HtpTarget, feeds: list[dict[str, NDArray[Any]]]) -> list[list[NDArray[Any]]]:
    return fresh(run_context, folder, f"{NAME}_ctx.onnx", target, feeds)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def sqnr_db(expected: NDArray[Any], actual: NDArray[Any]) -> float:
    noise = np.square(expected.astype(np.float64) - actual).mean()
    return float(10 * np.log10(np.square(expected.astype(np.float64)).mean() / noise))


@pytest.fixture(scope="module")
def qdq(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return qdq_model(tmp_path_factory.mktemp("qdq"))


@pytest.fixture(scope="module")
def built(qdq: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Mapping[str, Json]]:
    """The folder of a context for X_ELITE, and the stage's facts."""
    out = tmp_path_factory.mktemp("built") / "out"
    return out, build(qdq, out)


class TestFacts:
    def test_say_what_was_compiled(self, built: tuple[Path, Mapping[str, Json]]) -> None:
        out, facts = built
        x = {"dtype": "float32", "shape": [1, 8, 32]}
        assert re.fullmatch("[0-9a-f]{64}", str(facts["work"]))
        assert {name: fact for name, fact in facts.items() if name not in ("cost", "work")} == {
            "bucket": "8",
            "axes": {"sequence": 8},
            "context_model": "encoder_8_ctx.onnx",
            "binaries": ["encoder_8_ctx_qnn.bin"],
            "inputs": [{"name": "x", **x}],
            "outputs": [{"name": "y", **x}],
            "partitions": 1,
            "cpu_nodes": [
                {
                    "name": "x_quantize",
                    "op": "QuantizeLinear",
                    "reason": "QNN EP is configured to not take Q nodes that consume a graph input.",
                    "edge": True,
                },
                {
                    "name": "relu1_dequantize",
                    "op": "DequantizeLinear",
                    "reason": "QNN EP is configured to not take DQ nodes that generate a graph output.",
                    "edge": True,
                },
            ],
            "targets": [{"soc_model": 60, "htp_arch": 73, "vtcm_mb": 8}],
            "sdk": bundled_sdk(),
            "compatibility": f"v2:6:{bundled_sdk()}:5.51.0:73:60:8:0",
        }
        assert sorted(contents(out)) == ["encoder_8_ctx.onnx", "encoder_8_ctx_qnn.bin"]

    def test_come_from_the_binary_itself(self, built: tuple[Path, Mapping[str, Json]]) -> None:
        info = read_binary(built[0] / "encoder_8_ctx_qnn.bin")
        assert (info.soc_model, info.htp_arch) == (60, 73)
        assert info.sdk.startswith(f"v{bundled_sdk()}.")
        assert [(graph.vtcm_mb, graph.optimization_mode) for graph in info.graphs] == [(8, 3)]

    def test_name_the_operator_that_qnn_does_not_take_and_why(self, tmp_path: Path) -> None:
        model = float_model(tmp_path / "model", between="Asinh")
        facts = build(model, tmp_path / "out")
        assert facts["partitions"] == 2
        nodes: Any = facts["cpu_nodes"]
        assert [(node["name"], node["op"]) for node in nodes] == [("between", "Asinh")]
        assert "Operators of type `Asinh` are not supported by QNN EP" in nodes[0]["reason"]

    def test_an_unset_vtcm_is_reported_as_what_the_compiler_took(self, qdq: Path, tmp_path: Path) -> None:
        targets: Any = build(qdq, tmp_path / "out", HtpTarget(60, 73))["targets"]
        assert [target["vtcm_mb"] for target in targets] == [4]


class TestBytes:
    def test_do_not_depend_on_folder_process_hash_seed_or_threads(
        self, built: tuple[Path, Mapping[str, Json]], qdq: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        elsewhere = tmp_path / "Ünïcode 폴더 with spaces"
        shutil.copytree(qdq.parent, elsewhere / "another name")
        monkeypatch.chdir(elsewhere)
        monkeypatch.setenv("PYTHONHASHSEED", "12345")
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        facts = build(Path("another name", "model.onnx"), elsewhere / "out")
        assert contents(elsewhere / "out") == contents(built[0])
        assert facts == built[1]

    def test_are_those_of_a_model_that_carries_its_weights_inside(
        self, built: tuple[Path, Mapping[str, Json]], qdq: Path, tmp_path: Path
    ) -> None:
        model = load_graph(qdq)
        for tensor in model.graph.initializer:
            tensor.CopyFrom(numpy_helper.from_array(np.array(tensor_array(tensor, qdq.parent)), tensor.name))
        save_graph(model, tmp_path / "model.onnx")
        build(tmp_path / "model.onnx", tmp_path / "out")
        assert contents(tmp_path / "out") == contents(built[0])

    def test_follow_the_external_weights(
        self, built: tuple[Path, Mapping[str, Json]], qdq: Path, tmp_path: Path
    ) -> None:
        shutil.copytree(qdq.parent, tmp_path / "model")
        weights = tmp_path / "model" / "weights.bin"
        weights.write_bytes(bytes([255 - weights.read_bytes()[0]]) + weights.read_bytes()[1:])
        build(tmp_path / "model" / "model.onnx", tmp_path / "out")
        assert contents(tmp_path / "out")["encoder_8_ctx_qnn.bin"] != contents(built[0])["encoder_8_ctx_qnn.bin"]

    def test_graph_names_differ_between_buckets(self, qdq: Path, tmp_path: Path) -> None:
        """Two graphs of one name can't share a context binary."""
        names = set()
        for bucket in ("encoder_8", "encoder_16"):
            (tmp_path / bucket).mkdir()
            fresh(compile_context, qdq, bucket, X_ELITE, tmp_path / bucket)
            names |= {graph.name for graph in read_binary(tmp_path / bucket / f"{bucket}_ctx_qnn.bin").graphs}
        assert len(names) == 2

    def test_nothing_of_what_was_in_the_folder_before_survives(
        self, built: tuple[Path, Mapping[str, Json]], qdq: Path, tmp_path: Path
    ) -> None:
        """The compiler itself refuses to write where a file is."""
        (tmp_path / "encoder_8_ctx.onnx").write_bytes(b"stale")
        (tmp_path / "encoder_8_ctx_qnn.bin").write_bytes(b"stale")
        build(qdq, tmp_path)
        assert contents(tmp_path) == contents(built[0])


class TestEmulator:
    @pytest.mark.parametrize("scheme", [Scheme(), Scheme(per_channel=True), Scheme(per_channel=True, signed=True)])
    def test_agrees_with_the_qdq_model_on_the_cpu(self, tmp_path: Path, scheme: Scheme) -> None:
        model = qdq_model(tmp_path / "model", scheme=scheme)
        assert build(model, tmp_path / "out")["partitions"] == 1
        feeds: list[dict[str, NDArray[Any]]] = [{"x": sample(8, seed)} for seed in (2, 3, 2)]
        outputs = emulate(tmp_path / "out", X_ELITE, feeds)
        session = ort.InferenceSession(str(model), providers=["CPUExecutionProvider"])
        for feed, (output,) in zip(feeds, outputs, strict=True):
            assert sqnr_db(session.run(None, feed)[0], output) > 60
        assert np.array_equal(outputs[0][0], outputs[2][0])

    def test_computes_a_float_model_in_float16(self, tmp_path: Path) -> None:
        model = float_model(tmp_path / "model")
        facts = build(model, tmp_path / "out", SM8650)
        assert (facts["partitions"], facts["cpu_nodes"]) == (1, [])
        feed: dict[str, NDArray[Any]] = {"x": sample(8, 2)}
        ((output,),) = emulate(tmp_path / "out", SM8650, [feed])
        expected = ort.InferenceSession(str(model), providers=["CPUExecutionProvider"]).run(None, feed)[0]
        assert 60 < sqnr_db(expected, output) < 90  # float16 has 11 bits of mantissa; float32 would be above 130

    def test_runs_partitions_that_share_a_binary_around_a_cpu_node(self, tmp_path: Path) -> None:
        model = float_model(tmp_path / "model", between="Asinh")
        facts = build(model, tmp_path / "out")
        assert (facts["partitions"], facts["binaries"]) == (2, ["encoder_8_ctx_qnn.bin"])
        feed: dict[str, NDArray[Any]] = {"x": sample(8, 2)}
        ((output,),) = emulate(tmp_path / "out", X_ELITE, [feed])
        expected = ort.InferenceSession(str(model), providers=["CPUExecutionProvider"]).run(None, feed)[0]
        assert sqnr_db(expected, output) > 60

    def test_refuses_a_context_of_another_target(self, built: tuple[Path, Mapping[str, Json]]) -> None:
        with pytest.raises(VerificationError) as caught:
            emulate(built[0], SM8650, [{"x": sample(8)}])
        assert caught.value.what == "encoder_8_ctx_qnn.bin is for SoC 60 (HTP v73), not for SoC 57 (HTP v75)"

    def test_reports_a_renamed_binary(self, built: tuple[Path, Mapping[str, Json]], tmp_path: Path) -> None:
        shutil.copy(built[0] / "encoder_8_ctx.onnx", tmp_path)
        shutil.copy(built[0] / "encoder_8_ctx_qnn.bin", tmp_path / "encoder.bin")
        with pytest.raises(VerificationError, match="the emulator can't run") as caught:
            emulate(tmp_path, X_ELITE, [{"x": sample(8)}])
        assert "it may have been renamed" in caught.value.why
        assert "keep the binary's name" in caught.value.remedy

    def test_reports_a_binary_that_is_cut_short(self, built: tuple[Path, Mapping[str, Json]], tmp_path: Path) -> None:
        shutil.copytree(built[0], tmp_path, dirs_exist_ok=True)
        binary = tmp_path / "encoder_8_ctx_qnn.bin"
        os.truncate(binary, binary.stat().st_size // 2)
        with pytest.raises(CompileError, match="the context binary can't be read back"):
            emulate(tmp_path, X_ELITE, [{"x": sample(8)}])

    def test_reports_an_input_of_the_wrong_shape(self, built: tuple[Path, Mapping[str, Json]]) -> None:
        with pytest.raises(VerificationError) as caught:
            emulate(built[0], X_ELITE, [{"x": sample(9)}])
        assert "Got: 9 Expected: 8" in caught.value.why

    def test_refuses_a_model_that_is_no_context(self, qdq: Path) -> None:
        with pytest.raises(VerificationError) as caught:
            fresh(run_context, qdq.parent, "model.onnx", X_ELITE, [{"x": sample(8)}])
        assert caught.value.what == "model.onnx would not run on QNN"


class TestSilentFailures:
    """What the compiler accepts, or gives up on, without an error of its own."""

    def test_a_soc_that_the_sdk_does_not_know(self, qdq: Path, tmp_path: Path) -> None:
        error = refusal(CompileError, qdq, tmp_path / "out", HtpTarget(9999, 73))
        assert error.what == "QNN compiled nothing of encoder_8 for SoC 9999 (HTP v73)"
        assert error.why.startswith("the installed QNN SDK knows no SoC with this id\n")
        assert "QNN_DEVICE_ERROR_INVALID_CONFIG" in error.why  # QNN's own words
        assert error.remedy.startswith("check the target; a SoC newer than the SDK needs a newer onnxruntime-qnn (http")

    def test_no_soc(self, qdq: Path, tmp_path: Path) -> None:
        error = refusal(CompileError, qdq, tmp_path / "out", HtpTarget(0, 73))
        assert "soc_model is not specified" in error.why

    @pytest.mark.parametrize("target", [HtpTarget(57, 73, 8), HtpTarget(60, 79, 8)], ids=str)
    def test_an_architecture_that_is_not_the_socs(self, qdq: Path, tmp_path: Path, target: HtpTarget) -> None:
        error = refusal(CompileError, qdq, tmp_path / "out", target)
        assert error.what == "the compiled context is not what was asked for"
        assert error.where == "encoder_8_ctx_qnn.bin"
        real = {57: 75, 60: 73}[target.soc_model]
        assert error.why == f"it is for SoC {target.soc_model} (HTP v{real}), {target} was asked for"

    @pytest.mark.parametrize(("dim", "spelt"), [("sequence", "sequence"), (0, "?")])
    def test_a_dim_that_is_not_fixed(self, tmp_path: Path, dim: str | int, spelt: str) -> None:
        error = refusal_on_sight(ModelError, float_model(tmp_path / "model", sequence=dim))
        assert error.what == "a model with dims that are not fixed can't be compiled"
        assert f"x [1, {spelt}, 32], y [1, {spelt}, 32]" in error.why

    @pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
    def test_a_scale_that_is_no_positive_number(self, qdq: Path, tmp_path: Path, value: float) -> None:
        def spoil(model: ModelProto) -> None:
            for tensor in model.graph.initializer:
                if tensor.name == "relu0_scale":
                    tensor.CopyFrom(numpy_helper.from_array(np.asarray(value, np.float32), tensor.name))

        error = refusal_on_sight(QuantizationError, edited(qdq, tmp_path / "model", spoil))
        assert error.what == "the scale 'relu0_scale' is not a positive number"

    def test_a_model_of_which_qnn_takes_nothing(self, tmp_path: Path) -> None:
        model = one_node("Asinh", [1, 8], tmp_path / "model")
        error = refusal(CompileError, model, tmp_path / "out")
        assert "Asinh 'the_node': Operators of type `Asinh` are not supported" in error.why

    def test_more_fast_memory_than_there_is(self, tmp_path: Path) -> None:
        model = one_node("Softmax", [1, 8, 4_000_000], tmp_path / "model")
        error = refusal(CompileError, model, tmp_path / "out")
        assert "Code: 1002" in error.why
        assert error.remedy.startswith("use a smaller bucket, or split the model into components")

    def test_an_operator_that_crashes_the_compiler(self, tmp_path: Path) -> None:
        error = refusal_on_sight(ModelError, float_model(tmp_path / "model", between="Mish"))
        assert error.what == "the operator Mish crashes the QNN compiler"
        assert error.where == "node 'between'"
        assert error.remedy == "export the model with x * tanh(softplus(x)) in its place"

    @pytest.mark.parametrize("op", ["LSTM", "GRU"])
    def test_a_recurrent_layer_for_an_htp_without_float16(self, op: str, tmp_path: Path) -> None:
        model = layer(op)
        model.graph.node.append(helper.make_node("QuantizeLinear", ["X", "scale"], ["quantized"]))
        model.graph.initializer.append(helper.make_tensor("scale", TensorProto.FLOAT, [], [1.0]))
        path = tmp_path / "model.onnx"
        save_graph(model, path)
        error = refusal_on_sight(ModelError, path, HtpTarget(30, 68, 4))
        assert error.what == f"{op} can't run on SoC 30 (HTP v68)"
        admission.check(load_graph(path), tmp_path, SM8650)

    def test_a_float_model_for_an_htp_without_float16(self, tmp_path: Path) -> None:
        error = refusal(ModelError, float_model(tmp_path / "model"), tmp_path / "out", HtpTarget(30, 68, 4))
        assert error.what == "a model that is not quantized can't run on SoC 30 (HTP v68)"

    def test_a_second_compile_in_the_same_process(self, qdq: Path, tmp_path: Path) -> None:
        with pytest.raises(CompileError) as caught:
            fresh(_compile_twice, qdq, tmp_path)
        assert caught.value.what == "a second compile in one process"
        assert caught.value.where == "second"

    def test_packages_that_do_not_belong_together(self) -> None:
        check_versions(TESTED)
        with pytest.raises(CompileError) as caught:
            check_versions({**TESTED, "onnxruntime": "1.22.0"})
        assert "this environment has onnxruntime 1.22.0, not 1.31.1" in caught.value.why


def one_node(op: str, shape: list[int], folder: Path) -> Path:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", "y"))
    graph = helper.make_graph([helper.make_node(op, ["x"], ["y"], "the_node")], "g", [x], [y])
    folder.mkdir()
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    save_graph(model, folder / "model.onnx")
    return folder / "model.onnx"


def _compile_twice(model: Path, folder: Path) -> None:
    for name in ("first", "second"):
        (folder / name).mkdir()
        compile_context(model, name, X_ELITE, folder / name)


def edited(model: Path, folder: Path, change: Callable[[ModelProto], None]) -> Path:
    shutil.copytree(model.parent, folder)
    edit(folder / model.name, change)
    return folder / model.name
