"""Whether an error is that of inputs in float16."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipeline.graph.accuracy.reading.input_rounding import left_at_the_edge_db, lost_by_inputs
from pipeline.graph.files.model_file import save_graph
from tests.support.graphs import graph, outputs

LOUD, QUIET = np.float32(0.3), np.float32(1e-5)


def test_what_cancels_the_loud_part_hears_the_rounding(tmp_path: Path) -> None:
    """The second difference of a ramp is 0 but for what is quiet."""
    model = graph(
        "g (float[1,64] x, int64[1] n) => (float[1,62] y, int64[1] m)"
        " { a = Slice (x, zero, last2) b = Slice (x, one, last1) c = Slice (x, two, all) d = Add (b, b) e = Sub (a, d)"
        " y = Add (e, c) m = Identity (n) }",
        {"zero": [0, 0], "one": [0, 1], "two": [0, 2], "last2": [1, 62], "last1": [1, 63], "all": [1, 64]},
    )
    save_graph(model, tmp_path / "model.onnx")
    quiet = np.random.default_rng(0).normal(size=(1, 64)).astype(np.float32) * QUIET
    feeds = {"x": np.linspace(0, LOUD, 64, dtype=np.float32)[None] + quiet, "n": np.array([3])}
    expected = outputs(model, feeds)
    half = feeds | {"x": feeds["x"].astype(np.float16).astype(np.float32)}
    got = outputs(model, half)
    found = lost_by_inputs(tmp_path / "model.onnx", feeds, expected, got)
    assert found is not None
    assert found < 10
    noise = np.random.default_rng(1).normal(size=(1, 62)).astype(np.float32)
    assert lost_by_inputs(tmp_path / "model.onnx", feeds, expected, got | {"y": expected["y"] + noise}) is None


def test_an_ordinary_model_does_not(tmp_path: Path) -> None:
    model = graph("g (float[1,64] x) => (float[1,64] y) { y = Tanh (x) }")
    save_graph(model, tmp_path / "model.onnx")
    feeds = {"x": np.random.default_rng(0).normal(size=(1, 64)).astype(np.float32)}
    expected = outputs(model, feeds)
    got = {"y": expected["y"] * np.float32(0.99)}
    assert lost_by_inputs(tmp_path / "model.onnx", feeds, expected, got) is None


def test_what_is_left_at_the_edge_is_the_better_of_floats_and_integers(tmp_path: Path) -> None:
    """What is told of two inputs is what the one that is rounded worse leaves."""
    model = graph("g (float[1,64] x, float[1,64] k) => (float[1,64] y, float[1,64] z) { y = Sub (x, n) z = Neg (k) }",
                  {"n": np.float32(10000)})  # fmt: skip
    save_graph(model, tmp_path / "model.onnx")
    noise = np.random.default_rng(0).normal(size=(2, 1, 64)).astype(np.float32)
    feeds = [{"x": 10000 + each, "k": each} for each in noise]

    left = left_at_the_edge_db(tmp_path / "model.onnx", feeds, ["y"])
    assert left == pytest.approx(20 * np.log10(np.sqrt(12) * 65535 / 10003), abs=2), "by integers; 10000 has steps of 8"
    assert 70 < left_at_the_edge_db(tmp_path / "model.onnx", feeds, ["z"]) < 100
    assert left_at_the_edge_db(tmp_path / "model.onnx", feeds, ["y", "z"]) == left
    quiet = [{**feed, "k": feed["k"] * np.float32(1e-4) + (feed["k"] > 2) * np.float32(1000)} for feed in feeds]
    assert left_at_the_edge_db(tmp_path / "model.onnx", quiet, ["z"]) > 70, "by floats"
