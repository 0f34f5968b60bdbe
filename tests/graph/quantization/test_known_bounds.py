from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from pipeline.graph.cpu import load_session, run
from pipeline.graph.ir.index import GraphIndex
from pipeline.graph.quantization.bounds.known_bounds import known_bounds
from pipeline.graph.quantization.calibration.ranges import Range
from tests.support.graphs import graph
from tests.support.stage_runs import Component

CONFIDENT = [{"x": np.random.default_rng(seed).normal(0, 8, (1, 8)).astype(np.float32)} for seed in range(16)]


@pytest.mark.parametrize(
    "body",
    [
        "y = LogSoftmax <axis = 1> (x)",
        "y = ReduceLogSumExp <keepdims = 1> (x, last)",
        "m = ReduceMax <keepdims = 1> (x, last) d = Sub (x, m) e = Exp (d)"
        " s = ReduceSum <keepdims = 1> (e, last) y = Div (e, s)",
    ],
)
def test_equal_logits_are_right_where_samples_were_confident(body: str, tmp_path: Path) -> None:
    model = graph(f"g (float[1,8] x) => (float[1,length] y) {{ {body} }}", {"last": np.array([1], np.int64)}, opset=18)
    component = Component(tmp_path, model, {"all": {}})
    made = component.quantize("all", component.calibrate(CONFIDENT))
    zeros = {"x": np.zeros((1, 8), np.float32)}
    before, after = (
        next(iter(run(load_session(path / "model.onnx"), zeros).values()))
        for path in (component.rewrite["all"].folder, made.folder)
    )
    assert np.abs(before - after).max() < 0.01


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("b = Greater (x, half) c = Cast <to = 1> (b) y = ReduceMean (c, last)", Range(0, 1)),
        ("b = Greater (x, half) c = Cast <to = 1> (b) t = Transpose (c) y = ReduceSum (t, first)", Range(0, 8)),
        ("b = Greater (x, half) c = Cast <to = 1> (b) s = ReduceSum (c, last) y = Log (s)", None),
        ("b = Greater (x, half) c = Cast <to = 1> (b) s = ReduceSum (c, last) y = Round (s)", Range(0, 8)),
        ("b = Greater (x, half) c = Cast <to = 1> (b) s = ReduceSum (c, last) d = Sub (s, half) y = Relu (d)",
         Range(0, 7.5)),
        ("e = Exp (x) y = ReduceSum (e, last)", None),
        ("m = ReduceMax (x, first) d = Sub (x, m) e = Exp (d) y = ReduceSum (e, last)", Range(0, 8)),
        ("m = ReduceMax (x, last) d = Sub (x, m) b = Max (d, low) e = Exp (b) s = ReduceSum (e, last) y = Log (s)",
         Range(0, math.log(8))),
        ("m = ReduceMax (x, last) d = Sub (x, m) b = Max (d, half) e = Exp (b) y = ReduceSum (e, last)", None),
        ("m = ReduceMax (x, last) d = Sub (m, x) e = Exp (d) y = ReduceSum (e, last)", None),
    ],
)  # fmt: skip
def test_bounds_follow_from_what_computes_a_value(body: str, expected: Range | None) -> None:
    constants: dict[str, Any] = {
        "last": np.array([1], np.int64), "first": np.array([0], np.int64), "half": np.float32(0.5),
        "low": np.float32(-60),
    }  # fmt: skip
    model = graph(f"g (float[3,8] x) => (float[a,b] y) {{ {body} }}", constants, opset=18)
    assert known_bounds(GraphIndex(model, Path())).get("y") == expected


def test_a_sum_of_many_gets_room_for_some_and_its_logarithm_for_all() -> None:
    model = graph(
        "g (float[1,5000] x) => (float[1,1] y)"
        " { m = ReduceMax (x, last) d = Sub (x, m) e = Exp (d) s = ReduceSum (e, last) y = Log (s) }",
        {"last": np.array([1], np.int64)},
        opset=18,
    )
    found = known_bounds(GraphIndex(model, Path()))
    assert found["s"] == Range(1, 256)
    assert found["y"] == Range(0, math.log(5000))


MASKED = """g (float[1,16,8] h, int64[1,16] m) => (float[1,8] y) {
    f = Cast <to = 1> (m) u = Unsqueeze (f, two) e = Expand (u, dims) x = Mul (h, e)
    s = ReduceSum <keepdims = 0> (x, one) c = ReduceSum <keepdims = 0> (e, one) b = Clip (c, least) y = Div (s, b)
}"""


def test_a_full_mask_is_right_where_no_sample_filled_it(tmp_path: Path) -> None:
    constants: dict[str, Any] = {
        "one": np.array([1]), "two": np.array([2]), "dims": np.array([1, 16, 8]), "least": np.float32(1e-9),
    }  # fmt: skip
    component = Component(tmp_path, graph(MASKED, constants, opset=18), {"all": {}})
    random = np.random.default_rng(5)

    def sample(length: int) -> dict[str, Any]:
        hidden = random.normal(0.7, 1, (1, 16, 8)).astype(np.float32)
        return {"h": hidden, "m": (np.arange(16) < length).astype(np.int64)[None]}

    made = component.quantize("all", component.calibrate([sample(2 + number % 4) for number in range(16)]))
    full = sample(16)
    before, after = (
        next(iter(run(load_session(path / "model.onnx"), full).values()))
        for path in (component.rewrite["all"].folder, made.folder)
    )
    assert np.abs(before - after).max() < 0.01


@pytest.mark.parametrize(
    ("body", "seen", "expected"),
    [
        ("f = Cast <to = 1> (m) s = ReduceSum (f, last) y = Clip (s, low)", Range(0, 1), Range(0, 16)),
        ("f = Cast <to = 1> (m) s = ReduceSum (f, last) a = Sub (sixteen, s) y = Mul (a, low)", Range(0, 1),
         Range(-160, 0)),
        ("f = Cast <to = 1> (m) s = ReduceSum (f, last) y = Sqrt (s)", Range(0, 1), Range(0, 4)),
        ("f = Cast <to = 1> (m) s = ReduceSum (f, last) y = Div (s, sixteen)", Range(0, 1), Range(0, 1)),
        ("f = Cast <to = 1> (m) y = ReduceSum (f, last)", Range(0, 2), None),
        ("f = Cast <to = 1> (m) s = ReduceSum (f, last) y = Div (sixteen, s)", Range(0, 1), None),
        ("f = Cast <to = 1> (m) s = ReduceSum (f, last) y = Max (low, s, sixteen)", Range(0, 1), Range(16, 16)),
        ("f = Cast <to = 1> (m) s = ReduceSum (f, last) y = Min (sixteen, s, low)", Range(0, 1), Range(-10, -10)),
        ("f = Cast <to = 1> (m) s = ReduceSum (f, last) y = Sum (s, s, low)", Range(0, 1), Range(-10, 22)),
        ("f = Cast <to = 1> (m) s = ReduceSum (f, last) y = Mean (s, sixteen)", Range(0, 1), Range(8, 16)),
        ("f = Cast <to = 1> (m) s = ReduceSum (f, last) y = Add (s, endless)", Range(0, 1), None),
        ("b = Greater (m, zero) i = Cast <to = 7> (b) s = ReduceSum (i, last) y = Cast <to = 1> (s)", Range(0, 9),
         Range(0, 16)),
    ],
)  # fmt: skip
def test_integers_that_are_0_or_1_in_all_samples_are_a_mask(body: str, seen: Range, expected: Range | None) -> None:
    constants: dict[str, Any] = {
        "last": np.array([1], np.int64), "low": np.float32(-10), "sixteen": np.float32(16), "zero": np.int64(0),
        "endless": np.float32(np.inf),
    }  # fmt: skip
    model = graph(f"g (int64[1,16] m) => (float[a,b] y) {{ {body} }}", constants, opset=18)
    assert known_bounds(GraphIndex(model, Path()), {"f": seen}).get("y") == expected


@pytest.mark.parametrize(
    ("size", "seen", "room"),
    [
        (5000, None, 5000), (5000, 4, 5000), (262144, None, 16383), (262144, 30, 16383), (262144, 10000, 40000),
        (262144, 20000, 65535), (262144, 66000, 262144), (2**20, 100000, 400000),
    ],
)  # fmt: skip
def test_counts_have_room_for_all_while_that_leaves_them_steps(size: int, seen: float | None, room: float) -> None:
    text = f"g (float[1,{size}] x) => (float[1,1] y) {{ b = Greater (x, x) f = Cast <to = 1> (b)"
    model = graph(f"{text} y = ReduceSum (f, last) }}", {"last": np.array([1], np.int64)}, opset=18)
    ranges = {} if seen is None else {"y": Range(0, seen)}
    assert known_bounds(GraphIndex(model, Path()), ranges)["y"] == Range(0, room)


@pytest.mark.parametrize(("body", "seen", "expected"), [
    ("y = Mul (s, half)", 15, Range(0, 256 * 15)),
    ("y = Sqrt (s)", 5, Range(0, 512)),
    ("y = Neg (s)", 30, Range(-16383, 0)),
])  # fmt: skip
def test_what_is_computed_of_counts_keeps_steps_too(body: str, seen: float, expected: Range) -> None:
    text = "g (float[1,262144] x) => (float[1,1] y) { b = Greater (x, x) f = Cast <to = 1> (b) s = ReduceSum (f, last)"
    constants: dict[str, Any] = {"last": np.array([1], np.int64), "half": np.float32(0.5)}
    model = graph(f"{text} {body} }}", constants, opset=18)
    assert known_bounds(GraphIndex(model, Path()), {"y": Range(0, seen)})["y"] == expected


def compared(component: Component, calibration: list[dict[str, Any]], feeds: list[dict[str, Any]]) -> tuple[Any, Any]:
    """The first output before and after it is quantized, of all feeds."""
    made = component.quantize("all", component.calibrate(calibration))
    sessions = [load_session(path / "model.onnx") for path in (component.rewrite["all"].folder, made.folder)]
    before, after = ([next(iter(run(session, feed).values())) for feed in feeds] for session in sessions)
    return np.stack(before), np.stack(after)


@pytest.mark.parametrize("count", [3, 33, 64])
def test_more_that_are_counted_than_in_any_sample_are_counted(count: int, tmp_path: Path) -> None:
    """What is put in before the Cast has room for all as well."""
    model = graph(
        "g (float[1,64] x) => (int64[1,1] y)"
        " { b = Greater (x, half) f = Cast <to = 1> (b) s = ReduceSum (f, last) y = Cast <to = 7> (s) }",
        {"last": np.array([1]), "half": np.float32(0.5)}, opset=18,
    )  # fmt: skip
    few, many = ([{"x": (np.arange(64) < number).astype(np.float32)[None]}] for number in (7, count))
    before, after = compared(Component(tmp_path, model, {"all": {}}), few, many)
    assert before.tolist() == after.tolist()


def test_few_that_are_counted_among_many_are_counted_rightly(tmp_path: Path) -> None:
    model = graph(
        "g (float[1,262144] x) => (int64[1,1] y)"
        " { b = Greater (x, half) f = Cast <to = 1> (b) s = ReduceSum (f, last) y = Cast <to = 7> (s) }",
        {"last": np.array([1]), "half": np.float32(0.5)}, opset=18,
    )  # fmt: skip

    def sample(count: int) -> dict[str, Any]:
        return {"x": (np.arange(262144) % 7919 < count / 34 + 0.5).astype(np.float32)[None]}

    counts, found = compared(Component(tmp_path, model, {"all": {}}), *(2 * [[sample(100), sample(500), sample(900)]]))
    assert counts.ravel().tolist() == found.ravel().tolist()


def test_a_row_that_is_picked_by_its_number_keeps_its_steps(tmp_path: Path) -> None:
    random, rows = np.random.default_rng(0), 8000
    constants: dict[str, Any] = {
        "one": np.array([1]), "two": np.array([2]), "numbers": np.arange(rows)[None],
        "table": random.normal(size=(1, rows, 8)).astype(np.float32),
    }  # fmt: skip
    text = """g (int64[1,1] i) => (float[1,8] y) {
        b = Equal (i, numbers) f = Cast <to = 1> (b) u = Unsqueeze (f, two) p = Mul (u, table)
        s = ReduceSum <keepdims = 0> (p, one) c = ReduceSum (f, one) y = Div (s, c)
    }"""
    component = Component(tmp_path, graph(text, constants, opset=18), {"all": {}})
    samples = [{"i": random.integers(0, rows, (1, 1))} for _ in range(16)]
    before, after = compared(component, samples[:8], samples[:8])
    assert np.abs(before - after).max() < 0.001


@pytest.mark.parametrize(
    ("mask", "seen", "grown"),
    [
        ("f = Cast <to = 1> (m)", 8, 2), ("f = Cast <to = 1> (m)", 1, 4),
        ("q = Equal (m, zero) b = Not (q) f = Cast <to = 1> (b)", 8, 2),
        ("q = Equal (m, zero) f = Cast <to = 1> (q)", 8, None),
        ("q = Equal (m, numbers) b = Not (q) f = Cast <to = 1> (b)", 8, None),
        ("n = Neg (m) f = Cast <to = 1> (n)", 8, None),
    ],
)  # fmt: skip
def test_sums_grow_as_masks_that_the_model_is_given(mask: str, seen: float, grown: float | None) -> None:
    constants: dict[str, Any] = {"last": np.array([1]), "zero": np.int64(0), "numbers": np.arange(16)[None]}
    text = f"g (float[1,16] h, int64[1,16] m) => (float[1,1] s, float[1,1] c) {{ {mask}"
    text += " p = Mul (h, f) s = ReduceSum (p, last) c = ReduceSum (f, last) }"
    ranges = {"f": Range(0, 1), "c": Range(0, seen), "s": Range(-1, 3)}
    found = known_bounds(GraphIndex(graph(text, constants, opset=18), Path()), ranges)
    assert found.get("s") == (Range(-grown, 3 * grown) if grown is not None else None)


@pytest.mark.parametrize(
    "body", ["y = MatMul (x, weight)", "b = Greater (x, x) f = Cast <to = 1> (b) y = Mul (f, weight)"]
)
def test_weights_are_not_read(body: str, tmp_path: Path) -> None:
    weight = np.zeros((128, 128), np.float32)
    model = graph(f"g (float[128,128] x) => (float[128,128] y) {{ {body} }}", {"weight": weight}, opset=18)
    tensor = next(each for each in model.graph.initializer if each.name == "weight")
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="there_is_no_such_file")
    assert "y" not in known_bounds(GraphIndex(model, tmp_path))
