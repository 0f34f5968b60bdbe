"""Tensors that stay in the form that a source has them in: what is read, what onnxruntime gets, what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

from pipeline.errors import ModelError
from pipeline.graph.cpu import load_session, run
from pipeline.graph.files.admission import check_model
from pipeline.graph.files.blocks import FORMATS, BlockFormat
from pipeline.graph.files.model_file import save_graph, set_external, tensor_array, tensor_pieces
from pipeline.graph.files.stored_form import ENTRY, StoredForm, form_of, without_forms
from tests.support.gguf_files import interleaved, q8_0

MATRIX = np.random.default_rng(0).standard_normal((8, 32)).astype(np.float32)
F32, F16, Q8_0, BF16 = (FORMATS[number] for number in (0, 1, 8, 30))


def stored(folder: Path, raw: bytes, form: StoredForm, shape: tuple[int, ...]) -> TensorProto:
    """A tensor behind seven other bytes of a file."""
    (folder / "w.bin").write_bytes(b"others." + raw)
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=shape)
    set_external(tensor, "w.bin", 7, form.nbytes, form)
    return tensor


def test_numbers_are_those_of_the_file(tmp_path: Path) -> None:
    half = stored(tmp_path, MATRIX.astype("<f2").tobytes(), StoredForm(F16, 8, 32), (8, 32))

    np.testing.assert_array_equal(tensor_array(half, tmp_path), MATRIX.astype(np.float16))
    np.testing.assert_array_equal(tensor_pieces(half, tmp_path).array(), MATRIX.astype(np.float16))
    assert tensor_array(half, tmp_path).dtype == np.float32


def test_a_matrix_is_turned_scaled_and_its_heads_are_put_in_order(tmp_path: Path) -> None:
    form = StoredForm(F32, 8, 32, heads=2, transposed=True, scale=0.125)
    tensor = stored(tmp_path, interleaved(MATRIX, 2).tobytes(), form, (32, 8))

    np.testing.assert_array_equal(tensor_array(tensor, tmp_path), MATRIX.T * np.float32(0.125))
    np.testing.assert_array_equal(tensor_pieces(tensor, tmp_path).array(), MATRIX.T * np.float32(0.125))
    assert form_of(tensor) == form


def test_blocks_are_read_whatever_shape_the_tensor_has(tmp_path: Path) -> None:
    tensor = stored(tmp_path, q8_0(MATRIX), StoredForm(Q8_0, 8, 32, scale=2.0), (2, 4, 32))

    found = tensor_pieces(tensor, tmp_path).array()

    assert found.shape == (2, 4, 32)
    np.testing.assert_allclose(found.reshape(8, 32), 2 * MATRIX, atol=0.05)


def product(tensor: TensorProto) -> ModelProto:
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "product",
        [helper.make_tensor_value_info("x", 1, [1, 32])],
        [helper.make_tensor_value_info("y", 1, [1, 8])],
        [tensor],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize("blocks", [F32, F16, BF16], ids=lambda form: form.name)
def test_onnxruntime_computes_with_the_numbers(blocks: BlockFormat, tmp_path: Path) -> None:
    upper_halves = (MATRIX.view("<u4") >> 16).astype("<u2").tobytes()
    raw = {"F32": MATRIX.tobytes(), "F16": MATRIX.astype("<f2").tobytes(), "BF16": upper_halves}[blocks.name]
    model = product(stored(tmp_path, raw, StoredForm(blocks, 8, 32, transposed=True), (32, 8)))
    save_graph(model, tmp_path / "model.onnx")

    session = load_session(tmp_path / "model.onnx")

    (tmp_path / "w.bin").unlink()  # nothing of it is read later
    weights = blocks.dequantize(np.frombuffer(raw, np.uint8).reshape(-1, blocks.nbytes)).reshape(8, 32)
    found = run(session, {"x": np.ones((1, 32), np.float32)})["y"][0]
    np.testing.assert_allclose(found, weights.sum(axis=1), rtol=1e-5, atol=1e-5)


def test_what_onnxruntime_is_given_has_no_such_entry(tmp_path: Path) -> None:
    model = product(stored(tmp_path, MATRIX.tobytes(), StoredForm(F32, 8, 32), (8, 32)))

    assert ENTRY in model.SerializeToString()
    assert ENTRY not in without_forms(model).SerializeToString()
    assert ENTRY in model.SerializeToString()


def test_a_source_may_not_say_a_form(tmp_path: Path) -> None:
    model = product(stored(tmp_path, MATRIX.tobytes(), StoredForm(F32, 8, 32, transposed=True), (32, 8)))

    with pytest.raises(ModelError, match="has an entry 'form'"):
        check_model(model, "model.onnx")


@pytest.mark.parametrize(
    "text",
    ["", "F32", "F99 8 32 0 straight 1.0", "F32 8 31 0 straight 1.0", "F32 -8 -32 0 straight 1.0",
     "F32 8 32 3 straight 1.0", "Q8_0 32 8 0 straight 1.0", "F32 8 32 0 straight x", "F32 8 32 0 straight 1.0 more"],
)  # fmt: skip
def test_a_form_that_there_is_none_of_is_refused(text: str, tmp_path: Path) -> None:
    tensor = stored(tmp_path, MATRIX.tobytes(), StoredForm(F32, 8, 32), (8, 32))
    tensor.external_data[-1].value = text

    with pytest.raises(ModelError, match="a form that there is none of"):
        tensor_array(tensor, tmp_path)


def test_a_file_that_is_too_short_for_its_form_is_refused(tmp_path: Path) -> None:
    tensor = stored(tmp_path, MATRIX.tobytes()[:-1], StoredForm(F32, 8, 32), (8, 32))

    with pytest.raises(ModelError, match="not what the model says"):
        tensor_array(tensor, tmp_path)
