from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, numpy_helper

from pipeline.graph.rewrites import replace_lengths_by_gates
from tests.support.graphs import operators, outputs
from tests.support.on_htp import on_chip, on_cpu, sqnr_db, with_rewrites
from tests.support.recurrent import DIRECTIONS, layer

LENGTHS = np.array([4, 6, 1], np.int32)
OUTPUTS = {"LSTM": ["Y", "Y, Y_h, Y_c", ", Y_h"], "GRU": ["Y", "Y, Y_h", ", Y_h"]}


def feeds(batch: int = 1, *, states: int = 0, seed: int = 0) -> dict[str, NDArray[Any]]:
    random = np.random.default_rng(seed)
    given: dict[str, NDArray[Any]] = {"X": random.normal(size=(6, batch, 8)).astype(np.float32)}
    given["lengths"] = LENGTHS[:batch]
    if states:
        given["h"] = random.normal(size=(states, batch, 4)).astype(np.float32)
    return given


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("op", "given"), [(op, given) for op, forms in OUTPUTS.items() for given in forms])
def test_a_sequence_ends_where_its_length_says(op: str, given: str, direction: str, batch: int, tmp_path: Path) -> None:
    model = layer(op, direction, given, batch=batch, lengths=True)
    before = outputs(model, feeds(batch))

    assert replace_lengths_by_gates.apply(model, tmp_path) == 1

    node = next(node for node in model.graph.node if node.op_type == op)
    assert len(node.input) <= 4 or not node.input[4]
    for name, array in outputs(model, feeds(batch)).items():
        np.testing.assert_allclose(array, before[name], atol=1e-6)
    assert replace_lengths_by_gates.apply(model, tmp_path) == 0


@pytest.mark.parametrize(("op", "direction"), [("GRU", "bidirectional"), ("LSTM", "forward")])
def test_a_first_state_is_kept(op: str, direction: str, tmp_path: Path) -> None:
    model = layer(op, direction, "Y, Y_h", batch=3, lengths=True, states=True)
    given = feeds(3, states=DIRECTIONS[direction])
    before = outputs(model, given)

    assert replace_lengths_by_gates.apply(model, tmp_path) == 1

    for name, array in outputs(model, given).items():
        np.testing.assert_allclose(array, before[name], atol=1e-6)


def constant_lengths() -> ModelProto:
    model = layer("GRU", lengths=True)
    del model.graph.input[1]
    model.graph.initializer.append(numpy_helper.from_array(LENGTHS[1:2], "lengths"))
    return model


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(layer("GRU"), id="no lengths"),
        pytest.param(constant_lengths(), id="constant lengths"),
        pytest.param(layer("LSTM", "reverse", lengths=True, states=True), id="an LSTM from a state in reverse"),
        pytest.param(layer("GRU", lengths=True, attributes=", clip = 2.0"), id="clip"),
        pytest.param(layer("GRU", lengths=True, attributes=', activations = ["Sigmoid", "Relu"]'), id="Relu"),
    ],
)
def test_left_alone(model: ModelProto, tmp_path: Path) -> None:
    before = operators(model)

    assert replace_lengths_by_gates.apply(model, tmp_path) == 0

    assert operators(model) == before


@pytest.mark.parametrize("op", ["LSTM", "GRU"])
def test_it_is_one_partition_and_as_exact_as_without(op: str, tmp_path: Path) -> None:
    component = with_rewrites(tmp_path / "net", layer(op, "bidirectional", "Y, Y_h", lengths=True))
    calls = [{**feeds(seed=seed), "lengths": np.array([2 + seed % 5], np.int32)} for seed in range(16)]
    quantized = component.quantize("all", component.calibrate(calls))

    chip = on_chip(quantized, calls[:2], tmp_path / "out")

    assert chip.context.partitions == 1
    assert not chip.cpu_ops
    truth = on_cpu(component.ingest, calls[:2])
    assert min(sqnr_db(truth, chip.outputs, name) for name in ("Y", "Y_h")) > 35
