"""ingest: any model that can be built comes out in normal form and computes the same; any other is refused."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper, version_converter

from pipeline.errors import ModelError, SourceError
from pipeline.graph.files.model_file import (
    EXTERNAL_BYTES,
    MODEL,
    WEIGHTS,
    byte_size,
    external_range,
    is_external,
    load_graph,
    set_external,
    tensor_array,
)
from pipeline.graph.ir.traverse import all_tensors
from pipeline.graph.shapes.normal_form import OPSET
from pipeline.model import FileEntry, StageInput, StageRequest
from pipeline.stages import ingest
from tests.support.sources import fetched, ingested, model, move_to_external, numbers, outputs, same
from tests.support.stage_runs import run_stage

LINEAR = "g (float[batch,16] x) => (float[batch,32] y) { y = MatMul (x, w) }"


def graph_of(root: Path, source: ModelProto) -> ModelProto:
    return load_graph(ingested(root, source).folder / MODEL)


def test_facts_and_files(tmp_path: Path) -> None:
    fetch = fetched(tmp_path / "fetch", model(LINEAR, {"w": numbers(16, 32)}))
    taken = run_stage("ingest", tmp_path / "out", {"file": MODEL}, {"fetch": fetch})
    assert taken.facts == {
        "inputs": [{"name": "x", "dtype": "float32", "shape": ["batch", 16]}],
        "outputs": [{"name": "y", "dtype": "float32", "shape": ["batch", 32]}],
        "constants": {},
        "opset": 17,
        "nodes": 1,
        "axes": {"batch": ["x"]},
    }
    assert taken.files.keys() == {MODEL, WEIGHTS}
    assert taken.files[WEIGHTS] == fetch.files[MODEL]


def test_normal_form(tmp_path: Path) -> None:
    source = model(
        """g (float[batch,?] x, float[512] w) => (float[batch,n] y) {
            one = Constant <value_float = 1.0> ()
            big = Constant <value_floats = [2.0, 3.0]> ()
            [twice] a = Add (x, one)
            [twice] b = Mul (a, one)
            c = Mul (b, w)
            y = Identity (c)
            dead = Add (a, unused)
        }""",
        {"w": numbers(512), "unused": numbers(512)},
    )
    source.doc_string = source.graph.doc_string = source.graph.node[2].doc_string = "made at 12:34"
    source.graph.metadata_props.add(key="when", value="now")
    source.graph.node[3].metadata_props.add(key="file", value="/home/someone/model.py")
    source.producer_version = "1.2.3"
    graph = graph_of(tmp_path, source)
    assert [node.name for node in graph.graph.node] == ["twice", "twice_1", "c", "y"]
    assert [value.name for value in graph.graph.input] == ["x"]
    assert [dim.dim_param for dim in graph.graph.input[0].type.tensor_type.shape.dim] == ["batch", "x[1]"]
    assert {tensor.name: is_external(tensor) for tensor in graph.graph.initializer} == {"one": False, "w": True}
    text = graph.SerializeToString()
    assert not any(word in text for word in (b"12:34", b"someone", b"when", b"1.2.3"))


def test_what_nobody_reads_is_only_in_the_places_of_the_weights(tmp_path: Path) -> None:
    source = model(LINEAR, {"w": numbers(16, 32)})
    first = graph_of(tmp_path / "a", source)
    source.producer_name, source.doc_string = "exporter", "exported elsewhere"
    second = graph_of(tmp_path / "b", source)
    for graph in (first, second):
        set_external(graph.graph.initializer[0], WEIGHTS, 0, 2048)
    assert first.SerializeToString() == second.SerializeToString()


def test_external_data_beside_the_model(tmp_path: Path) -> None:
    source = model(LINEAR, {"w": numbers(16, 32)})
    expected = numpy_helper.to_array(source.graph.initializer[0])
    move_to_external(source, tmp_path / "fetch" / "onnx", "data/model.onnx_data")
    fetch = fetched(tmp_path / "fetch", source, "onnx/model.onnx")
    taken = run_stage("ingest", tmp_path / "out", {"file": "onnx/model.onnx"}, {"fetch": fetch})
    tensor = load_graph(taken.folder / MODEL).graph.initializer[0]
    assert external_range(tensor).location == WEIGHTS
    assert np.array_equal(tensor_array(tensor, taken.folder), expected)


def test_constants_that_are_others_in_other_dims_are_the_same_bytes(tmp_path: Path) -> None:
    weight = numbers(16, 16)
    graph = graph_of(
        tmp_path,
        model(
            """g (float[batch,16] x) => (float[batch,16] y) {
                tied = Identity (w)
                flat = Reshape (v, square)
                a = MatMul (x, w)  b = MatMul (a, tied)  y = MatMul (b, flat)
            }""",
            {"w": weight, "v": weight.reshape(-1), "square": np.array([16, 16])},
        ),
    )
    tensors = {tensor.name: tensor for tensor in graph.graph.initializer}
    assert list(tensors) == ["w", "tied", "flat"]
    assert external_range(tensors["w"]) == external_range(tensors["tied"])
    assert {external_range(tensor).location for tensor in tensors.values()} == {WEIGHTS}
    assert [*tensors["flat"].dims] == [16, 16]
    assert np.array_equal(tensor_array(tensors["flat"], tmp_path / "ingest"), weight)


def branches() -> ModelProto:
    source = model(
        """g (float[n,400] x, bool flag) => (float[n,400] y) {
            y = If (flag) <
                then_branch = t () => (float[n,400] a) { b = Add (x, inner)  a = Add (b, made) },
                else_branch = e () => (float[n,400] b) { b = Mul (x, w) }
            >
        }""",
        {"w": numbers(400)},
    )
    then = source.graph.node[0].attribute[0].g
    then.initializer.append(numpy_helper.from_array(numbers(400), "inner"))
    then.node.insert(0, helper.make_node("Constant", [], ["made"], value=numpy_helper.from_array(numbers(400))))
    return source


SAME: dict[str, tuple[ModelProto, dict[str, NDArray[Any]]]] = {
    "functions": (
        model(
            """g (float[n,4] x) => (float[n,4] y) { a = local.twice (x)  y = local.outer (a, w) }
            <domain: "local", opset_import: ["" : 17]> twice (x) => (y) { y = Add (x, x) }
            <domain: "local", opset_import: ["" : 17, "local" : 1]> outer (x, w) => (y) {
                a = local.twice (x)  y = Mul (a, w) }""",
            {"w": numbers(4)},
        ),
        {"x": numbers(3, 4)},
    ),
    "constants folded": (
        model(
            """g (float[n,16] x) => (float[n,32] y) {
                turned = Transpose <perm = [1, 0]> (w)
                half = Cast <to = 1> (narrow)
                scaled = Mul (turned, half)
                y = MatMul (x, scaled)
            }""",
            {"w": numbers(32, 16), "narrow": np.float16(0.5)},
        ),
        {"x": numbers(3, 16)},
    ),
    "weights split when they are written": (
        model(
            """g (float[n,512] x) => (float[512,512] y) {
                q, k = Split <axis = 1> (w)  a = Add (x, k)  y = Mul (a, q)
            }""",
            {"w": numbers(512, 1024)},
        ),
        {"x": numbers(1, 512)},
    ),
    "branches with weights": (branches(), {"x": numbers(3, 400), "flag": np.array(True)}),
    "contributed operators": (
        model("g (float[n,4] x) => (float[n,4] y) { y = com.microsoft.Gelu (x) }"),
        {"x": numbers(3, 4)},
    ),
    "opset 11": (
        model(
            """g (float[n,4,6] x) => (float[n,24] y) {
                a = Softmax <axis = 1> (x)
                s = ReduceSum <axes = [1], keepdims = 0> (a)
                u = Unsqueeze <axes = [1]> (s)
                b, c = Split <axis = 2> (a)
                d = Concat <axis = 2> (c, b)
                e = Add (d, u)
                z = Dropout <ratio = 0.5> (e)
                f = com.microsoft.Gelu (z)
                y = Flatten (f)
            }""",
            {"w": numbers(24)},
            opset=11,
        ),
        {"x": numbers(3, 4, 6)},
    ),
    "one large initializer of opset 12": (
        model("g (float[n,400] x) => (float[n,400] y) { y = Add (x, w) }", {"w": numbers(400)}, opset=12),
        {"x": numbers(3, 400)},
    ),
}


@pytest.mark.parametrize("case", SAME)
def test_the_model_computes_the_same(case: str, tmp_path: Path) -> None:
    source, feeds = SAME[case]
    taken = ingested(tmp_path, source)
    graph = load_graph(taken.folder / MODEL)
    assert not graph.functions
    assert all(not (node.op_type == "Constant" or node.domain == "local") for node in graph.graph.node)
    initializers = graph.graph.initializer
    assert all(is_external(each) == (byte_size(each) >= EXTERNAL_BYTES) for each in initializers)
    assert not any(is_external(each) for each in all_tensors(graph.graph) if each not in initializers)
    assert same(outputs(taken.folder / MODEL, feeds), outputs(source, feeds))


def test_branches_run_from_files_of_several_names(tmp_path: Path) -> None:
    """As the inputs of a step are: onnxruntime takes a subgraph's external data from a file of one name only."""
    source, feeds = SAME["branches with weights"]
    taken = ingested(tmp_path, source)
    linked = tmp_path / "linked"
    linked.mkdir()
    for file in taken.folder.iterdir():
        (linked / file.name).hardlink_to(file)
    assert same(outputs(linked / MODEL, feeds), outputs(source, feeds))


def test_folded_weights_replace_their_sources(tmp_path: Path) -> None:
    graph = graph_of(tmp_path, SAME["constants folded"][0])
    assert [(tensor.name, [*tensor.dims]) for tensor in graph.graph.initializer] == [("scaled", [16, 32])]
    assert [node.op_type for node in graph.graph.node] == ["MatMul"]


def test_random_numbers_are_not_folded(tmp_path: Path) -> None:
    source = model("g (float[2] x) => (float[2] y) { r = RandomNormal <shape = [2]> ()  y = Add (x, r) }")
    assert [node.op_type for node in graph_of(tmp_path, source).graph.node] == ["RandomNormal", "Add"]


@pytest.mark.parametrize(
    ("operator", "version", "constants"),
    [
        ("Resize (x, s)", 10, {"s": np.array([1, 1, 2, 1.7], np.float32)}),
        ("Upsample (x, s)", 9, {"s": np.array([1, 1, 2, 1.7], np.float32)}),
        ("Hardmax (x)", 11, {}),
    ],
)
def test_operators_refused_for_their_opset_would_change(
    operator: str, version: int, constants: dict[str, NDArray[Any]]
) -> None:
    source = model(f"g (float[1,3,4,5] x) => (float[?,?,?,?] y) {{ y = {operator} }}", constants, opset=version)
    converted = version_converter.convert_version(source, OPSET)
    feeds = {"x": numbers(1, 3, 4, 5)}
    assert not same(outputs(source, feeds), outputs(converted, feeds))


def test_external_data_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"\0" * 2048)
    source = model(LINEAR, {"w": numbers(16, 32)})
    for location in ("../secret", str(tmp_path / "secret"), "link"):
        root = tmp_path / location.replace("/", "_")
        move_to_external(source, tmp_path, "unused")
        source.graph.initializer[0].external_data[0].value = location
        fetch = fetched(root, source)
        (root / "link").symlink_to(tmp_path / "secret")
        with pytest.raises(ModelError, match="leads out of the model's folder") as caught:
            run_stage("ingest", root / "out", {"file": MODEL}, {"fetch": fetch})
        assert caught.value.exit_code == 12
        source = model(LINEAR, {"w": numbers(16, 32)})


def test_weights_with_nan_are_refused_and_infinities_are_not(tmp_path: Path) -> None:
    weights = numbers(16, 32)
    weights[3, 5] = -np.inf
    ingested(tmp_path / "a", model(LINEAR, {"w": weights}))
    weights[3, 6] = np.nan
    with pytest.raises(ModelError, match="tensor 'w' holds NaN"):
        ingested(tmp_path / "b", model(LINEAR, {"w": weights}))


def test_tensors_that_lie_about_their_size_are_refused(tmp_path: Path) -> None:
    source = model(LINEAR, {"w": numbers(16, 32)})
    source.graph.initializer[0].dims[0] = 2**60
    with pytest.raises(ModelError, match="external data of tensor 'w'"):
        ingested(tmp_path, source)


def test_a_file_the_source_lacks_is_named(tmp_path: Path) -> None:
    fetch = fetched(tmp_path / "fetch", model(LINEAR, {"w": numbers(16, 32)}))
    with pytest.raises(SourceError, match=r"the source has no file 'onnx/model\.onnx'") as caught:
        run_stage("ingest", tmp_path / "out", {"file": "onnx/model.onnx"}, {"fetch": fetch})
    assert caught.value.why == "it has model.onnx"


def test_hostile_names_are_taken_as_they_are(tmp_path: Path) -> None:
    source = model("g (float[n,4] x) => (float[n,4] y) { a = Relu (x)  y = Neg (a) }")
    source.graph.node[0].name = "a b\n\"'"
    source.graph.node[0].output[0] = source.graph.node[1].input[0] = "이름" * 150
    source.graph.node[1].name = "../../etc"
    taken = ingested(tmp_path, source)
    assert [node.name for node in load_graph(taken.folder / MODEL).graph.node] == ["a b\n\"'", "../../etc"]


@pytest.mark.slow
def test_models_over_two_gigabytes(tmp_path: Path) -> None:
    """Three weights of 0.8 GB in a sparse file: none of them is written or held."""
    rows = 200_000_000
    text = "a = Gather (u, i)  b = Gather (v, i)  c = Gather (w, i)  y = Sum (a, b, c)"
    source = model(f"g (int64[n] i) => (float[n] y) {{ {text} }}")
    folder = tmp_path / "fetch"
    folder.mkdir()
    for number, name in enumerate("uvw"):
        tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[rows], data_location=TensorProto.EXTERNAL)
        for key, value in (("location", "big"), ("offset", str(4 * rows * number)), ("length", str(4 * rows))):
            tensor.external_data.add(key=key, value=value)
        source.graph.initializer.append(tensor)
    with (folder / "big").open("wb") as file:
        file.truncate(12 * rows)
    (folder / MODEL).write_bytes(source.SerializeToString())
    assert (folder / "big").stat().st_size > 2**31
    fetch = StageInput(folder, {MODEL: FileEntry("", 0), "big": FileEntry("", 0)}, {})
    out = tmp_path / "out"
    out.mkdir()
    tracemalloc.start()
    taken = ingest.run(StageRequest("ingest:test", {"file": MODEL}, {"fetch": fetch}, {}, out))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert taken.reused == {WEIGHTS: ("fetch", "big")}
    assert [path.name for path in out.iterdir()] == [MODEL]
    assert peak < 64 << 20
