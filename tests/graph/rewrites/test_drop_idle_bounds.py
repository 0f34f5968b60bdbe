from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto

from pipeline.graph.rewrites import apply_all, drop_idle_bounds
from tests.support.graphs import graph, operators, outputs
from tests.support.on_htp import on_chip, on_cpu, sqnr_db, with_rewrites

INF = np.inf
X = np.random.default_rng(0).normal(scale=3, size=(1, 4, 8)).astype(np.float32)
X[0, 0, 0] = np.nan
CLIP = "b = Clip (a, low, high)"
IDLE: dict[str, tuple[str, float, float, dict[str, int]]] = {
    "a maximum that starts from nothing": ("b = Max (a, low)", -INF, INF, {}),
    "constant first": ("b = Max (low, a)", -INF, INF, {}),
    "a minimum": ("b = Min (a, high)", -INF, INF, {}),
    "the largest float32": ("b = Min (a, high)", -INF, float(np.finfo(np.float32).max), {}),
    "as it is rounded": ("b = Max (a, low)", -3.4e38, INF, {}),
    "both sides": (CLIP, -INF, INF, {}),
    "from below": (CLIP, -1.0, INF, {"Clip": 1}),
    "from above": (CLIP, -INF, 1.0, {"Clip": 1}),
    "three values": ("m = Neg (a) b = Max (a, low, m)", -INF, INF, {"Neg": 1, "Max": 1}),
    "twice": ("c = Max (a, low) b = Min (c, high)", -INF, INF, {}),
    "many elements": ("b = Max (a, lows)", -INF, INF, {}),
    "broadcast": (
        "c = Max (a, tall) b = ReduceSum <keepdims = 0> (c, first)", -INF, INF, {"Expand": 1, "ReduceSum": 1},
    ),
    "broadcast among three": (
        "m = Neg (a) c = Max (m, a, tall) b = ReduceSum <keepdims = 0> (c, first)",
        -INF, INF, {"Neg": 1, "Expand": 1, "Max": 1, "ReduceSum": 1},
    ),
}  # fmt: skip
LEFT_ALONE: dict[str, tuple[str, float, float]] = {
    "a bound of everything": ("b = Max (a, high)", -INF, INF),
    "clipped to nothing": ("b = Clip (a, high)", -INF, INF),
    "a float16 bound": (CLIP, -65504.0, 65504.0),
    "another operator": ("c = Add (a, low) b = Max (a, c)", -INF, INF),
    "some elements": ("b = Max (a, mixed)", -INF, INF),
}


def build(body: str, low: float, high: float, kind: str = "float") -> ModelProto:
    dtype = np.float16 if kind == "float16" else np.float32
    text = f"g ({kind}[1,4,8] x) => ({kind}[1,4,8] y) {{ a = Relu (x) {body} y = Add (b, b) }}"
    lows = np.full((4, 1), low, dtype)
    constants = {"low": dtype(low), "high": dtype(high), "lows": lows, "tall": np.full((3, 1, 1, 1), low, dtype)}
    return graph(text, {**constants, "mixed": np.where(np.arange(4) > 1, lows.T, 0).reshape(4, 1), "first": [0]})


@pytest.mark.parametrize("kind", ["float", "float16"])
@pytest.mark.parametrize("form", IDLE)
def test_bounds_of_no_effect_are_dropped(form: str, kind: str, tmp_path: Path) -> None:
    body, low, high, left = IDLE[form]
    if kind == "float16" and not {abs(low), abs(high)} <= {1.0, INF}:
        pytest.skip("float16 has no such number")
    model = build(body, low, high, kind)
    x = X.astype(np.float16 if kind == "float16" else np.float32)
    before = outputs(model, {"x": x})["y"]

    assert apply_all(model, tmp_path)["drop_idle_bounds"] == (2 if form == "twice" else 1)

    assert operators(model) == {"Relu": 1, "Add": 1, **left}
    assert not any(
        np.isinf(np.frombuffer(t.raw_data, x.dtype)).any() for t in model.graph.initializer if t.data_type in (1, 10)
    )
    np.testing.assert_array_equal(outputs(model, {"x": x})["y"], before)
    assert drop_idle_bounds.apply(model, tmp_path) == 0


@pytest.mark.parametrize("form", LEFT_ALONE)
def test_other_bounds_are_left_alone(form: str, tmp_path: Path) -> None:
    model = build(*LEFT_ALONE[form])
    before = operators(model)
    assert drop_idle_bounds.apply(model, tmp_path) == 0
    assert operators(model) == before


def test_a_result_of_the_model_keeps_its_name(tmp_path: Path) -> None:
    model = graph("g (float[1,8] x) => (float[1,8] y) { y = Max (x, low) }", {"low": np.float32(-INF)})
    assert drop_idle_bounds.apply(model, tmp_path) == 1
    assert operators(model) == {"Identity": 1}
    np.testing.assert_array_equal(outputs(model, {"x": X[0, :1]})["y"], X[0, :1])


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["w8a16", "fp16"])
def test_the_chip_takes_bounds_on_one_side(scheme: str, tmp_path: Path) -> None:
    model = graph(
        """g (float[1,4,8] x) => (float[1,4,8] low_y, float[1,4,8] high_y, float[1,4,8] y) {
            a = Mul (x, x)
            m = Max (a, low)
            b = Clip (m, tiny, high)
            low_y = Sqrt (b)
            c = Neg (m)
            high_y = Clip (c, low, minus)
            y = Max (c, low)
        }""",
        {"low": np.float32(-INF), "high": np.float32(INF), "tiny": np.float32(0.5), "minus": np.float32(-1)},
    )
    feeds = [{"x": np.nan_to_num(X)}]
    component = with_rewrites(tmp_path / "net", model)
    built = component.rewrite["all"]
    if scheme == "w8a16":
        built = component.quantize("all", component.calibrate(feeds))
    chip = on_chip(built, feeds, tmp_path / "out")
    assert (chip.context.partitions, chip.cpu_ops) == (1, set())
    truth = on_cpu(component.ingest, feeds)
    assert min(sqnr_db(truth, chip.outputs, name) for name in ("low_y", "high_y", "y")) > 45
