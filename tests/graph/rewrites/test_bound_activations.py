from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray
from onnx import ModelProto

from pipeline.graph.files.model_file import MODEL, load_graph
from pipeline.graph.rewrites import apply_all
from pipeline.graph.rewrites.activations import bound_activations
from tests.support.graphs import graph, operators, outputs
from tests.support.on_htp import on_chip, with_rewrites, without_rewrites

EYE = np.eye(24, dtype=np.float32)
CONSTANTS: dict[str, ArrayLike] = {
    "eye": EYE, "kernel": EYE[:, :, None, None], "zeros": np.zeros(24, np.float32), "one": np.float32(1),
    "half": np.float32(0.5),
}  # fmt: skip

FORMS = {
    "Sigmoid(Conv)": ("a", "x = Conv (a, kernel) y = Sigmoid (x)"),
    "Tanh(Conv)": ("a", "x = Conv (a, kernel) y = Tanh (x)"),
    "Sigmoid(Gemm)": ("p", "x = Gemm (p, eye, zeros) y = Sigmoid (x)"),
    "Tanh(Gemm)": ("p", "x = Gemm (p, eye, zeros) y = Tanh (x)"),
    "Sigmoid(MatMul)": ("p", "x = MatMul (p, eye) y = Sigmoid (x)"),
    "Sigmoid(Add)": ("p", "q = Abs (p) h = Mul (q, half) x = Add (p, h) y = Sigmoid (x)"),
    "Swish(Conv)": ("a", "x = Conv (a, kernel) s = Sigmoid (x) y = Mul (x, s)"),
}
SHAPES = {"a": (1, 24, 8, 8), "p": (64, 24)}


def built(form: str) -> tuple[ModelProto, dict[str, NDArray[np.float32]]]:
    name, text = FORMS[form]
    dims = ",".join(map(str, SHAPES[name]))
    model = graph(
        f"g (float[{dims}] {name}) => (float[{dims}] y) {{ {text} }}",
        {key: value for key, value in CONSTANTS.items() if key in text},
    )
    fed = np.linspace(-8, 8, 1536, dtype=np.float32).astype(np.float16).astype(np.float32)
    return model, {name: fed.reshape(SHAPES[name])}


@pytest.mark.parametrize("form", FORMS)
def test_what_an_activation_reads_is_bounded(form: str, tmp_path: Path) -> None:
    model, given = built(form)
    far = {name: array * 100 for name, array in given.items()}
    before = [outputs(model, feeds)["y"] for feeds in (given, far)]

    assert apply_all(model, tmp_path)["bound_activations"] == 1

    assert operators(model)["Clip"] == 1
    for feeds, expected in zip((given, far), before, strict=True):
        np.testing.assert_array_equal(outputs(model, feeds)["y"], expected)
    assert bound_activations.apply(model, tmp_path) == 0


def test_other_readers_keep_what_they_read(tmp_path: Path) -> None:
    model = graph(
        "g (float[4,24] p) => (float[4,24] y, float[4,24] x) { x = MatMul (p, eye) s = Sigmoid (x) y = Add (s, x) }",
        {"eye": EYE},
    )

    assert bound_activations.apply(model, tmp_path) == 1

    assert {node.op_type: node.input[-1] for node in model.graph.node}["Add"] == "x"


@pytest.mark.parametrize(
    "text",
    [
        "g (float[4,24] p) => (float[4,24] y) { y = Sigmoid (p) }",
        "g (float[4,24] p) => (float[4,24] y) { x = Mul (p, one) y = Tanh (x) }",
        "g (float[4,24] p) => (float[4,24] y) { x = MatMul (p, eye) y = Relu (x) }",
        "g (float16[4,24] p) => (float16[4,24] y) { x = Add (p, p) y = Tanh (x) }",
    ],
    ids=["an input", "a product", "another activation", "another type"],
)
def test_other_activations_are_left_alone(text: str, tmp_path: Path) -> None:
    model = graph(text, {name: value for name, value in CONSTANTS.items() if f" {name})" in text})
    assert bound_activations.apply(model, tmp_path) == 0


def test_a_bound_costs_nothing_in_integers(tmp_path: Path) -> None:
    model, given = built("Sigmoid(Conv)")
    component = with_rewrites(tmp_path / "net", model)

    quantized = component.quantize("all", component.calibrate([given]))

    assert "Clip" not in operators(load_graph(quantized.folder / MODEL))


@pytest.mark.slow
@pytest.mark.parametrize(("form", "joined", "apart"), [
    ("Sigmoid(Conv)", 3e-3, 1e-3), ("Tanh(Conv)", 6e-3, 5e-4), ("Sigmoid(Gemm)", 3e-3, 1e-3),
    ("Sigmoid(MatMul)", 3e-3, 1e-3), ("Sigmoid(Add)", 3e-3, 1e-3),
    ("Swish(Conv)", 1e-2, 8e-3),
])  # fmt: skip
def test_an_activation_is_as_right_as_alone_on_the_chip_in_float16(
    form: str, joined: float, apart: float, tmp_path: Path
) -> None:
    model, given = built(form)
    errors = []
    for name, component in (
        ("joined", without_rewrites(tmp_path / "joined", model)),
        ("apart", with_rewrites(tmp_path / "apart", model)),
    ):
        chip = on_chip(component.rewrite["all"], [given], tmp_path / name / "out")
        errors.append(float(np.abs(chip.outputs[0]["y"] - outputs(model, given)["y"]).max()))

    assert errors[0] > joined, f"HTP doesn't join them any more ({errors}): is the rewrite still of use?"
    assert errors[1] < apart, errors
