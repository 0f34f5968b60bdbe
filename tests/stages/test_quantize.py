from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper

from pipeline.contracts.quantize import PartFacts
from pipeline.contracts.scheme import Rule, Scheme
from pipeline.errors import QuantizationError
from pipeline.graph.files.blob_writer import BlobWriter
from pipeline.graph.files.model_file import load_graph, set_external, tensor_array
from pipeline.graph.ir.index import GraphIndex
from pipeline.graph.quantization.calibration.observe import Observer
from pipeline.graph.quantization.calibration.ranges import Range, read_ranges, write_ranges
from pipeline.graph.quantization.quantizer import float_nodes, quantize
from pipeline.graph.quantization.weights.constant_store import EncodedConstant, InBlobs, SharedConstants
from pipeline.graph.quantization.weights.weight_encodings import Integers
from pipeline.model import StageInput
from tests.support.figures import array_db
from tests.support.graphs import attention, graph, operators, outputs, save
from tests.support.sentences import BUCKETS, CALLS
from tests.support.stage_runs import Component, given, heard, part


def constants(quantized: StageInput) -> dict[str, bytes]:
    """Every tensor of a QDQ model, by name."""
    model = load_graph(quantized.folder / "model.onnx")
    return {
        tensor.name: repr(tensor.dims).encode() + tensor_array(tensor, quantized.folder).tobytes()
        for tensor in model.graph.initializer
    }


def padded(call: dict[str, NDArray[Any]], size: int) -> dict[str, NDArray[Any]]:
    return {name: np.pad(array, ((0, 0), (0, size - array.shape[1]))) for name, array in call.items()}


def test_scales_of_many_channels_can_be_forecast(tmp_path: Path) -> None:
    weights = np.random.default_rng(0).normal(size=(2, 512)).astype(np.float32)
    model = graph("g (float[1,2] x) => (float[1,512] y) { y = MatMul (x, w) }", {"w": weights})
    wide = Component(tmp_path, model, {"all": {}})
    calls = [{"x": np.array([[1, -1]], np.float32)}]
    quantized = wide.quantize("all", wide.calibrate(calls))
    scales = constants(quantized)["w_scale"]
    assert len(scales) > 512, "they lie in the blob, which was still being written"


def test_all_buckets_have_the_same_encodings_and_the_same_weights(component: Component, ranges: StageInput) -> None:
    made = component.quantize_all(ranges)

    assert sorted(made.files) == ["net_16.onnx", "net_16_constants.bin", "net_8.onnx", "net_weights.bin"]
    short, long = (part(made, bucket) for bucket in BUCKETS)
    assert short.files["net_weights.bin"] == long.files["net_weights.bin"] == made.files["net_weights.bin"]
    short_constants, long_constants = constants(short), constants(long)
    assert short_constants.keys() == long_constants.keys()
    different = [name for name, data in short_constants.items() if data != long_constants[name]]
    assert different == ["positions_quantized"], "only the positions themselves depend on the bucket"
    encodings = [name for name in short_constants if name.endswith(("_scale", "_zero_point"))]
    assert len(encodings) == 60


def test_a_bucket_comes_out_the_same_whichever_others_are_made_with_it(
    component: Component, ranges: StageInput
) -> None:
    made = component.quantize_all(ranges)
    for bucket in BUCKETS:
        alone, together = component.quantize(bucket, ranges), part(made, bucket)
        assert (alone.files, alone.facts) == (together.files, together.facts)


def test_a_constant_is_encoded_once_for_all_buckets(tmp_path: Path) -> None:
    constant = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2, 300])
    set_external(constant, "weights.bin", 0, 2400)
    calls: list[str] = []
    with BlobWriter(tmp_path / "all.bin") as blob, BlobWriter(tmp_path / "own.bin") as own:
        shared = SharedConstants(blob)

        def encoded(bucket: str, digest: str, how: str, alone: tuple[str, ...] = ()) -> EncodedConstant:
            def encode() -> Integers:
                calls.append(bucket)
                return Integers(np.full((2, 300), len(calls), np.int16), np.array(1.0), np.array(0, np.int16))

            return InBlobs(shared, own, alone, {"weights.bin": digest}).encoded(constant, how, encode)

        first, again = encoded("8", "digest", "uint16"), encoded("16", "digest", "uint16")
        assert calls == ["8"]
        assert first.values.external_data == again.values.external_data
        assert first is not again, "each bucket has a DQ node of its own"
        encoded("16", "digest", "uint8")
        encoded("16", "other weights", "uint16")
        encoded("16", "digest", "uint16", alone=("w",))
    assert calls == ["8", "16", "16", "16"]
    assert (tmp_path / "own.bin").stat().st_size == 1200


def test_the_weights_of_a_bucket_alone_are_in_a_blob_of_their_own(component: Component, ranges: StageInput) -> None:
    long = load_graph(component.quantize("16", ranges).folder / "model.onnx")
    blobs = {tensor.name: tensor.external_data[0].value for tensor in long.graph.initializer if tensor.external_data}
    assert blobs.pop("positions_quantized") == "net_16_constants.bin"
    assert set(blobs.values()) == {"net_weights.bin"}


def test_constants_that_stay_in_float_count_in_16_bits(component: Component, ranges: StageInput) -> None:
    def bytes_of(*rules: Rule) -> dict[str, int]:
        facts = PartFacts.from_json(component.quantize("16", ranges, rules=rules).facts)
        return {kind: count.bytes for kind, count in facts.constants.items()}

    mixed, in_float = bytes_of(), bytes_of(Rule(ops=("MatMul", "Gemm", "Gather"), precision="fp16"))
    assert in_float["float16"] >= mixed.get("float16", 0) + 2 * mixed["uint8"]
    assert in_float.get("uint8", 0) < mixed["uint8"]


def test_quantization_costs_little(component: Component, ranges: StageInput) -> None:
    call = CALLS[-1]
    truth = outputs(component.ingest.folder / "model.onnx", call)["hidden"]
    accuracy = {}
    for per_channel in (True, False):
        quantized = component.quantize("16", ranges, per_channel=per_channel)
        result = outputs(quantized.folder / "model.onnx", padded(call, 16))["hidden"][:, :14]
        accuracy[per_channel] = array_db(truth, result)

    assert accuracy[True] > 38
    assert accuracy[True] > accuracy[False] + 3, "a scale for each column is what makes the difference"


def test_an_original_with_the_usual_mask_is_as_accurate_as_one_with_a_small_one(tmp_path: Path) -> None:
    results = {}
    for filler in (float(np.finfo(np.float32).min), -np.inf, -100.0):
        component = Component(tmp_path / str(filler), attention(filler=filler), {"16": {"sequence": 16}})
        quantized = component.quantize("16", component.calibrate(CALLS))
        results[filler] = outputs(quantized.folder / "model.onnx", padded(CALLS[1], 16))["hidden"][:, :5]
    first, *others = results.values()
    for other in others:
        np.testing.assert_array_equal(other, first)


def test_inputs_and_outputs_stay_as_they_were(component: Component, ranges: StageInput) -> None:
    quantized = component.quantize("8", ranges)
    assert quantized.facts["inputs"] == component.rewrite["8"].facts["inputs"]
    assert quantized.facts["outputs"] == component.rewrite["8"].facts["outputs"]


def test_everything_between_the_edges_is_quantized(component: Component, ranges: StageInput) -> None:
    quantized = component.quantize("8", ranges)

    assert quantized.facts["float_nodes"] == []
    model = load_graph(quantized.folder / "model.onnx")
    compute = Counter({op: n for op, n in operators(model).items() if not op.endswith("Linear")})
    assert compute == operators(load_graph(component.rewrite["8"].folder / "model.onnx"))
    assert quantized.facts["nodes"] == sum(compute.values())


@pytest.mark.parametrize(
    ("activations", "weights", "name"),
    [
        ("uint16", "uint8", "w8a16"),
        ("uint16", "int8", "w8a16"),
        ("uint8", "uint8", "w8a8"),
        ("uint8", "int8", "w8a8"),
    ],
)
def test_types_are_those_asked_for(
    component: Component, ranges: StageInput, activations: str, weights: str, name: str
) -> None:
    quantized = component.quantize("8", ranges, activations=activations, weights=weights)

    assert quantized.facts["scheme"] == name
    types = {
        tensor.name: onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).name
        for tensor in load_graph(quantized.folder / "model.onnx").graph.initializer
    }
    assert types["query_zero_point"] == activations
    assert types["words_quantized"] == activations, "a table is looked up in, so its rows are activations"
    assert types["wq_quantized"] == weights
    assert types["b1_quantized"] == activations
    # HTP takes no int8 here next to 16 bit activations.
    assert types["gamma_quantized"] == "uint8"
    assert types["beta_quantized"] == "int32"


def test_the_output_is_well_formed(component: Component, ranges: StageInput) -> None:
    quantized = component.quantize("8", ranges)
    path = quantized.folder / "model.onnx"
    onnx.checker.check_model(str(path))
    model = load_graph(path)
    made = [name for node in model.graph.node for name in node.output]
    names = [*made, *(tensor.name for tensor in model.graph.initializer), *(value.name for value in model.graph.input)]
    assert len(names) == len(set(names)), "no value has two makers"
    nodes = [node.name for node in model.graph.node]
    assert len(nodes) == len(set(nodes)), "no two nodes share a name"
    assert not model.metadata_props
    assert not model.producer_name


def test_bytes_do_not_depend_on_the_process(component: Component, ranges: StageInput, tmp_path: Path) -> None:
    expected = component.quantize_all(ranges, buckets=["8"])
    script = """
import sys
from pathlib import Path
from tests.support.stage_runs import given, run_stage
rewritten, calibrated, out = map(Path, sys.argv[1:])
inputs = {"rewrite/8": given(rewritten, {}), "calibrate": given(calibrated, {})}
scheme = {"activations": "uint16", "weights": "uint8", "per_channel": True}
run_stage("quantize", out, {"component": "net", "buckets": {"8": {}}, "scheme": scheme}, inputs)
"""
    for seed in ("1", "2"):
        out = tmp_path / seed
        folders = map(str, (component.rewrite["8"].folder, ranges.folder, out))
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        subprocess.run(
            [sys.executable, "-c", script, *folders], check=True, env=environment, cwd=Path(__file__).parents[2]
        )
        assert given(out, {}).files == expected.files


def test_a_value_without_a_range_is_named(component: Component, ranges: StageInput, tmp_path: Path) -> None:
    known = read_ranges(ranges.folder / "ranges.json")
    del known["scaled"]
    folder = tmp_path / "calibrate"
    folder.mkdir()
    write_ranges(known, folder / "ranges.json")
    with pytest.raises(QuantizationError, match=r"(?s)value 'scaled' has no calibrated range.*\(Div\)"):
        component.quantize("8", given(folder, {}))


OPERATORS: dict[str, tuple[str, dict[str, tuple[int, ...]], list[int], dict[str, int | None]]] = {
    "MatMul": ("y = MatMul (x, w)", {"w": (8, 4)}, [1, 4, 4], {"w": 1}),
    "MatMul, matrix on the left": ("y = MatMul (w, x)", {"w": (3, 4)}, [1, 3, 8], {"w": None}),
    "MatMul, stack of matrices": ("y = MatMul (x, w)", {"w": (1, 8, 4)}, [1, 4, 4], {"w": 2}),
    "Gemm": ("f = Squeeze (x) y = Gemm (f, w, b)", {"w": (8, 3), "b": (3,)}, [4, 3], {"w": 1}),
    "Gemm, transposed": ("f = Squeeze (x) y = Gemm <transB = 1> (f, w)", {"w": (3, 8)}, [4, 3], {"w": 0}),
    "Conv": ("y = Conv (x, w, b)", {"w": (6, 4, 3), "b": (6,)}, [1, 6, 6], {"w": 0, "b": 0}),
    "ConvTranspose": ("y = ConvTranspose (x, w)", {"w": (4, 2, 2)}, [1, 2, 9], {"w": 1}),
    "ConvTranspose, groups": (
        "y = ConvTranspose <group = 2> (x, w, b)", {"w": (4, 3, 2), "b": (6,)}, [1, 6, 9], {"w": None},
    ),
    "PRelu": ("y = PRelu (x, w)", {"w": (4, 1)}, [1, 4, 8], {"w": None}),
    "table that is multiplied by too": (
        "i = Cast <to = 7> (x) r = Gather (w, i) s = MatMul (x, w) t = Unsqueeze (s, two) y = Add (r, t)",
        {"w": (8, 8)}, [1, 4, 8, 8], {"w": None},
    ),
}  # fmt: skip


def dequantizer(model: ModelProto, name: str) -> NodeProto:
    (found,) = (node for node in model.graph.node if list(node.input[:1]) == [f"{name}_quantized"])
    assert isinstance(found, NodeProto)
    return found


@pytest.mark.parametrize("operator", OPERATORS)
def test_scales_per_channel(operator: str, tmp_path: Path) -> None:
    """One scale a channel where HTP takes it, along the axis of the output channels; else one scale."""
    body, shapes, dims, axes = OPERATORS[operator]
    numbers = np.random.default_rng(0)
    weights: dict[str, NDArray[Any]] = {name: numbers.normal(size=s).astype(np.float32) for name, s in shapes.items()}
    if "two" in body:
        weights["two"] = np.array([2])
    model = graph(f"g (float[1,4,8] x) => (float[{','.join(map(str, dims))}] y) {{ {body} }}", weights)
    path = save(model, tmp_path)
    feeds = {"x": numbers.uniform(0, 1, (1, 4, 8)).astype(np.float32)}
    found = {name: Range.of(array).with_zero() for name, array in Observer(path).arrays(feeds)}

    quantized = quantize(load_graph(path), tmp_path, found, Scheme("uint16", "uint8", per_channel=True)).model

    for name, axis in axes.items():
        node = dequantizer(quantized, name)
        scales = next(tensor for tensor in quantized.graph.initializer if tensor.name == node.input[1])
        assert list(scales.dims) == ([] if axis is None else [shapes[name][axis]])
        if axis is not None:
            assert next(attribute.i for attribute in node.attribute if attribute.name == "axis") == axis
    assert array_db(outputs(path, feeds)["y"], outputs(quantized, feeds)["y"]) > 30


def test_nodes_left_in_float_are_named(tmp_path: Path) -> None:
    model = graph("g (float[1,4] x, int64[1,4] n) => (float[1,4] y) { f = Cast <to = 1> (n) y = Add (x, f) }")
    assert float_nodes(GraphIndex(model, tmp_path)) == ["'Add_1' (Add)"]

    ranges = {name: Range(-1, 1) for name in ("x", "f", "y")}
    quantized = quantize(model, tmp_path, ranges, Scheme("uint8", "uint8", per_channel=False)).model

    assert float_nodes(GraphIndex(quantized, tmp_path)) == []


def test_a_bucket_runs_on_its_blobs(component: Component, ranges: StageInput) -> None:
    quantized = component.quantize("8", ranges)
    session = ort.InferenceSession(str(quantized.folder / "model.onnx"), providers=["CPUExecutionProvider"])
    (hidden,) = session.run(None, padded(CALLS[0], 8))
    assert hidden.shape == (1, 8, 32)


def test_what_a_where_selects_from_has_the_encoding_of_its_result(tmp_path: Path) -> None:
    """The compiler would convert it, and what it leaves behind a number then differs from run to run."""
    fillers = {"zero": np.float32(0), "filler": np.float32(-100), "far": np.float32(-4000)}
    body = """hidden = Greater (x, zero)  mask = Where (hidden, zero, filler)
        y = Add (x, mask)  other = Where (hidden, x, far)  z = Where (hidden, filler, mask)"""
    model = graph(f"g (float[4] x) => (float[4] y, float[4] z, float[4] other) {{ {body} }}", fillers)
    path = save(model, tmp_path)
    feeds = {"x": np.array([-2, -1, 1, 2], np.float32)}
    found = {name: Range.of(array).with_zero() for name, array in Observer(path).arrays(feeds)}
    found["other"] = Range(-4.0, 2.0)  # as a rule may set it: it does not hold the filler

    quantized = quantize(load_graph(path), tmp_path, found, Scheme("uint16", "uint8", per_channel=True)).model

    makers = {name: node for node in quantized.graph.node for name in node.output}
    values = {tensor.name: numpy_helper.to_array(tensor) for tensor in quantized.graph.initializer}

    def encoding(dequantized: str) -> tuple[float, int]:
        node = makers[dequantized]
        return float(values[node.input[1]]), int(values[node.input[2]])

    wheres = [node for node in quantized.graph.node if node.op_type == "Where"]
    results = {}
    for node in wheres:
        (stored,) = (each for each in quantized.graph.node if node.output[0] in each.input)
        results[node.name] = float(values[stored.input[1]]), int(values[stored.input[2]])
    first, other, last = wheres
    assert encoding(first.input[1]) == encoding(first.input[2]) == results[first.name]
    assert encoding(last.input[1]) == results[last.name]
    assert encoding(other.input[2]) != results[other.name], "what it can't hold keeps an encoding of its own"
    expected = outputs(path, feeds)
    np.testing.assert_allclose(outputs(quantized, feeds)["y"], expected["y"], atol=0.01)


def test_it_tells_which_node_of_which_bucket_it_is_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = heard(tmp_path, monkeypatch)
    component = Component(tmp_path / "net", attention(), BUCKETS)
    ranges = component.calibrate(CALLS)
    said.clear()
    component.quantize_all(ranges, Scheme("uint16", "uint8", per_channel=True), ["8", "16"])
    for bucket in BUCKETS:
        told = [line for line in said if line.startswith(f"bucket {bucket}, node ")]
        assert told[0].startswith(f"bucket {bucket}, node 1 of ")
        assert told[-1].split()[-3] == told[-1].split()[-1], "the last of all"
