from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto

from pipeline.graph.rewrites import apply_all
from pipeline.graph.rewrites.choices import put_scores_first
from tests.support.graphs import graph, operators, outputs
from tests.support.on_htp import on_chip, on_cpu, sqnr_db, with_rewrites, without_rewrites

HEADS, PLACES, SIZE = 4, 32, 16
RANDOM = np.random.default_rng(0)
ATTENTION = """g (float[1,4,32,16] q, float[1,4,32,16] k, bool[1,1,32,32] hidden) => (float[1,4,32,32] y) {
    turned = Transpose <perm = [0, 1, 3, 2]> (k)
    scores = MatMul (q, turned)
    masked = Where (hidden, filler, scores)
    y = Softmax (masked)
}"""


def attention(filler: float = -100.0) -> ModelProto:
    return graph(ATTENTION, {"filler": np.float32(filler)})


def feeds(valid: int, seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    q, k = (random.normal(0, 0.7, (1, HEADS, PLACES, SIZE)).astype(np.float32) for _ in "qk")
    hidden = np.broadcast_to(np.arange(PLACES) >= valid, (1, 1, PLACES, PLACES)).copy()
    return {"q": q, "k": k, "hidden": hidden}


@pytest.mark.parametrize("filler", [-100.0, -1e4, -np.inf])
def test_scores_are_selected_and_not_the_filler(filler: float, tmp_path: Path) -> None:
    model = attention(filler)
    given = feeds(20)
    before = outputs(model, given)["y"]

    assert apply_all(model, tmp_path)["put_scores_first"] == 1

    where = next(node for node in model.graph.node if node.op_type == "Where")
    assert where.input[1] == "scores"
    np.testing.assert_allclose(outputs(model, given)["y"], before, atol=1e-6)
    assert put_scores_first.apply(model, tmp_path) == 0


def test_a_mask_of_several_layers_is_negated_once(tmp_path: Path) -> None:
    text = ATTENTION.replace("y = Softmax (masked)", """one = Softmax (masked)
        m2 = Where (hidden, filler, one)  y = Softmax (m2)""")  # fmt: skip
    model = graph(text, {"filler": np.float32(-100)})
    before = outputs(model, feeds(20))["y"]

    assert put_scores_first.apply(model, tmp_path) == 2

    assert operators(model)["Not"] == 1
    np.testing.assert_allclose(outputs(model, feeds(20))["y"], before, atol=1e-6)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param("masked = Where (hidden, x, filler)  y = Softmax (masked)", id="scores are first already"),
        pytest.param("masked = Where (hidden, filler, x)  y = Neg (masked)", id="no Softmax"),
        pytest.param("masked = Where (hidden, filler, x)  p = Softmax (masked)  y = Add (p, masked)", id="read twice"),
        pytest.param("low = Neg (x)  masked = Where (hidden, low, x)  y = Softmax (masked)", id="a computed filler"),
    ],
)
def test_left_alone(body: str, tmp_path: Path) -> None:
    constants = {"filler": np.float32(-100)} if "filler" in body else {}
    model = graph(f"g (float[1,4,8] x, bool[1,1,8] hidden) => (float[1,4,8] y) {{ {body} }}", constants)
    before = operators(model)

    assert put_scores_first.apply(model, tmp_path) == 0

    assert operators(model) == before


def test_a_masked_softmax_is_right_on_the_chip(tmp_path: Path) -> None:
    text = ATTENTION.replace("bool[1,1,32,32] hidden", "int64[1,1,32,32] shown").replace(
        "turned", "ones = Cast <to = 1> (shown)  hidden = Equal (ones, none)  turned", 1
    )
    constants = {"filler": np.float32(-100), "none": np.float32(0)}
    calls = []
    for valid in (32, 26, 20):
        given = feeds(valid, seed=valid)
        calls.append({"q": given["q"], "k": given["k"], "shown": 1 - given["hidden"].astype(np.int64)})
    measured = {}
    for name, make in {"as it was": without_rewrites, "rewritten": with_rewrites}.items():
        component = make(tmp_path / name, graph(text, constants))
        quantized = component.quantize("all", component.calibrate(calls))
        chip = on_chip(quantized, calls[:1], tmp_path / f"{name} on chip")
        assert chip.context.partitions == 1
        measured[name] = sqnr_db(on_cpu(quantized, calls[:1]), chip.outputs, "y")

    assert measured["rewritten"] > 35
    assert measured["as it was"] < 10, "HTP has learned it: is the rewrite still of use?"
