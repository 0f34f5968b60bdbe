from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray
from onnx import ModelProto

from pipeline.graph.rewrites import apply_all, decompose_einsum
from tests.support.graphs import constant, graph, operators, outputs
from tests.support.on_htp import on_chip, on_cpu, sqnr_db, with_rewrites, without_rewrites

Array = NDArray[np.float32]

SIZES = {letter: size for size, letter in enumerate("bijhdknpq", 2)}

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
    "bij->bij": {"Identity": 1},
    "->": {"Identity": 1},
    "bij->bi": {"ReduceSum": 1},
    "bij->ib": {"ReduceSum": 1, "Transpose": 1},
    "bij->": {"ReduceSum": 1},
    "bii->bi": {"Reshape": 1, "Slice": 1},
    "ibi->bi": {"Transpose": 1, "Reshape": 1, "Slice": 1},
    "ii": {"Reshape": 1, "Slice": 1, "ReduceSum": 1},
    "jijij->ij": {"Transpose": 3, "Reshape": 2, "Slice": 2},
    "bii,bij->bj": {"Reshape": 3, "Slice": 1, "MatMul": 1},
    "bij,bjk->b": {"ReduceSum": 2, "Reshape": 3, "MatMul": 1},
    "i,i->": {"Reshape": 3, "MatMul": 1},
    "i,j->": {"ReduceSum": 2, "Mul": 1},
    "...ij,...jk->...ik": {"MatMul": 1},
    "...ij,jk->...ik": {"MatMul": 1},
    "ij,...jk->...ik": {"Transpose": 2, "Reshape": 2, "MatMul": 1},
    "b...,b...->b...": {"Mul": 1},
    "i...->...i": {"Transpose": 1},
    "bi,bj,bk->bijk": {"Reshape": 4, "Mul": 2},
    "ij,jk,kd->id": {"MatMul": 2},
    "bi,kij,bj->bk": {"Transpose": 1, "Reshape": 4, "Mul": 1, "MatMul": 1},
    "bhi,bhij,bhj->bh": {"Reshape": 5, "MatMul": 2},
    "b,b,b->b": {"Mul": 2},
    "bih,hnd,dk,nj->bijk": None,
    "...i,ij,...j->...": None,
}


def dims(operand: str) -> list[int]:
    return [SIZES[letter] for letter in operand.replace(" ", "").replace("...", "pq")]


def build(
    equation: str, weight: NDArray[np.float32] | None = None, sizes: list[list[int]] | None = None
) -> tuple[ModelProto, dict[str, NDArray[np.float32]]]:
    numbers = np.random.default_rng(0)
    operands = equation.partition("->")[0].split(",")
    shapes = sizes or [dims(each) for each in operands]
    given = {name: numbers.normal(size=shape).astype(np.float32) for name, shape in zip("xyzw", shapes, strict=False)}
    result = list(np.einsum(equation.replace(" ", ""), *given.values()).shape)
    if weight is not None:
        given.pop("y")
    inputs = ", ".join(f"float{list(values.shape)} {name}" for name, values in given.items())
    body = f'r = Einsum <equation = "{equation}"> ({", ".join("xyzw"[: len(operands)])})'
    return graph(f"g ({inputs}) => (float{result} r) {{ {body} }}", {} if weight is None else {"y": weight}), given


@pytest.mark.parametrize("equation", EQUATIONS)
def test_a_product_becomes_plain(equation: str, tmp_path: Path) -> None:
    model, feeds = build(equation)
    before = outputs(model, feeds)["r"]

    assert apply_all(model, tmp_path)["decompose_einsum"] == 1

    assert operators(model) == EQUATIONS[equation] or EQUATIONS[equation] is None
    assert "Einsum" not in operators(model)
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


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("...ij,...jk->...ik", [[3, 1, 4, 5], [1, 2, 5, 6]]),
        ("...i,ij->...j", [[4], [4, 3]]),
        ("...i,ij->...j", [[2, 3, 2, 4], [4, 3]]),
        ("bij,bjk,k->bi", [[2, 3, 4], [1, 4, 5], [5]]),
        ("bi,bi->b", [[2, 1], [2, 4]]),
        ("bii,bi->b", [[2, 1, 1], [2, 4]]),
    ],
)
def test_operands_are_broadcast(equation: str, shapes: list[list[int]], tmp_path: Path) -> None:
    model, feeds = build(equation, sizes=shapes)
    before = outputs(model, feeds)["r"]
    assert decompose_einsum.apply(model, tmp_path) == 1
    np.testing.assert_allclose(outputs(model, feeds)["r"], before, rtol=1e-5, atol=1e-5)


def test_any_equation_becomes_plain(tmp_path: Path) -> None:
    numbers = np.random.default_rng(0)
    for _ in range(150):
        letters = ["".join(numbers.choice([*"ijkd"], numbers.integers(1, 5))) for _ in range(numbers.integers(1, 5))]
        there = sorted(set("".join(letters)))
        kept = "".join(numbers.permutation(there)[: numbers.integers(0, len(there) + 1)])
        model, feeds = build(f"{','.join(letters)}->{kept}")
        before = outputs(model, feeds)["r"]
        assert apply_all(model, tmp_path)["decompose_einsum"] == 1
        largest = np.abs(before).max(initial=1)
        np.testing.assert_allclose(
            outputs(model, feeds)["r"], before, rtol=1e-4, atol=1e-5 * largest, err_msg=str(letters)
        )


def test_constants_of_three_operands_become_one(tmp_path: Path) -> None:
    numbers = np.random.default_rng(0)
    weights = {name: numbers.normal(size=shape).astype(np.float32) for name, shape in (("u", (32, 4)), ("v", (4, 8)))}
    text = 'g (float[2,16,32] x) => (float[2,16,8] r) { r = Einsum <equation = "bik,kr,rj->bij"> (x, u, v) }'
    model, feeds = graph(text, weights), {"x": numbers.normal(size=(2, 16, 32)).astype(np.float32)}
    before = outputs(model, feeds)["r"]

    apply_all(model, tmp_path)

    assert operators(model)["MatMul"] == 2, "two thin products are cheaper than one by their product"
    np.testing.assert_allclose(outputs(model, feeds)["r"], before, rtol=1e-5, atol=1e-5)


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


@pytest.mark.slow
@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize(
    ("text", "weights"),
    [
        ('p = Einsum <equation = "bi,kij,bj->bk"> (h, w, h)  y = Add (p, one)', (8, 16, 16)),  # a bilinear layer
        (
            't = Einsum <equation = "bi,bj->bij"> (h, h)  d = Einsum <equation = "bii,i->bi"> (t, w)  y = Add (d, h)',
            (16,),
        ),
        ('p = Einsum <equation = "...i,ij,...j->..."> (h, w, h)  y = Add (p, one)', (16, 16)),
    ],
)
def test_other_equations_run_on_the_chip(text: str, weights: tuple[int, ...], rounded: bool, tmp_path: Path) -> None:
    numbers = np.random.default_rng(1)
    constants: dict[str, ArrayLike] = {"w": numbers.normal(size=weights).astype(np.float32), "one": np.float32(1)}
    dims = {3: "4,8", 1: "4,16", 2: "4"}[len(weights)]
    model = graph(f"g (float[4,16] x) => (float[{dims}] y) {{ h = Mul (x, one)  {text} }}", constants)
    feeds = [{"x": numbers.normal(size=(4, 16)).astype(np.float32)} for _ in range(3)]
    component = with_rewrites(tmp_path / "model", model)
    made = component.quantize("all", component.calibrate(feeds)) if rounded else component.rewrite["all"]

    chip = on_chip(made, feeds, tmp_path / "on chip")

    assert chip.cpu_ops == set()
    assert sqnr_db(on_cpu(component.ingest, feeds), chip.outputs, "y") > 40
