"""Weights stay in the files of the source: nothing is copied, and whoever reads them takes any address."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, numpy_helper

from pipeline.contracts.target import HtpTarget
from pipeline.errors import ModelError
from pipeline.graph.cpu import load_session, run
from pipeline.graph.files.model_file import (
    CONVERTED,
    MODEL,
    WEIGHTS,
    external_range,
    is_external,
    load_graph,
    save_graph,
    set_external,
    tensor_array,
)
from pipeline.model import FileEntry, StageRequest, StageResult
from pipeline.qnn.compiling.compile import compile_context
from pipeline.stages import ingest
from tests.support import graphs, tiny_models
from tests.support.fresh import fresh
from tests.support.sources import fetched, model, move_to_external, numbers
from tests.support.stage_runs import given

X_ELITE = HtpTarget(60, 73, 8)
TWO = "g (float[n,16] x) => (float[n,16] y) { a = MatMul (x, u)  y = MatMul (a, v) }"


def taken(root: Path, source: ModelProto, file: str = MODEL) -> tuple[StageResult, Path, dict[str, TensorProto]]:
    """What ingest says of a model, where it wrote, and the constants of its graph file."""
    fetch = fetched(root / "fetch", source, file)
    out = root / "out"
    out.mkdir()
    result = ingest.run(StageRequest("ingest:test", {"file": file}, {"fetch": fetch}, {}, out))
    return result, out, {tensor.name: tensor for tensor in load_graph(out / MODEL).graph.initializer}


def test_a_model_that_needs_no_change_is_its_own_blob(tmp_path: Path) -> None:
    weights = {"u": numbers(16, 16), "v": numbers(16, 16)}
    result, out, tensors = taken(tmp_path, model(TWO, weights))

    assert result.reused == {WEIGHTS: ("fetch", MODEL)}
    assert [path.name for path in out.iterdir()] == [MODEL]
    (tmp_path / "fetch" / MODEL).rename(out / WEIGHTS)
    for name, array in weights.items():
        assert np.array_equal(tensor_array(tensors[name], out), array)


def test_files_of_external_data_are_blobs_each(tmp_path: Path) -> None:
    source = model(TWO, {"u": numbers(16, 16), "v": numbers(16, 16)})
    rest = source.graph.initializer.pop()
    move_to_external(source, tmp_path / "fetch" / "onnx", "first.data")
    (tmp_path / "fetch" / "onnx" / "more").mkdir()
    (tmp_path / "fetch" / "onnx" / "more" / "second.data").write_bytes(b"12345" + numpy_helper.to_array(rest).tobytes())
    set_external(rest, "more/second.data", 5, 1024)
    source.graph.initializer.append(rest)

    result, _, tensors = taken(tmp_path, source, "onnx/model.onnx")

    assert result.reused == {
        "weights.bin": ("fetch", "onnx/first.data"),
        "weights_2.bin": ("fetch", "onnx/more/second.data"),
    }
    assert [external_range(tensor).location for tensor in tensors.values()] == ["weights.bin", "weights_2.bin"]


def test_what_changes_goes_to_a_blob_of_its_own(tmp_path: Path) -> None:
    typed = TensorProto(name="v", data_type=TensorProto.FLOAT, dims=[16, 16], float_data=numbers(256))
    source = model(
        "g (float[n,16] x) => (float[n,16] y) { w = Cast <to = 1> (h)  a = MatMul (x, u)  b = Add (a, w)"
        "  y = MatMul (b, v) }",
        {"u": numbers(16, 16), "h": numbers(1, 1024)[:, ::64].repeat(16, 0).astype(np.float16)},
    )
    source.graph.initializer.append(typed)

    result, out, tensors = taken(tmp_path, source)

    assert result.reused == {WEIGHTS: ("fetch", MODEL)}
    assert sorted(path.name for path in out.iterdir()) == [CONVERTED, MODEL]
    locations = {name: external_range(tensor).location for name, tensor in tensors.items()}
    assert locations == {"w": CONVERTED, "u": WEIGHTS, "v": CONVERTED}
    assert tensors["w"].data_type == TensorProto.FLOAT
    assert np.array_equal(tensor_array(tensors["v"], out).reshape(-1), np.array(typed.float_data, np.float32))


def test_a_range_beyond_its_file_is_refused(tmp_path: Path) -> None:
    source = model(TWO, {"u": numbers(16, 16), "v": numbers(16, 16)})
    move_to_external(source, tmp_path / "fetch", "data")
    source.graph.initializer[1].external_data[1].value = "1025"
    with pytest.raises(ModelError, match="the external data of tensor 'v' is not what the model says") as caught:
        taken(tmp_path, source)
    assert caught.value.why == "it needs 1024 bytes at offset 1025, 'data' has 1023 left"


@pytest.mark.parametrize("at", [0, 1 << 20, (1 << 20) + 3, 3 * (1 << 20) - 4])
def test_nan_is_found_wherever_it_is(at: int, tmp_path: Path) -> None:
    weights = np.zeros(3 << 18, np.float32)
    weights[at // 4] = np.nan
    with pytest.raises(ModelError, match="tensor 'w' holds NaN"):
        taken(tmp_path, model(f"g (float[{weights.size}] x) => (float[n] y) {{ y = Add (x, w) }}", {"w": weights}))


def shifted(folder: Path, by: int, out: Path) -> Path:
    """The model in a folder, its blob as if an exporter had put it at another place; the new graph file."""
    out.mkdir()
    graph = load_graph(folder / MODEL)
    (out / WEIGHTS).write_bytes(b"\xff" * by + (folder / WEIGHTS).read_bytes())
    for tensor in graph.graph.initializer:
        if is_external(tensor):
            place = external_range(tensor)
            assert place.length is not None
            set_external(tensor, WEIGHTS, place.offset + by, place.length)
    save_graph(graph, out / MODEL)
    return out / MODEL


OPERATORS: dict[str, tuple[str, dict[str, NDArray[Any]]]] = {
    "elementwise": (
        "a = Add (x, e)  b = Mul (a, e)  c = Sub (e, b)  d = Div (c, e)  f = Max (d, e)  y = Where (m, f, e)",
        {"e": numbers(1, 16, 64) + 3, "m": numbers(16, 64) > 0},
    ),
    "products": (
        "a = MatMul (x, k)  s = Squeeze (a, zero)  g = Gemm <transB = 1> (s, k, r)  y = Unsqueeze (g, zero)",
        {"k": numbers(64, 64), "r": numbers(16, 64), "zero": np.array([0])},
    ),
    "convolutions": (
        "a = Conv <pads = [1, 1]> (x, w, v)  b = ConvTranspose <pads = [1, 1]> (a, w, v)  y = PRelu (b, s)",
        {"w": numbers(16, 16, 3), "v": numbers(16), "s": numbers(16, 64)},
    ),
    "norms": (
        "a = LayerNormalization (x, s, t)  b = BatchNormalization (a, u, u, u, p)  y = InstanceNormalization (b, u, u)",
        {"s": numbers(1, 16, 64)[0], "t": numbers(16, 64), "u": numbers(16), "p": np.abs(numbers(16))},
    ),
    "tables": (
        "g = Gather (e, i)  h = GatherElements <axis = 1> (g, j)  y = Concat <axis = 1> (h, h)",
        {"e": numbers(300, 64), "i": np.arange(16).reshape(1, 16) * 7, "j": np.arange(512).reshape(1, 8, 64) % 16},
    ),
    "recurrence": (
        "t = Transpose <perm = [1, 0, 2]> (x)  h, l = GRU <hidden_size = 64> (t, w, r, b)  s = Squeeze (h, one)"
        "  y = Transpose <perm = [1, 0, 2]> (s)",
        {"w": numbers(1, 192, 64), "r": numbers(1, 192, 64), "b": numbers(1, 384), "one": np.array([1])},
    ),
    "resize": (
        'a = Resize <mode = "linear"> (x, , , n)  b = Add (a, e)  y = Relu (b)',
        {"n": np.array([1, 16, 64]), "e": numbers(16, 64)},
    ),
}


@pytest.mark.parametrize("case", OPERATORS)
def test_onnxruntime_computes_the_same_from_any_address(case: str, tmp_path: Path) -> None:
    body, constants = OPERATORS[case]
    source = graphs.graph(f"g (float[1,16,64] x) => (float[1,16,64] y) {{ {body} }}", constants)
    folder = graphs.save(source, tmp_path / "aligned").parent
    assert any(is_external(tensor) for tensor in load_graph(folder / MODEL).graph.initializer)
    feeds = {"x": numbers(1, 16, 64)}
    expected = run(load_session(folder / MODEL), feeds)["y"]
    for by in (1, 2, 3, 5):
        tested = run(load_session(shifted(folder, by, tmp_path / str(by))), feeds)["y"]
        assert np.array_equal(tested, expected), by


def test_qnn_makes_the_same_binary_from_any_address(tmp_path: Path) -> None:
    path = tiny_models.float_model(tmp_path / "aligned")
    made: list[Mapping[str, FileEntry]] = []
    for model_file in (path, shifted(path.parent, 1, tmp_path / "shifted")):
        out = tmp_path / f"out {len(made)}"
        out.mkdir()
        fresh(compile_context, model_file, "net", X_ELITE, out)
        made.append(given(out, {}).files)
    assert made[0] == made[1]
