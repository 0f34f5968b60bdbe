"""A context run by QNN alone: equal to ONNX Runtime's figures, and a binary that says something else is caught."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

from pipeline import progress
from pipeline.contracts.context import PartFacts
from pipeline.contracts.emulate import SecondOpinion
from pipeline.qnn import interface
from pipeline.qnn.child import run_apart
from pipeline.qnn.format.context_binary import read_binary
from pipeline.qnn.format.graph_io import EdgeTensor
from pipeline.qnn.running.emulate import run_context
from pipeline.qnn.running.raw import run_graph
from pipeline.qnn.running.second_opinion import Arrays, second_opinion
from tests.support.contexts import X_ELITE, build, edit
from tests.support.fresh import fresh
from tests.support.graphs import graph
from tests.support.on_htp import with_rewrites
from tests.support.stage_runs import part
from tests.support.tiny_models import float_model, qdq_model, sample

NAME = "encoder_8_ctx.onnx"
FEED = {"x": sample(8, seed=3)}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("built") / "out"
    build(qdq_model(tmp_path_factory.mktemp("qdq")), out)
    return out


@pytest.fixture(scope="module")
def by_onnxruntime(built: Path) -> Arrays:
    return {"y": fresh(run_context, built, NAME, X_ELITE, [FEED])[0][0]}


def edited(built: Path, folder: Path, tensor: EdgeTensor) -> Path:
    """The context with another scale for one of its binary's tensors, wherever the binary has it."""
    shutil.copytree(built, folder)
    binary = folder / "encoder_8_ctx_qnn.bin"
    assert tensor.encoding is not None
    scale = np.float32(tensor.encoding.scale)
    data = binary.read_bytes().replace(scale.tobytes(), (scale * np.float32(1.25)).tobytes())
    binary.write_bytes(data)
    return folder


def test_a_quantized_context_is_equal(built: Path, by_onnxruntime: Arrays, tmp_path: Path) -> None:
    assert second_opinion(built, NAME, X_ELITE, FEED, by_onnxruntime, tmp_path) == SecondOpinion(1)


def test_the_emulator_tells_which_sample_of_how_many(
    built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(progress.VARIABLE, str(tmp_path / "now"))
    (tmp_path / "work").mkdir()
    run_apart(built, NAME, X_ELITE, [FEED, FEED], tmp_path / "work")
    assert progress.told(tmp_path / "now") == "on the emulator: sample 2 of 2"


def test_a_float_context_is_equal(tmp_path: Path) -> None:
    (tmp_path / "float").mkdir()
    out = tmp_path / "out"
    build(float_model(tmp_path / "float"), out)
    outputs = {"y": fresh(run_context, out, NAME, X_ELITE, [FEED])[0][0]}
    assert second_opinion(out, NAME, X_ELITE, FEED, outputs, tmp_path) == SecondOpinion(1)


def widen(model: ModelProto) -> None:
    """Take and give float64."""
    for node in model.graph.node:
        node.input[:] = ["x_single" if name == "x" else name for name in node.input]
        node.output[:] = ["y_single" if name == "y" else name for name in node.output]
    for value in (model.graph.input[0], model.graph.output[0]):
        value.type.tensor_type.elem_type = TensorProto.DOUBLE
    model.graph.node.insert(0, helper.make_node("Cast", ["x"], ["x_single"], "in", to=TensorProto.FLOAT))
    model.graph.node.append(helper.make_node("Cast", ["y_single"], ["y"], "out", to=TensorProto.DOUBLE))


def test_float64_at_the_edges_is_cast_on_the_cpu_and_followed(tmp_path: Path) -> None:
    (tmp_path / "double").mkdir()
    model, out = float_model(tmp_path / "double"), tmp_path / "out"
    edit(model, widen)
    facts = PartFacts.from_json(build(model, out))
    assert [(node.name, node.edge) for node in facts.cpu_nodes] == [("in", True), ("out", True)]
    feed = {"x": FEED["x"].astype(np.float64)}
    outputs = {"y": fresh(run_context, out, NAME, X_ELITE, [feed])[0][0]}
    assert outputs["y"].dtype == np.float64
    assert second_opinion(out, NAME, X_ELITE, feed, outputs, tmp_path) == SecondOpinion(1)


def test_a_model_that_takes_and_gives_float16_is_equal(tmp_path: Path) -> None:
    net = graph(
        "net (float16[1, 8, 16] x) => (float16[1, 8, 4] y) { y = MatMul (x, w) }",
        {"w": np.random.default_rng(3).normal(size=(16, 4)).astype(np.float16)},
    )
    component = with_rewrites(tmp_path / "net", net)
    feed = {"x": np.random.default_rng(4).normal(size=(1, 8, 16)).astype(np.float16)}
    made = part(component.quantize_all(component.calibrate([feed])), "all")
    out = tmp_path / "out"
    build(made.folder / "model.onnx", out)
    outputs = {"y": fresh(run_context, out, NAME, X_ELITE, [feed])[0][0]}
    assert outputs["y"].dtype == np.float16
    assert second_opinion(out, NAME, X_ELITE, feed, outputs, tmp_path) == SecondOpinion(1)


def test_a_constant_that_is_an_output_is_had_from_the_context_model(tmp_path: Path) -> None:
    net = graph(
        "net (float[1, 8, 16] x) => (float[1, 8, 4] y, float[2] k, float[1, 8, 16] x) { y = MatMul (x, w) }",
        {"w": np.ones((16, 4), np.float32), "k": np.array([1.5, -2], np.float32)},
    )
    out = tmp_path / "out"
    build(with_rewrites(tmp_path / "net", net).rewrite["all"].folder / "model.onnx", out)
    feed = {"x": np.random.default_rng(4).normal(size=(1, 8, 16)).astype(np.float32)}
    outputs = dict(zip(("y", "k", "x"), fresh(run_context, out, NAME, X_ELITE, [feed])[0], strict=True))
    assert outputs["k"].tolist() == [1.5, -2]
    assert second_opinion(out, NAME, X_ELITE, feed, outputs, tmp_path) == SecondOpinion(1)


@pytest.mark.parametrize("kind", ["inputs", "outputs"])
def test_an_encoding_edited_by_hand_is_caught(kind: str, built: Path, by_onnxruntime: Arrays, tmp_path: Path) -> None:
    tensors = getattr(read_binary(built / "encoder_8_ctx_qnn.bin").graphs[0], kind)
    folder = edited(built, tmp_path / "edited", tensors[0])
    # ONNX Runtime alone does not notice: it never looks at the binary's encodings.
    assert fresh(run_context, folder, NAME, X_ELITE, [FEED])[0][0].shape == by_onnxruntime["y"].shape
    told = second_opinion(folder, NAME, X_ELITE, FEED, by_onnxruntime, tmp_path).disagreements
    assert any(f"{tensors[0].name!r} is encoded with scale" in line for line in told)
    assert any("output 'y' differs in" in line for line in told)


def test_another_result_is_told_with_its_values(built: Path, by_onnxruntime: Arrays, tmp_path: Path) -> None:
    other = by_onnxruntime["y"].copy()
    other[0, 7, 31] = 5
    told = second_opinion(built, NAME, X_ELITE, FEED, {"y": other}, tmp_path).disagreements
    assert told == (
        f"output 'y' differs in 1 of 256 values, the first is {by_onnxruntime['y'][0, 7, 31]:g}, 5 by ONNX Runtime",
    )


def test_a_binary_that_qnn_refuses_is_told(built: Path, by_onnxruntime: Arrays, tmp_path: Path) -> None:
    folder = tmp_path / "other"
    shutil.copytree(built, folder)
    binary = folder / "encoder_8_ctx_qnn.bin"
    data = bytearray(binary.read_bytes())
    data[len(data) // 2 :] = bytes(len(data) - len(data) // 2)
    binary.write_bytes(data)
    opinion = second_opinion(folder, NAME, X_ELITE, FEED, by_onnxruntime, tmp_path)
    assert opinion.disagreements


def refusal(core: int, minor: int, binary: Path, graph: str) -> str:
    """What is said where these are the versions that are known; in a process of its own."""
    interface.CORE_API, interface.LEAST_MINOR = core, minor
    try:
        run_graph(binary, graph, X_ELITE.soc_model, FEED)
    except interface.QnnError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(("core", "minor"), [(3, 0), (2, 9999)])
def test_versions_of_the_interface_are_checked(core: int, minor: int, built: Path) -> None:
    binary = built / "encoder_8_ctx_qnn.bin"
    graph = read_binary(binary).graphs[0].name
    said = fresh(refusal, core, minor, binary, graph)
    assert said.startswith("QNN's HTP library has core API 2.")
    assert f"known here are {core}.{minor} and later" in said


def test_the_program_does_not_load_onnxruntime() -> None:
    code = "import sys, pipeline.qnn.running.raw; sys.exit('onnxruntime' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
