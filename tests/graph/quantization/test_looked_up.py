"""Tokens that are floats: calibration sees few of them, and all are told apart, on the CPU and on the emulator."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import ArrayLike
from onnx import ModelProto

from pipeline.contracts.scheme import Rule
from pipeline.graph.files.model_file import MODEL, load_graph
from pipeline.graph.ir.index import GraphIndex
from pipeline.graph.quantization.bounds.embedding_indices import looked_up
from pipeline.graph.quantization.calibration.ranges import Range, read_ranges
from pipeline.graph.quantization.forecast.htp_errors import forecast
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
        "nothing": np.float32(0),
        "last": np.array([2]),
        "flat": np.array([20]),
        "dims": np.array([1, 20]),
    }
    used = {name: array for name, array in constants.items() if name in body}
    return graph(f"g (float[1,20] x) => (float[1,20,8] y) {{ {body} }}", used)


LOOKED_UP = "i = Cast <to = 6> (x) y = Gather (table, i)"
FROM_THE_END = "i = Cast <to = 6> (x) b = Less (i, none) e = Add (i, rows) w = Where (b, e, i) y = Gather (table, w)"


MASKED = (
    "i = Cast <to = 6> (x) t = Gather (table, i) b = Greater (x, nothing) m = Cast <to = 1> (b)"
    " u = Unsqueeze (m, last) y = Mul (t, u)"
)
MOVED = "f = Reshape (x, flat) g = Cast <to = 7> (f) i = Reshape (g, dims) y = Gather (table, i)"
ROUNDED = "c = Floor (x) i = Cast <to = 6> (c) y = Gather (table, i)"


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


@pytest.mark.parametrize("activations", ["float16", "uint16", "uint8"])
@pytest.mark.parametrize("body", [LOOKED_UP, MOVED, MASKED])
def test_tokens_cast_as_they_come_are_told_apart_however_many_there_are(
    body: str, activations: str, tmp_path: Path
) -> None:
    rows = 70000
    digits = np.stack([(np.arange(rows) // 10**place) % 10 for place in range(5)], -1).astype(np.float32)
    table = np.concatenate([digits, digits[:, :3]], -1) / 9
    component = with_rewrites(tmp_path, model_of(body, table))
    seen = [{"x": np.arange(20, dtype=np.float32).reshape(1, 20) * 39}]
    made = component.rewrite["all"]
    if activations != "float16":
        made = component.quantize("all", component.calibrate(seen), activations=activations)
    rng = np.random.default_rng(2)
    last = 65504 if body == MASKED else rows  # of more, a comparison in float16 knows nothing
    calls = [{"x": rng.integers(2, last, (1, 20)).astype(np.float32)} for _ in range(4)]

    chip = on_chip(made, calls, tmp_path / "out")

    assert not chip.cpu_ops
    for call, outputs in zip(calls, chip.outputs, strict=True):
        np.testing.assert_allclose(outputs["y"], table[call["x"].astype(int)], atol=0.02)


@pytest.mark.parametrize(
    ("body", "rows", "activations", "found"),
    [
        (ROUNDED, 3000, "float16", [("row_number", "c", 2.0, "uint16")]),
        (ROUNDED, 2049, "float16", []),
        (ROUNDED, 3000, "uint16", []),
        (ROUNDED, 70000, "uint16", [("row_number", "c", pytest.approx(1.07, abs=0.3), "")]),
        (ROUNDED, 3000, "uint8", [("row_number", "c", pytest.approx(11.8, abs=4), "uint16")]),
        (LOOKED_UP, 70000, "float16", []),
        (LOOKED_UP, 70000, "uint8", []),
    ],
)
def test_rows_that_share_a_step_are_foretold(
    body: str, rows: int, activations: str, found: list[tuple[str, str, float, str]], tmp_path: Path
) -> None:
    component = with_rewrites(tmp_path, model_of(body, np.zeros((rows, 8), np.float32)))
    ranges = component.calibrate([{"x": np.linspace(0, rows - 1, 20, dtype=np.float32).reshape(1, 20)}])
    made = component.rewrite["all"]
    if activations != "float16":
        made = component.quantize("all", ranges, activations=activations)

    told = forecast(
        GraphIndex(load_graph(made.folder / MODEL), made.folder), read_ranges(ranges.folder / "ranges.json")
    )

    assert [(each.rule, each.value, each.figure, each.instead) for each in told] == found


def test_an_input_that_a_rule_has_cast_in_integers_is_stored_as_integers(tmp_path: Path) -> None:
    component = with_rewrites(tmp_path, model_of(LOOKED_UP))
    (cast,) = [
        node.name for node in load_graph(component.rewrite["all"].folder / MODEL).graph.node if node.op_type == "Cast"
    ]
    ranges = component.calibrate([{"x": np.arange(20, dtype=np.float32).reshape(1, 20)}])
    made = component.quantize("all", ranges, rules=[Rule(nodes=(cast,), activations="uint16")])
    calls = [{"x": np.arange(20, dtype=np.float32).reshape(1, 20) * 30}]
    chip = on_chip(made, calls, tmp_path / "out")
    np.testing.assert_allclose(chip.outputs[0]["y"], TABLE[calls[0]["x"].astype(int)], atol=0.02)
