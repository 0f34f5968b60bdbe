"""Weights in blocks, as onnxruntime stores them, are unpacked to the numbers that it computes with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper

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
    "2 bits, zero points": (
        f"{X} {{ y = {M}.MatMulNBits {NBITS.format(2)} (x, w, s, z) }}",
        {"w": packed(6, 3, 4), "s": scales(18), "z": packed(6)},
    ),
    "zero points between the whole numbers": (
        f"{X} {{ y = {M}.MatMulNBits {NBITS.format(4)} (x, w, s, z) }}",
        {"w": packed(6, 3, 8), "s": scales(18), "z": 8 + numbers(6, 3)},
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


GATHER = f"g (int64[1,n] ids) => (float[k,l,m] y) {{{{ y = {M}.GatherBlockQuantized <{{}}> ( w, ids, s{{}}) }}}}"
TABLES: dict[str, tuple[str, int, list[int], list[int], list[int]]] = {
    "8 bits": ("bits = 8, block_size = 16", TensorProto.UINT8, [20, 32], [20, 2], []),
    "8 bits, zero points": ("bits = 8, block_size = 16", TensorProto.UINT8, [20, 32], [20, 2], [20, 2]),
    "4 bits": ("block_size = 16", TensorProto.UINT8, [20, 16], [20, 2], []),
    "2 bits": ("bits = 2, block_size = 16", TensorProto.UINT8, [20, 8], [20, 2], []),
    "rows that blocks do not fill": ("block_size = 16", TensorProto.UINT8, [20, 20], [20, 3], []),
    "the same, zero points": ("block_size = 16", TensorProto.UINT8, [20, 20], [20, 3], [20, 2]),
    "int4": ("block_size = 16", TensorProto.INT4, [20, 40], [20, 3], []),
    "uint4": ("block_size = 16", TensorProto.UINT4, [20, 40], [20, 3], []),
    "uint4 along the first axis": ("block_size = 16, quantize_axis = 0", TensorProto.UINT4, [20, 8], [2, 8], [2, 8]),
    "columns": ("block_size = 16, gather_axis = -1, quantize_axis = -1", TensorProto.INT4, [8, 32], [8, 2], [8, 2]),
    "rows of three dims": ("block_size = 16, quantize_axis = 2", TensorProto.UINT8, [5, 4, 16], [5, 4, 2], []),
    "the middle of three": ("block_size = 16, quantize_axis = -2", TensorProto.INT4, [5, 20, 4], [5, 2, 4], [5, 2, 4]),
}


def stored(name: str, kind: int, dims: list[int]) -> TensorProto:
    ends: dict[int, tuple[int, int]] = {TensorProto.UINT8: (0, 256), TensorProto.UINT4: (0, 16)}
    least, end = ends.get(kind, (-8, 8))
    return helper.make_tensor(name, kind, dims, RANDOM.integers(least, end, dims).ravel())


@pytest.mark.parametrize("table", TABLES)
def test_tables_in_blocks_become_floats(table: str, tmp_path: Path) -> None:
    attributes, kind, dims, counts, zeros = TABLES[table]
    source = model(GATHER.format(attributes, ", z" if zeros else ""), {"s": scales(*counts)}, opset=21)
    source.ir_version = 10
    source.graph.initializer.append(stored("w", kind, dims))
    source.graph.initializer.extend([stored("z", kind, zeros)] if zeros else [])
    feeds = {"ids": np.array([[0, 3, 1]])}
    made = ingested(tmp_path, source).folder / MODEL
    assert set(operators(load_graph(made))) == {"Gather", "Identity"}
    np.testing.assert_array_equal(outputs(made, feeds)[0], outputs(source, feeds)[0])


NARROW = ["FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ", "FLOAT4E2M1", "BFLOAT16", "INT2", "UINT2"]
READ = {
    "a scale": ("d = DequantizeLinear (w, s)", ()),
    "a scale for each row": ("d = DequantizeLinear <axis = 0> (w, s)", (40,)),
    "a scale for each column": ("d = DequantizeLinear (w, s)", (6,)),
    "a scale for each block": ("d = DequantizeLinear <axis = 0, block_size = 8> (w, s)", (5, 6)),
    "numbers as they are": ("d = Cast <to = 1> (w)", ()),
    "numbers by way of float16": ("h = Cast <to = 10> (w) d = Cast <to = 1> (h)", ()),
    "numbers by way of bfloat16": ("h = Cast <to = 16> (w) d = Cast <to = 1> (h)", ()),
}


@pytest.mark.parametrize(
    ("kind", "way"),
    [(kind, way) for kind in NARROW for way in READ if kind != "BFLOAT16" or way.startswith("numbers")],
)
def test_weights_of_types_that_numpy_has_not_become_floats(kind: str, way: str, tmp_path: Path) -> None:
    text, counts = READ[way]
    source = model(f"{X} {{ {text} y = MatMul (x, d) }}", {"s": scales(*counts)}, opset=25)
    source.ir_version = 13
    number = TensorProto.DataType.Value(kind)
    values = numbers(40, 6) * 2 if "FLOAT" in kind else RANDOM.integers(0, 2, (40, 6))
    dtype = helper.tensor_dtype_to_np_dtype(number)
    source.graph.initializer.append(numpy_helper.from_array(values.astype(dtype), "w"))
    feeds = {"x": numbers(1, 3, 40)}
    made = ingested(tmp_path, source).folder / MODEL
    assert set(operators(load_graph(made))) == {"MatMul"}
    wanted = feeds["x"] @ _numbers(values.astype(dtype).astype(np.float32), way, counts, source)
    np.testing.assert_allclose(outputs(made, feeds)[0], wanted, rtol=1e-5, atol=1e-5)


def _numbers(stored: NDArray[Any], way: str, counts: tuple[int, ...], source: ModelProto) -> NDArray[Any]:
    """By ONNX's definition: onnxruntime 1.31 has not all of these types."""
    if way.startswith("numbers"):
        return stored
    scale = numpy_helper.to_array(source.graph.initializer[0])
    if way == "a scale for each row":
        return np.asarray(stored * scale[:, None])
    return np.asarray(stored * (np.repeat(scale, 8, axis=0) if len(counts) == 2 else scale))


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
        (f"{X} {{ y = {M}.MatMulNBits <K = 40, N = 6, bits = 3, block_size = 16> (x, w, s) }}", "weights have 3 bits"),
        (f"{X} {{ y = {M}.MatMulNBits {NBITS.format(4)} (x, w, s, , g) }}", "in another order"),
        (f"{X} {{ y = {M}.MatMulBnb4 <K = 40, N = 6, block_size = 7> (x, w, s) }}", "don't fill the weights"),
        (f"{X} {{ y = {M}.MatMulBnb4 <K = 40, N = 6> (x, w, s) }}", "don't fill the weights"),
        (f"{X} {{ y = {M}.MatMulNBits {NBITS.format(8)} (x, w, s) }}", "'w' is [6, 3, 8], and not [6, 48]"),
        (
            GATHER.format("block_size = 16, gather_axis = 1", ""),
            "table of bytes",
        ),
    ],
)
def test_forms_that_are_not_known_are_refused(text: str, why: str, tmp_path: Path) -> None:
    constants: dict[str, NDArray[Any]] = {"w": packed(6, 3, 8), "s": scales(18), "g": np.arange(40, dtype=np.int32)}
    with pytest.raises(ModelError) as caught:
        ingested(tmp_path, model(text, {name: each for name, each in constants.items() if f" {name}" in text}))
    assert "in a way that can't be written in floats" in caught.value.what
    assert why in str(caught.value.why)
    assert "'onnx/model.onnx'" in str(caught.value.remedy)
