from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipeline.graph.rewrites.recurrent import take_last_states
from tests.support.graphs import operators, outputs
from tests.support.on_htp import on_chip, on_cpu, sqnr_db, with_rewrites
from tests.support.recurrent import DIRECTIONS, GATES, layer

X = np.random.default_rng(0).normal(size=(6, 1, 8)).astype(np.float32)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("given", ["Y, Y_h", ", Y_h"])
def test_the_last_state_is_the_end_of_the_sequence(op: str, direction: str, given: str, tmp_path: Path) -> None:
    model = layer(op, direction, given)
    before = outputs(model, {"X": X})

    assert take_last_states.apply(model, tmp_path) == 1

    node = next(node for node in model.graph.node if node.op_type == op)
    assert node.output[0]
    assert len(node.output) == 1
    after = outputs(model, {"X": X})
    for name, array in before.items():
        np.testing.assert_array_equal(after[name], array)
    assert take_last_states.apply(model, tmp_path) == 0


def test_a_cell_state_stays_an_output_of_its_layer(tmp_path: Path) -> None:
    model = layer("LSTM", "bidirectional", "Y, Y_h, Y_c", batch=2)
    x = np.random.default_rng(0).normal(size=(6, 2, 8)).astype(np.float32)
    before = outputs(model, {"X": x})

    assert take_last_states.apply(model, tmp_path) == 1

    after = outputs(model, {"X": x})
    assert {name: array.shape for name, array in after.items()} == {
        "Y": (6, 2, 2, 4),
        "Y_h": (2, 2, 4),
        "Y_c": (2, 2, 4),
    }
    for name, array in before.items():
        np.testing.assert_array_equal(after[name], array)


@pytest.mark.parametrize(
    ("given", "lengths"), [pytest.param("Y", False, id="no state"), pytest.param("Y, Y_h", True, id="lengths")]
)
def test_left_alone(given: str, lengths: bool, tmp_path: Path) -> None:
    model = layer("GRU", "forward", given, lengths=lengths)
    before = operators(model)

    assert take_last_states.apply(model, tmp_path) == 0

    assert operators(model) == before


def test_a_gru_that_gives_its_last_state_alone_can_be_compiled(tmp_path: Path) -> None:
    component = with_rewrites(tmp_path / "net", layer("GRU", "bidirectional", ", Y_h"))
    calls = [{"X": np.random.default_rng(seed).normal(size=(6, 1, 8)).astype(np.float32)} for seed in range(16)]
    quantized = component.quantize("all", component.calibrate(calls))

    chip = on_chip(quantized, calls[:2], tmp_path / "out")

    assert chip.context.partitions == 1
    assert not chip.cpu_ops
    assert sqnr_db(on_cpu(quantized, calls[:2]), chip.outputs, "Y_h") > 50
