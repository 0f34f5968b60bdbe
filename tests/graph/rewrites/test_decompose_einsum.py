from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto

from pipeline.graph.rewrites import apply_all, decompose_einsum
from tests.support.graphs import constant, graph, operators, outputs
from tests.support.on_htp import on_chip, on_cpu, sqnr_db, with_rewrites, without_rewrites

Array = NDArray[np.float32]

SIZES = {letter: size for size, letter in enumerate("bijhdkn", 2)}

# Equation, and the operators that are left.
EQUATIONS = {
    "bij,bjk->bik": {"MatMul": 1},
    "bihd,bjhd->bhij": {"Transpose": 2, "MatMul": 1},
    "bhij,bjhd->bihd": {"Transpose": 2, "MatMul": 1},
    "bih,hnd->bind": {"Reshape": 2, "MatMul": 1},
    "ibnd,hnd->ibh": {"Reshape": 2, "Transpose": 1, "MatMul": 1},
    "bhd,bkd->bkh": {"Transpose": 2, "MatMul": 1},
    "ij,jk": {"MatMul": 1},
    "i,j->ij": {"Reshape": 2, "Mul": 1},
    "bi,bij->bij": {"Reshape": 1, "Mul": 1},
    "bid,d->bid": {"Reshape": 1, "Mul": 1},
    "i,i->i": {"Mul": 1},
    "bijk->kijb": {"Transpose": 1},
    "bi j, b k j -> b i k": {"Transpose": 1, "MatMul": 1},
}
LEFT_ALONE = ["...ij,...jk->...ik", "bii->bi", "bij->bi", "bij,bjk->b", "ij,jk,kd->id", "i,i->"]


def dims(operand: str) -> list[int]:
    return [SIZES[letter] for letter in operand.replace(" ", "") if letter != "."]


def build(
    equation: str, weight: NDArray[np.float32] | None = None
) -> tuple[ModelProto, dict[str, NDArray[np.float32]]]:
    numbers = np.random.default_rng(0)
    operands = equation.partition("->")[0].split(",")
    given = {
        name: numbers.normal(size=dims(each)).astype(np.float32) for name, each in zip("xyz", operands, strict=False)
    }
    result = list(np.einsum(equation.replace(" ", ""), *given.values()).shape)
    if weight is not None:
        given.pop("y")
    inputs = ", ".join(f"float{list(values.shape)} {name}" for name, values in given.items())
    body = f'r = Einsum <equation = "{equation}"> ({", ".join("xyz"[: len(operands)])})'
    return graph(f"g ({inputs}) => (float{result} r) {{ {body} }}", {} if weight is None else {"y": weight}), given


@pytest.mark.parametrize("equation", EQUATIONS)
def test_a_product_becomes_plain(equation: str, tmp_path: Path) -> None:
    model, feeds = build(equation)
    before = outputs(model, feeds)["r"]

    assert apply_all(model, tmp_path)["decompose_einsum"] == 1

    assert operators(model) == EQUATIONS[equation]
    np.testing.assert_allclose(outputs(model, feeds)["r"], before, rtol=1e-5, atol=1e-5)
    typed = {value.name for value in (*model.graph.value_info, *model.graph.output)}
    assert {name for node in model.graph.node for name in node.output} == typed
    assert decompose_einsum.apply(model, tmp_path) == 0


def test_a_weight_stays_a_constant(tmp_path: Path) -> None:
    weight = np.random.default_rng(1).normal(size=dims("nhd")).astype(np.float32)
    model, feeds = build("bihd,nhd->bin", weight)
    before = outputs(model, feeds)["r"]

    apply_all(model, tmp_path)

    assert operators(model) == {"Reshape": 3, "MatMul": 1}, "two of them of flatten_rows"
    np.testing.assert_array_equal(constant(model, "r_b"), weight.reshape(SIZES["n"], -1).T)
    np.testing.assert_allclose(outputs(model, feeds)["r"], before, rtol=1e-5, atol=1e-5)


def test_a_weight_that_is_in_order_is_used_as_it_is(tmp_path: Path) -> None:
    weight = np.random.default_rng(1).normal(size=dims("dk")).astype(np.float32)
    model, _ = build("bid,dk->bik", weight)
    apply_all(model, tmp_path)
    assert [tensor.name for tensor in model.graph.initializer if len(tensor.dims) == 2] == ["y"]


@pytest.mark.parametrize("equation", LEFT_ALONE)
def test_other_equations_are_left_alone(equation: str, tmp_path: Path) -> None:
    model, _ = build(equation)
    assert decompose_einsum.apply(model, tmp_path) == 0
    assert operators(model) == {"Einsum": 1}


def test_integers_are_left_alone(tmp_path: Path) -> None:
    model = graph('g (int64[2,3] x, int64[3,4] y) => (int64[2,4] r) { r = Einsum <equation = "ij,jk->ik"> (x, y) }')
    assert decompose_einsum.apply(model, tmp_path) == 0


@pytest.mark.slow
def test_attention_by_einsum_is_one_partition(tmp_path: Path) -> None:
    text = """g (float[1,8,4,8] x) => (float[1,8,32] y) {
        scores = Einsum <equation = "bihd,bjhd->bhij"> (x, x)
        weights = Softmax (scores)
        mixed = Einsum <equation = "bhij,bjhd->bihd"> (weights, x)
        y = Einsum <equation = "bihd,hdk->bik"> (mixed, w)
    }"""
    weight = np.random.default_rng(1).normal(size=(4, 8, 32)).astype(np.float32) / 6
    feeds = [{"x": np.random.default_rng(0).normal(size=(1, 8, 4, 8)).astype(np.float32)}]
    left = []
    for name, component in (
        ("einsum", without_rewrites(tmp_path / "einsum", graph(text, {"w": weight}))),
        ("plain", with_rewrites(tmp_path / "plain", graph(text, {"w": weight}))),
    ):
        quantized = component.quantize("all", component.calibrate(feeds))
        chip = on_chip(quantized, feeds, tmp_path / name / "out")
        left.append(chip.cpu_ops)

    assert left == [{"Einsum"}, set()]
    assert chip.context.partitions == 1
    assert sqnr_db(on_cpu(quantized, feeds), chip.outputs, "y") > 30
