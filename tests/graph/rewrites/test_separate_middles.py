from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

from pipeline.graph.cpu import load_session, run
from pipeline.graph.files.blocks import FORMATS
from pipeline.graph.files.model_file import save_graph, set_external, tensor_array
from pipeline.graph.files.stored_form import StoredForm
from pipeline.graph.quantization.weights.weight_inputs import WeightInputs
from pipeline.graph.rewrites import separate_middles
from tests.support.graphs import operators

BY_NAME = {form.name: form for form in FORMATS.values()}
INPUTS, OUTPUTS = 256, 6
X = np.random.default_rng(0).standard_normal((1, 3, INPUTS)).astype(np.float32)


def blocks(form: str, rows: int) -> bytes:
    """Any integers, with small scales and minima."""
    rng = np.random.default_rng(rows)
    found = rng.integers(0, 256, (rows * INPUTS // BY_NAME[form].elements, BY_NAME[form].nbytes), dtype=np.uint8)
    for at in (0, 2):
        found[:, at : at + 2] = rng.uniform(0.001, 0.01, (len(found), 1)).astype("<f2").view(np.uint8)
    return found.tobytes()


def weight(folder: Path, form: str, name: str, *, transposed: bool, scale: float = 1.0) -> TensorProto:
    (folder / f"{name}.bin").write_bytes(b"before" + blocks(form, OUTPUTS))
    dims = (INPUTS, OUTPUTS) if transposed else (OUTPUTS, INPUTS)
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=dims)
    stored = StoredForm(BY_NAME[form], OUTPUTS, INPUTS, 1, transposed, scale)
    set_external(tensor, f"{name}.bin", 6, stored.nbytes, stored)
    return tensor


def model(folder: Path, form: str) -> ModelProto:
    """Two products of one value by weights of a file, one of them by a Gemm."""
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["product"], "/layer/product"),
        helper.make_node("Reshape", ["x", "rows"], ["flat"], "/rows"),
        helper.make_node("Gemm", ["flat", "b"], ["head"], "/head", transB=1),
    ]
    floats = TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", floats, X.shape)],
        [
            helper.make_tensor_value_info("product", floats, [1, 3, OUTPUTS]),
            helper.make_tensor_value_info("head", floats, [3, OUTPUTS]),
        ],
        [
            weight(folder, form, "a", transposed=True, scale=0.125),
            weight(folder, form, "b", transposed=False),
            helper.make_tensor("rows", TensorProto.INT64, [2], [-1, INPUTS]),
        ],
        value_info=[helper.make_tensor_value_info("flat", floats, [3, INPUTS])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)


def computed(made: ModelProto, folder: Path) -> dict[str, np.ndarray]:
    save_graph(made, folder / "model.onnx")
    return run(load_session(folder / "model.onnx"), {"x": X})


@pytest.mark.parametrize("form", ["Q4_1", "Q4_K"])
def test_products_by_weights_with_minima_are_separated(form: str, tmp_path: Path) -> None:
    made = model(tmp_path, form)
    before = computed(made, tmp_path)

    assert separate_middles.apply(made, tmp_path) == 2

    assert operators(made) == {"MatMul": 4, "Gemm": 2, "Add": 2, "Reshape": 1}
    after = computed(made, tmp_path)
    assert np.abs(before["product"]).max() > 0.05
    for name, values in before.items():
        np.testing.assert_allclose(after[name], values, atol=1e-6 * np.abs(values).max())
    assert {tensor.name for tensor in made.graph.initializer} == {
        *("a_steps", "a_middles", "b_steps", "b_middles", "block_means_256", "rows")
    }
    assert separate_middles.apply(made, tmp_path) == 0


def test_steps_have_no_minima(tmp_path: Path) -> None:
    made = model(tmp_path, "Q4_1")
    separate_middles.apply(made, tmp_path)

    steps = next(tensor for tensor in made.graph.initializer if tensor.name == "a_steps")
    by_block = tensor_array(steps, tmp_path).reshape(-1, 32, OUTPUTS)
    lowest, highest = by_block.min(axis=1), by_block.max(axis=1)
    np.testing.assert_allclose(highest, -7 / 8 * lowest, rtol=0.35)  # no block is to one side of zero


def test_the_mean_of_a_value_is_made_once(tmp_path: Path) -> None:
    made = model(tmp_path, "Q4_1")
    made.graph.node[2].CopyFrom(helper.make_node("MatMul", ["x", "a"], ["head"], "/head"))
    made.graph.output[1].CopyFrom(helper.make_tensor_value_info("head", TensorProto.FLOAT, [1, 3, OUTPUTS]))

    assert separate_middles.apply(made, tmp_path) == 2

    assert operators(made) == {"MatMul": 5, "Add": 2}
    assert len(made.graph.initializer) == 3


@pytest.mark.parametrize("form", ["Q4_0", "Q5_1", "Q8_0", "Q5_K"])
def test_weights_in_other_forms_are_left_alone(form: str, tmp_path: Path) -> None:
    made = model(tmp_path, form)
    assert separate_middles.apply(made, tmp_path) == 0
    assert operators(made) == {"MatMul": 1, "Gemm": 1, "Reshape": 1}


def test_a_gemm_with_a_factor_is_left_alone(tmp_path: Path) -> None:
    made = model(tmp_path, "Q4_1")
    made.graph.node[2].attribute.append(helper.make_attribute("alpha", 0.5))
    assert separate_middles.apply(made, tmp_path) == 1
    assert operators(made)["Gemm"] == 1


def test_what_integers_hold_as_it_is_needs_no_correlations(tmp_path: Path) -> None:
    made = model(tmp_path, "Q4_1")
    save_graph(made, tmp_path / "model.onnx")
    assert {name for each in WeightInputs(tmp_path / "model.onnx").matrices() for name in each.weights} == {"a", "b"}

    separate_middles.apply(made, tmp_path)
    save_graph(made, tmp_path / "model.onnx")

    matrices = WeightInputs(tmp_path / "model.onnx").matrices()
    assert {name for each in matrices for name in each.weights} == {"a_middles", "b_middles"}
