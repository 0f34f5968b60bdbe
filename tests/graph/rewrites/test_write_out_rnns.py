from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto

from pipeline.graph.rewrites import apply_all
from pipeline.graph.rewrites.recurrent import write_out_rnns
from tests.support.graphs import graph, operators, outputs
from tests.support.on_htp import on_chip, on_cpu, sqnr_db, with_rewrites
from tests.support.recurrent import DIRECTIONS, layer

FORMS: dict[str, dict[str, Any]] = {
    "Relu": {"attributes": ', activations = [{"Relu"}]'},
    "Sigmoid, no bias": {"attributes": ', activations = [{"Sigmoid"}]', "bias": False},
    "clipped": {"attributes": ", clip = 0.5"},
    "Relu, a first state": {"attributes": ', activations = [{"Relu"}], clip = 2.0', "states": True},
    "Relu, a batch": {"attributes": ', activations = [{"Relu"}]', "batch": 3},
}


def build(form: str, direction: str, given: str = "Y, Y_h") -> tuple[ModelProto, dict[str, NDArray[Any]]]:
    how, count = dict(FORMS[form]), DIRECTIONS[direction]
    names = how["attributes"].partition("{")[2].partition("}")[0]
    how["attributes"] = how["attributes"].replace(f"{{{names}}}", ", ".join([names] * count))
    random, batch = np.random.default_rng(1), how.get("batch", 1)
    feeds = {"X": random.normal(size=(6, batch, 8)).astype(np.float32)}
    if how.get("states"):
        feeds["h"] = random.normal(size=(count, batch, 4)).astype(np.float32)
    return layer("RNN", direction, given, **how), feeds


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("form", FORMS)
def test_places_one_after_the_other_compute_the_same(form: str, direction: str, tmp_path: Path) -> None:
    model, feeds = build(form, direction)
    before = outputs(model, feeds)

    assert write_out_rnns.apply(model, tmp_path) == 1

    assert operators(model)["RNN"] == 0
    for name, array in outputs(model, feeds).items():
        np.testing.assert_allclose(array, before[name], atol=2e-6)
    assert write_out_rnns.apply(model, tmp_path) == 0


@pytest.mark.parametrize("given", ["Y", ", Y_h"])
def test_one_output_is_enough(given: str, tmp_path: Path) -> None:
    model, feeds = build("Relu", "bidirectional", given)
    before = outputs(model, feeds)
    assert apply_all(model, tmp_path)["write_out_rnns"] == 1
    for name, array in outputs(model, feeds).items():
        np.testing.assert_allclose(array, before[name], atol=2e-6)


def test_what_is_a_gru_stays_one_operator(tmp_path: Path) -> None:
    applied = apply_all(layer("RNN"), tmp_path)
    assert (applied["convert_rnn_to_gru"], applied["write_out_rnns"]) == (1, 0)


COMPUTED = "g (float[6,1,8] X, float[1,4,8] W, float[1,4,4] R) => (float[6,1,1,4] Y) { Y = RNN <clip = 1.0> (X, W, R) }"


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(layer("RNN", attributes=", clip = 1.0", lengths=True), id="lengths"),
        pytest.param(layer("RNN", attributes=', activations = ["HardSigmoid"]'), id="another activation"),
        pytest.param(graph(COMPUTED), id="computed weights"),
        pytest.param(graph(COMPUTED.replace("[6,", "[513,").replace(", float[1,4,8] W, float[1,4,4] R", ""),
                           {"W": np.zeros((1, 4, 8), np.float32), "R": np.zeros((1, 4, 4), np.float32)}),
                     id="too long"),
    ],
)  # fmt: skip
def test_others_are_left_alone(model: ModelProto, tmp_path: Path) -> None:
    assert write_out_rnns.apply(model, tmp_path) == 0


def test_the_chip_takes_all_of_it(tmp_path: Path) -> None:
    model, feeds = build("Relu", "bidirectional")
    component = with_rewrites(tmp_path / "model", model)
    calls = [feeds]
    for number, made in enumerate((component.rewrite["all"], component.quantize("all", component.calibrate(calls)))):
        chip = on_chip(made, calls, tmp_path / f"on chip {number}")
        assert chip.context.partitions == 1
        assert not chip.cpu_ops
        assert sqnr_db(on_cpu(component.ingest, calls), chip.outputs, "Y") > (55, 35)[number]
