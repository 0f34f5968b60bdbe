"""Tokens that are floats: calibration sees few of them, and all are told apart, on the CPU and on the emulator."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import ArrayLike
from onnx import ModelProto

from pipeline.graph.ir.index import GraphIndex
from pipeline.graph.quantization.looked_up import looked_up
from pipeline.graph.quantization.ranges import Range
from tests.support.graphs import graph
from tests.support.on_htp import on_chip, on_cpu, with_rewrites

ROWS = 600
TABLE = np.random.default_rng(0).normal(size=(ROWS, 8)).astype(np.float32)


def model_of(body: str, table: np.ndarray = TABLE) -> ModelProto:
    constants: dict[str, ArrayLike] = {
        "table": table,
        "none": np.int32(0),
        "rows": np.int32(len(table)),
        "half": np.float32(0.5),
    }
    used = {name: array for name, array in constants.items() if name in body}
    return graph(f"g (float[1,20] x) => (float[1,20,8] y) {{ {body} }}", used)


LOOKED_UP = "i = Cast <to = 6> (x) y = Gather (table, i)"
FROM_THE_END = "i = Cast <to = 6> (x) b = Less (i, none) e = Add (i, rows) w = Where (b, e, i) y = Gather (table, w)"


@pytest.mark.parametrize("body", [LOOKED_UP, FROM_THE_END])
def test_a_token_that_calibration_did_not_see_is_that_token(body: str, tmp_path: Path) -> None:
    component = with_rewrites(tmp_path, model_of(body))
    rng = np.random.default_rng(1)
    few = [{"x": rng.integers(0, 90, (1, 20)).astype(np.float32)} for _ in range(4)]
    made = component.quantize("all", component.calibrate(few))
    calls = [{"x": part.reshape(1, 20)} for part in np.split(np.arange(ROWS, dtype=np.float32), ROWS // 20)]
    expected = [TABLE[call["x"].astype(int)] for call in calls]
    np.testing.assert_allclose([each["y"] for each in on_cpu(made, calls)], expected, atol=0.02)
    chip = on_chip(made, calls, tmp_path / "out")
    np.testing.assert_allclose([each["y"] for each in chip.outputs], expected, atol=0.02)
    assert not chip.cpu_ops


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (LOOKED_UP, {"x"}),
        (FROM_THE_END, {"x"}),
        ("f = Floor (x) i = Cast <to = 7> (f) y = Gather (table, i)", {"x", "f"}),
        ("h = Mul (x, half) i = Cast <to = 7> (h) y = Gather (table, i)", {"h"}),
        ("i = Cast <to = 6> (x) t = Neg (table) y = Gather (t, i)", set[str]()),
    ],
)
def test_what_is_looked_up_ends_where_the_table_does(body: str, found: set[str]) -> None:
    assert looked_up(GraphIndex(model_of(body), Path())) == dict.fromkeys(found, Range(0, ROWS - 1))


def test_row_numbers_that_16_bits_do_not_hold_keep_what_was_measured() -> None:
    large = np.zeros((65537, 8), np.float32)
    assert not looked_up(GraphIndex(model_of(LOOKED_UP, large), Path()))
