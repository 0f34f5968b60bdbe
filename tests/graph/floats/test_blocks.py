"""Weights in blocks, as onnxruntime stores them, are unpacked to the numbers that it computes with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from pipeline.errors import ModelError
from pipeline.graph.files.model_file import MODEL, load_graph
from tests.support.graphs import operators
from tests.support.sources import ingested, model, numbers, outputs

RANDOM = np.random.default_rng(3)
X = "g (float[1,n,40] x) => (float[1,n,6] y)"
M = "com.microsoft"


def packed(*shape: int) -> NDArray[np.uint8]:
    return RANDOM.integers(0, 256, shape, dtype=np.uint8)


def scales(*shape: int) -> NDArray[np.float32]:
    return RANDOM.uniform(0.01, 0.1, shape).astype(np.float32)


NBITS = "<K = 40, N = 6, bits = {}, block_size = 16>"
FORMS: dict[str, tuple[str, Mapping[str, NDArray[Any]]]] = {
    "4 bits": (
        f"{X} {{ y = {M}.MatMulNBits {NBITS.format(4)} (x, w, s) }}", {"w": packed(6, 3, 8), "s": scales(18)},
    ),
    "4 bits, zero points, a bias": (
        f"{X} {{ y = {M}.MatMulNBits {NBITS.format(4)} (x, w, s, z, , b) }}",
        {"w": packed(6, 3, 8), "s": scales(18), "z": packed(12), "b": numbers(6)},
    ),
    "8 bits": (
        f"{X} {{ y = {M}.MatMulNBits {NBITS.format(8)} (x, w, s) }}", {"w": packed(6, 3, 16), "s": scales(18)},
    ),
    "NF4": (
        f"{X} {{ y = {M}.MatMulBnb4 <K = 40, N = 6, block_size = 16, quant_type = 1> (x, w, s) }}",
        {"w": packed(120), "s": scales(15)},
    ),
    "FP4": (
        f"{X} {{ y = {M}.MatMulBnb4 <K = 40, N = 6, block_size = 16, quant_type = 0> (x, w, s) }}",
        {"w": packed(120), "s": scales(15)},
    ),
    "a table": (
        f"""g (float[1,n,32] x) => (float[1,n,6] y) {{ y = {M}.GatherBlockQuantized
        <bits = 4, block_size = 16, quantize_axis = 1, gather_axis = 0> (w, rows, s, z) }}""",
        {"w": packed(9, 16), "s": scales(9, 2), "z": packed(9, 1), "rows": np.array([[0, 8, 3]])},
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_weights_in_blocks_become_floats(form: str, tmp_path: Path) -> None:
    text, constants = FORMS[form]
    source = model(text, constants)
    feeds = {"x": numbers(1, 3, 40)} if "40" in text else {"x": numbers(1, 3, 32)}

    made = ingested(tmp_path, source).folder / MODEL

    assert set(operators(load_graph(made))) <= {"MatMul", "Gather", "Add", "Identity"}
    np.testing.assert_allclose(outputs(made, feeds)[0], outputs(source, feeds)[0], rtol=1e-3, atol=1e-4)


def test_encodings_of_blocks_in_onnx_are_folded(tmp_path: Path) -> None:
    source = model(f"{X} {{ d = DequantizeLinear <axis = 0, block_size = 8> (w, s) y = MatMul (x, d) }}", opset=21)
    source.ir_version = 10
    values = RANDOM.integers(-8, 8, (40, 6))
    source.graph.initializer.append(helper.make_tensor("w", TensorProto.INT4, [40, 6], values.ravel()))
    source.graph.initializer.append(helper.make_tensor("s", TensorProto.FLOAT, [5, 6], scales(5, 6).ravel()))
    feeds = {"x": numbers(1, 3, 40)}
    made = ingested(tmp_path, source).folder / MODEL
    assert set(operators(load_graph(made))) == {"MatMul"}
    np.testing.assert_allclose(outputs(made, feeds)[0], outputs(source, feeds)[0], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (f"{X} {{ y = {M}.MatMulNBits <K = 40, N = 6, bits = 2, block_size = 16> (x, w, s) }}", "weights have 2 bits"),
        (f"{X} {{ y = {M}.MatMulNBits {NBITS.format(4)} (x, w, s, , g) }}", "in another order"),
        (f"{X} {{ y = {M}.MatMulBnb4 <K = 40, N = 6, block_size = 7> (x, w, s) }}", "don't fill the weights"),
    ],
)
def test_forms_that_are_not_known_are_refused(text: str, why: str, tmp_path: Path) -> None:
    constants: dict[str, NDArray[Any]] = {"w": packed(6, 3, 8), "s": scales(18), "g": np.arange(40, dtype=np.int32)}
    with pytest.raises(ModelError) as caught:
        ingested(tmp_path, model(text, {name: each for name, each in constants.items() if f" {name}" in text}))
    assert "in a way that can't be written in floats" in caught.value.what
    assert why in str(caught.value.why)
    assert "'onnx/model.onnx'" in str(caught.value.remedy)
