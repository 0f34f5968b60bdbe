from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto

from pipeline.graph.rewrites.recurrent import convert_rnn_to_gru
from tests.support.graphs import graph, operators, outputs
from tests.support.on_htp import on_chip, on_cpu, sqnr_db, with_rewrites
from tests.support.recurrent import DIRECTIONS, layer

TANH = ', activations = ["Tanh"]'
FORMS: dict[str, dict[str, Any]] = {
    "as it is": {}, "no bias": {"bias": False}, "a first state": {"states": True}, "lengths": {"lengths": True},
    "a batch": {"batch": 3}, "Tanh by name": {"attributes": TANH},
}  # fmt: skip


def feeds(form: dict[str, Any], directions: int) -> dict[str, NDArray[Any]]:
    random, batch = np.random.default_rng(1), form.get("batch", 1)
    given: dict[str, NDArray[Any]] = {"X": random.normal(size=(6, batch, 8)).astype(np.float32)}
    if form.get("states"):
        given["h"] = random.normal(size=(directions, batch, 4)).astype(np.float32)
    if form.get("lengths"):
        given["lengths"] = np.full(batch, 4, np.int32)
    return given


@pytest.mark.parametrize("direction", ["forward", "reverse"])
@pytest.mark.parametrize("form", FORMS)
def test_a_gru_with_still_gates_computes_the_same(form: str, direction: str, tmp_path: Path) -> None:
    model = layer("RNN", direction, "Y, Y_h", **FORMS[form])
    given = feeds(FORMS[form], DIRECTIONS[direction])
    before = outputs(model, given)

    assert convert_rnn_to_gru.apply(model, tmp_path) == 1

    assert operators(model) == {"GRU": 1}
    for name, array in outputs(model, given).items():
        np.testing.assert_allclose(array, before[name], atol=2e-6)
    assert convert_rnn_to_gru.apply(model, tmp_path) == 0


def test_both_directions(tmp_path: Path) -> None:
    model = layer("RNN", "bidirectional", "Y, Y_h", attributes=', activations = ["Tanh", "Tanh"]', states=True)
    given = feeds({"states": True}, 2)
    before = outputs(model, given)

    assert convert_rnn_to_gru.apply(model, tmp_path) == 1

    for name, array in outputs(model, given).items():
        np.testing.assert_allclose(array, before[name], atol=2e-6)


def computed_weights() -> ModelProto:
    return graph("g (float[6,1,8] X, float[1,4,8] W, float[1,4,4] R) => (float[6,1,1,4] Y) { Y = RNN (X, W, R) }")


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(layer("RNN", attributes=', activations = ["Relu"]'), id="Relu"),
        pytest.param(layer("RNN", attributes=", clip = 2.0"), id="clip"),
        pytest.param(computed_weights(), id="weights that are computed"),
        pytest.param(layer("GRU"), id="GRU"),
    ],
)
def test_left_alone(model: ModelProto, tmp_path: Path) -> None:
    before = operators(model)

    assert convert_rnn_to_gru.apply(model, tmp_path) == 0

    assert operators(model) == before


def test_it_is_one_partition(tmp_path: Path) -> None:
    component = with_rewrites(tmp_path / "net", layer("RNN", "bidirectional", "Y, Y_h"))
    calls = [{"X": np.random.default_rng(seed).normal(size=(6, 1, 8)).astype(np.float32)} for seed in range(16)]
    quantized = component.quantize("all", component.calibrate(calls))

    chip = on_chip(quantized, calls[:2], tmp_path / "out")

    assert chip.context.partitions == 1
    assert not chip.cpu_ops
    truth = on_cpu(component.ingest, calls[:2])
    assert sqnr_db(truth, chip.outputs, "Y") > 50
