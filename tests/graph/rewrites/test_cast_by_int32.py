from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipeline.graph.rewrites import apply_all
from pipeline.graph.rewrites.integers import cast_by_int32
from tests.conformance.batches import run_batch
from tests.support.graphs import graph, outputs

CAST = "g (uint8[1,64] x) => (float[1,64] y) { a = Cast <to = 1> (x) y = Mul (a, third) }"
THIRD = {"third": np.float32(1 / 3)}
X = np.arange(64, dtype=np.uint8)[None] * 4


def test_bytes_become_floats_by_way_of_int32(tmp_path: Path) -> None:
    model = graph(CAST, THIRD)
    before = outputs(model, {"x": X})["y"]

    assert apply_all(model, tmp_path)["cast_by_int32"] == 1

    assert [node.op_type for node in model.graph.node] == ["Cast", "Cast", "Mul"]
    np.testing.assert_array_equal(outputs(model, {"x": X})["y"], before)
    assert cast_by_int32.apply(model, tmp_path) == 0


FLAG = "g (float[1,64] x) => (int64[1,64] y) { a = Greater (x, third) y = Cast <to = 7> (a) }"


def test_a_flag_that_goes_out_is_cast_by_int32(tmp_path: Path) -> None:
    raw, model, feeds = graph(FLAG, THIRD), graph(FLAG, THIRD), {"x": np.linspace(-1, 1, 64, dtype=np.float32)[None]}
    assert apply_all(model, tmp_path)["cast_by_int32"] == 1
    assert cast_by_int32.apply(model, tmp_path) == 0
    found = run_batch([raw, model], [feeds] * 2, tmp_path / "work")
    assert found[0].on_cpu or found[0].refused, "QNN casts booleans to int64 now: leave them alone"
    assert (found[1].refused, found[1].on_cpu) == ("", ())
    np.testing.assert_array_equal(found[1].outputs[0], outputs(raw, feeds)["y"])


@pytest.mark.parametrize(
    ("source", "target", "to"), [("int32", "float", 1), ("uint8", "int32", 6), ("bool", "float", 1)]
)
def test_other_casts_are_left_alone(source: str, target: str, to: int, tmp_path: Path) -> None:
    model = graph(f"g ({source}[1,64] x) => ({target}[1,64] y) {{ y = Cast <to = {to}> (x) }}")
    assert cast_by_int32.apply(model, tmp_path) == 0


def test_the_chip_takes_bytes_for_booleans(tmp_path: Path) -> None:
    cured = graph(CAST, THIRD)
    cast_by_int32.apply(cured, tmp_path)
    found = run_batch([graph(CAST, THIRD), cured], [{"x": X}] * 2, tmp_path / "work")

    assert found[0].outputs[0].max() < 1, "QNN casts bytes rightly now: drop cast_by_int32"
    np.testing.assert_allclose(found[1].outputs[0], X / 3, rtol=1e-2)
