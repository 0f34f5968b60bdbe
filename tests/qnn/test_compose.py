"""DLCs: composed for HTP to what their contexts are, refused with the operator's name, and read by another's parser."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from ml_dtypes import int4
from onnx import TensorProto, helper, numpy_helper

from pipeline.contracts.target import HtpTarget
from pipeline.errors import CompileError
from pipeline.graph.files.model_file import load_graph, save_graph, tensor_array
from pipeline.qnn import interface
from pipeline.qnn.child import compose_apart, write_dlc_apart
from pipeline.qnn.compiling.compose import compose
from pipeline.qnn.compiling.composed import check_composed, compare
from pipeline.qnn.format.context_binary import GraphInfo, read_binary
from pipeline.qnn.libraries import sdk_library
from pipeline.qnn.session import session_options
from tests.support import netron_dlc
from tests.support.block_models import in_blocks
from tests.support.contexts import X_ELITE, build
from tests.support.fresh import fresh
from tests.support.tiny_models import float_model, qdq_model
from tests.support.uv_command import find_uv

pytestmark = pytest.mark.slow

NAME = "encoder_8"
BINARY = f"{NAME}_ctx_qnn.bin"


@pytest.fixture(scope="module", params=[qdq_model, float_model])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Callable[[Path], Path] = request.param
    return made(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def context(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("built") / "out"
    build(model, out)
    return out / BINARY


@pytest.fixture(scope="module")
def graph(context: Path) -> GraphInfo:
    return read_binary(context).graphs[0]


@pytest.fixture(scope="module")
def dlc(model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A DLC, and the name of its graph."""
    work = tmp_path_factory.mktemp("dlc")
    return work / f"{NAME}.dlc", write_dlc_apart(model, NAME, X_ELITE, work / f"{NAME}.dlc", work)


@pytest.fixture(scope="module")
def composed(dlc: tuple[Path, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compose_apart(*dlc, X_ELITE, tmp_path_factory.mktemp("composed"))


def test_it_gives_what_the_context_gives(composed: Path, context: Path, graph: GraphInfo, tmp_path: Path) -> None:
    own = check_composed(composed, context, graph, X_ELITE)
    assert (own.vtcm_mb, own.optimization_mode) == (graph.vtcm_mb, graph.optimization_mode) == (8, 3)
    compare(composed, own, context, graph, X_ELITE, tmp_path)


def test_equal_models_give_equal_bytes(model: Path, dlc: tuple[Path, str], tmp_path: Path) -> None:
    again = tmp_path / "again.dlc"
    assert write_dlc_apart(model, NAME, X_ELITE, again, tmp_path) == dlc[1]
    assert again.read_bytes() == dlc[0].read_bytes()


def test_netron_reads_the_same_graph(dlc: tuple[Path, str], graph: GraphInfo, tmp_path: Path) -> None:
    if shutil.which("node") is None or find_uv() is None:
        pytest.skip("Netron needs Node to run and uv to be fetched, and one of them is not here")
    found = netron_dlc.read(dlc[0], tmp_path)
    assert (found["graphs"], found["name"]) == (1, dlc[1])
    kinds = {0: graph.inputs, 1: graph.outputs}
    for location, tensors in kinds.items():
        told = [each for each in found["tensors"] if each["location"] == location]
        named = {tensor.name: (f"{'q' * bool(tensor.encoding)}{tensor.dtype}", [*tensor.shape]) for tensor in tensors}
        assert {each["name"]: (each["dtype"], each["shape"]) for each in told} == named
    assert "FullyConnected" in {node["type"] for node in found["nodes"]}


def test_other_weights_are_noticed(model: Path, context: Path, graph: GraphInfo, tmp_path: Path) -> None:
    other = tmp_path / "other" / model.name
    shutil.copytree(model.parent, other.parent)
    changed = load_graph(other)
    tensor = max(changed.graph.initializer, key=lambda each: int(np.prod(each.dims)))
    mirrored = np.ascontiguousarray(np.flip(tensor_array(tensor, model.parent)))
    tensor.CopyFrom(numpy_helper.from_array(mirrored, tensor.name))
    save_graph(changed, other)
    graph_name = write_dlc_apart(other, NAME, X_ELITE, tmp_path / "x.dlc", tmp_path)
    composed = compose_apart(tmp_path / "x.dlc", graph_name, X_ELITE, tmp_path)
    own = check_composed(composed, context, graph, X_ELITE)
    with pytest.raises(CompileError, match="what a DLC is composed to is not what its context is") as error:
        compare(composed, own, context, graph, X_ELITE, tmp_path)
    assert "output 'y' differs in" in error.value.why


def test_what_is_for_another_chip_is_refused(composed: Path, context: Path, graph: GraphInfo) -> None:
    with pytest.raises(CompileError) as error:
        check_composed(composed, context, graph, HtpTarget(57, 75, 8))
    assert error.value.why == "its SoC is 60, 57 was asked for"


def test_another_edge_is_refused(composed: Path, context: Path, graph: GraphInfo) -> None:
    other = GraphInfo(graph.name, 8, 3, 0, graph.inputs, ())
    with pytest.raises(CompileError) as error:
        check_composed(composed, context, other, X_ELITE)
    assert error.value.why.startswith("its outputs are y: ")


def by_the_ep(model: Path, out: Path, *, htp: bool) -> str:
    """Write a DLC by the EP, which asks HTP about each node or not; the graph's name."""
    options = {"dump_qnn_ir_dlc": "1", "dump_qnn_ir_dlc_dir": ".", "qnn_ir_backend_path": str(sdk_library("QnnIr"))}
    settings = session_options(X_ELITE, options if htp else options | {"backend_type": "ir", "backend_path": ""})
    with contextlib.chdir(out):
        ort.InferenceSession(model, settings)
    (written,) = out.glob("*.dlc")
    return written.stem


def test_what_htp_does_not_take_is_named(tmp_path: Path) -> None:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 8]) for name in "xy"]
    node = helper.make_node("Asin", ["x"], ["y"], name="/head/Asin")
    body = helper.make_graph([node], "g", values[:1], values[1:])
    model = helper.make_model(body, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    save_graph(model, tmp_path / "model.onnx")
    # As an export writes it, HTP is asked about each node first, and refuses.
    with pytest.raises(CompileError, match="QNN wrote 0 DLCs of net, not one") as error:
        write_dlc_apart(tmp_path / "model.onnx", "net", X_ELITE, tmp_path / "x.dlc", tmp_path)
    assert "Asin '/head/Asin'" in error.value.why
    (tmp_path / "ir").mkdir()
    graph = fresh(partial(by_the_ep, htp=False), tmp_path / "model.onnx", tmp_path / "ir")
    with pytest.raises(CompileError) as error:
        compose_apart(tmp_path / "ir" / f"{graph}.dlc", graph, X_ELITE, tmp_path)
    assert error.value.what == f"SoC 60 (HTP v73) does not take /head/Asin of {graph}.dlc"
    assert "QnnBackend_validateOpConfig failed 3110" in error.value.why


@pytest.mark.parametrize("kind", [int4, np.int8])
def test_weights_in_blocks_are_refused_as_qnn_crashes_on_them(kind: type, tmp_path: Path) -> None:
    save_graph(in_blocks(kind, 0), tmp_path / "model.onnx")
    with pytest.raises(CompileError) as error:
        write_dlc_apart(tmp_path / "model.onnx", "net", X_ELITE, tmp_path / "x.dlc", tmp_path)
    assert error.value.what == "MatMul 'product' can't be in a DLC, as its weight has scales in blocks"
    (tmp_path / "dlc").mkdir()
    graph = fresh(partial(by_the_ep, htp=True), tmp_path / "model.onnx", tmp_path / "dlc")
    with pytest.raises(CompileError) as error:
        compose_apart(tmp_path / "dlc" / f"{graph}.dlc", graph, X_ELITE, tmp_path)
    assert "killed by signal 11 (SIGSEGV)" in error.value.why


def test_a_damaged_file_is_refused(dlc: tuple[Path, str], tmp_path: Path) -> None:
    path, graph = dlc
    data = path.read_bytes()
    (tmp_path / "x.dlc").write_bytes(data[: len(data) // 2])
    with pytest.raises(CompileError, match=r"does not take the graph of x\.dlc") as error:
        compose_apart(tmp_path / "x.dlc", graph, X_ELITE, tmp_path)
    assert "QNN's systemDlcCreateFromFile gives error" in error.value.why


def refusal(minor: int, dlc: Path, graph: str, out: Path) -> str:
    interface.COUNTED_MINOR = minor
    try:
        compose(dlc, graph, X_ELITE.soc_model, out, optimization=3)
    except interface.QnnError as error:
        return str(error)
    return ""


def test_an_interface_of_unknown_size_is_given_to_nobody(dlc: tuple[Path, str], tmp_path: Path) -> None:
    said = fresh(refusal, 41, *dlc, tmp_path / "x.bin")
    assert said.endswith("how large its table of functions is, is known of 2.41")
    assert not (tmp_path / "x.bin").exists()
