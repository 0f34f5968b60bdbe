from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, numpy_helper

from pipeline.graph.rewrites import apply_all
from pipeline.graph.rewrites.recurrent import decompose_lstm_step
from tests.support.graphs import graph, operators, outputs
from tests.support.on_htp import on_chip, with_rewrites, without_rewrites
from tests.support.recurrent import weights

ALL = "float[1,1,2,4] Y, float[1,2,4] Y_h, float[1,2,4] Y_c"


def step(
    given: str = ALL, *, bias: bool = True, places: int = 1, attributes: str = "", inputs: str = "h, c"
) -> ModelProto:
    made = {"Y", "Y_h", "Y_c"} & set(given.replace(",", " ").split())
    listed = ", ".join(name if name in made else "" for name in ("Y", "Y_h", "Y_c")).rstrip(", ")
    text = f"""g (float[{places},2,8] x, float[1,2,4] h, float[1,2,4] c) => ({given}) {{
        {listed} = LSTM <hidden_size = 4{attributes}> (x, W, R, {"B" if bias else ""}, , {inputs}) }}"""
    constants = weights("LSTM", 8, 4)
    if not bias:
        del constants["B"]
    if "zeros" in inputs:
        constants["zeros"] = np.zeros((1, 2, 4), np.float32)
    return graph(text, constants)


def feeds(places: int = 1) -> dict[str, NDArray[np.float32]]:
    rng = np.random.default_rng(1)
    shapes = {"x": (places, 2, 8), "h": (1, 2, 4), "c": (1, 2, 4)}
    made = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    return {**made, "c": 10 * made["c"], "x": 5 * made["x"]}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("given", [ALL, "float[1,2,4] Y_h, float[1,2,4] Y_c", "float[1,2,4] Y_c"])
@pytest.mark.parametrize("attributes", ["", ', direction = "reverse"', ", layout = 0, input_forget = 0"])
def test_a_step_is_written_with_what_it_changes(given: str, bias: bool, attributes: str, tmp_path: Path) -> None:
    model = step(given, bias=bias, attributes=attributes)
    before = outputs(model, feeds())

    assert apply_all(model, tmp_path)["decompose_lstm_step"] == 1

    assert "LSTM" not in operators(model)
    after = outputs(model, feeds())
    for name, expected in before.items():
        np.testing.assert_allclose(after[name], expected, rtol=1e-5, atol=1e-6)
    assert decompose_lstm_step.apply(model, tmp_path) == 0


@pytest.mark.parametrize(
    "model",
    [
        step("float[1,2,4] Y_h", places=2),
        step(attributes=", clip = 3.0"),
        step(attributes=", input_forget = 1"),
        step(attributes=', activations = ["Sigmoid", "Relu", "Tanh"]'),
        step(inputs="h, zeros"),
    ],
    ids=["two places", "clip", "input_forget", "other activations", "a state that starts anew"],
)
def test_other_layers_are_left_alone(model: ModelProto, tmp_path: Path) -> None:
    assert decompose_lstm_step.apply(model, tmp_path) == 0


@pytest.mark.slow
def test_the_chip_keeps_a_state_that_hardly_changes(tmp_path: Path) -> None:
    model = step("float[1,2,4] Y_c")
    bias = np.zeros((1, 32), np.float32)
    bias[0, :4], bias[0, 8:12] = -5, 5  # gates that let nearly nothing in, and keep nearly all
    next(tensor for tensor in model.graph.initializer if tensor.name == "B").CopyFrom(
        numpy_helper.from_array(bias, "B")
    )
    rng = np.random.default_rng(3)
    calls = [
        {
            "x": rng.normal(size=(1, 2, 8)).astype(np.float32) * np.float32(0.3),
            "h": np.zeros((1, 2, 4), np.float32),
            "c": rng.uniform(-8, 8, (1, 2, 4)).astype(np.float16).astype(np.float32),
        }
        for _ in range(16)
    ]
    errors = []
    for name, component in (
        ("whole", without_rewrites(tmp_path / "whole", model)),
        ("written", with_rewrites(tmp_path / "written", model)),
    ):
        chip = on_chip(component.rewrite["all"], calls, tmp_path / name / "out")
        off = [
            (made["Y_c"] - outputs(model, call)["Y_c"]) / np.abs(call["c"])
            for made, call in zip(chip.outputs, calls, strict=True)
        ]
        errors.append(float(np.sqrt(np.mean(np.square(off)))))
    assert errors[0] > 1.3 * errors[1], f"{errors}: HTP's LSTM keeps its state as well now: drop the rewrite"
    assert errors[1] < 3e-4
