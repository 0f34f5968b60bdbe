"""Files that round as they run, held against the floats that their weights stand for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnxruntime.quantization import quantize_dynamic

from pipeline.contracts.samples import Facts
from pipeline.graph.accuracy.own_rounding import own_rounding_db
from pipeline.model import Manifest
from pipeline.report import remarks
from tests.support.graphs import graph
from tests.support.sample_sets import SampleStep, ingest, npz

RANDOM = np.random.default_rng(2)
QUIET_AND_LOUD = """g (float[1,rows,32] x) => (float[1,rows,32] y) {
    n = MatMul (x, w)
    y = LayerNormalization <axis = -1> (n, gamma)
}"""


def facts(folder: Path, loudness: float, *, quantized: bool = True, loud: range = range(6), count: int = 6) -> Facts:
    """What the samples step says of a file whose first row is so many times the others, in its `loud` samples."""
    constants = {"w": RANDOM.standard_normal((32, 32)) / 6, "gamma": np.ones(32)}
    source, made = folder / "source", folder / "set"
    source.mkdir(parents=True)
    made.mkdir()
    model = graph(QUIET_AND_LOUD, {name: array.astype(np.float32) for name, array in constants.items()})
    onnx.save(model, source / "net.onnx")
    if quantized:
        quantize_dynamic(source / "net.onnx", source / "net.onnx")
    for number in range(count):
        x = RANDOM.standard_normal((1, 5, 32)).astype(np.float32)
        x[:, 0] *= loudness if number in loud else 1.0
        npz(made / f"{number:02}.npz", x=x)
    step = SampleStep(ingest(source, {"net": "net.onnx"}, folder / "ingest"), {"net": {"8": {"rows": 8}}}, folder)
    return Facts.from_json(step.run({"reader": "npz"}, made).facts)


def test_a_file_whose_own_steps_drown_what_is_quiet_is_told(tmp_path: Path) -> None:
    told = facts(tmp_path, 200.0).rounding_db
    assert told is not None
    assert told["net"] in (5, 10)


def test_a_few_samples_that_it_drowns_are_told_wherever_they_lie(tmp_path: Path) -> None:
    """A detector of turns has 0.01 for one recording in ten where its floats have 0.55; the rest is near them."""
    told = facts(tmp_path, 200.0, loud=range(24, 27), count=40).rounding_db
    assert told is not None
    assert told["net"] in (5, 10)


def test_a_file_that_is_near_its_floats_is_not(tmp_path: Path) -> None:
    assert facts(tmp_path, 1.0).rounding_db is None


def test_a_float_file_is_not_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.stages.samples.own_rounding_db", lambda *_: 5)
    assert facts(tmp_path, 200.0, quantized=False).rounding_db is None


@pytest.mark.parametrize("refused", ["loading", "running"])
def test_a_file_that_onnxruntime_does_not_run_is_built_all_the_same(tmp_path: Path, refused: str) -> None:
    """It has no kernel for int8 activations with uint8 weights, and lengths that don't divide fail as it runs."""
    source, made = tmp_path / "source", tmp_path / "set"
    source.mkdir()
    made.mkdir()
    weight = np.dtype(np.uint8 if refused == "loading" else np.int8)
    body = """g (float[1,4,rows] x) => (float[1,4,rows] y) {
        q = QuantizeLinear (x, scale, zero)
        r = QLinearConv (q, scale, zero, weight, scale, weight_zero, scale, zero)
        d = DequantizeLinear (r, scale, zero)
        y = Add (d, row)
    }"""
    constants: dict[str, NDArray[Any]] = {
        "scale": np.array(0.01, np.float32),
        "zero": np.array(0, np.int8),
        "weight": RANDOM.integers(0, 100, (4, 4, 1)).astype(weight),
        "weight_zero": np.array(0, weight),
        "row": np.zeros(1 if refused == "loading" else 4, np.float32),
    }
    onnx.save(graph(body, constants), source / "net.onnx")
    for number in range(3):
        npz(made / f"{number}.npz", x=np.ones((1, 4, 5), np.float32))
    step = SampleStep(ingest(source, {"net": "net.onnx"}, tmp_path / "ingest"), {"net": {"8": {"rows": 8}}}, tmp_path)
    told = Facts.from_json(step.run({"reader": "npz"}, made).facts)
    assert told.count == {"net": 3}
    assert told.rounding_db is None


FINE, NAN, INF = 1.001, np.nan, np.inf


def told_of(folder: Path, *calls: tuple[float, float]) -> int | None:
    """What is said where a float file gives the first number of each call, and the one that rounds the second."""
    for name, given in (("floats", "truth"), ("own", "rounded")):
        text = f"g (float[1] truth, float[1] rounded) => (float[1] y) {{ y = Identity ({given}) }}"
        onnx.save(graph(text), folder / f"{name}.onnx")
    feeds = [dict(zip(("truth", "rounded"), np.array([[t], [r]], np.float32), strict=True)) for t, r in calls]
    return own_rounding_db(folder / "own.onnx", folder / "floats.onnx", feeds)


@pytest.mark.parametrize(
    "calls",
    [
        [(1, FINE), (1, INF)],
        [(1, NAN), (1, FINE)],
        [(1, FINE), (1, NAN), (1, FINE)],
        [(0, 1)],
        [(0, 0), (0, 1e-6)],
    ],
)
def test_what_is_no_number_or_breaks_a_silence_is_nothing_like_the_floats(
    tmp_path: Path, calls: Sequence[tuple[float, float]]
) -> None:
    assert told_of(tmp_path, *calls) == 5


@pytest.mark.parametrize(
    "calls",
    [
        [(1, FINE), (NAN, 1)],
        [(INF, INF), (1, FINE)],
        [(INF, 1)],
        [(0, 0)],
        [(0, 0.001), (1, FINE)],
    ],
)
def test_a_call_that_the_floats_make_nothing_of_tells_nothing(
    tmp_path: Path, calls: Sequence[tuple[float, float]]
) -> None:
    assert told_of(tmp_path, *calls) is None


def test_calls_that_the_floats_make_nothing_of_hide_no_other(tmp_path: Path) -> None:
    assert told_of(tmp_path, (NAN, 1), (1, 0.5), (INF, 1)) == 10


def test_the_report_names_it_once_with_the_worst_figure() -> None:
    config = SimpleNamespace(name="titles")
    steps: list[Any] = [SimpleNamespace(stage="samples", id=name, config=config) for name in ("a", "b", "old")]
    manifests = {
        step.id: Manifest(step.id, "", {}, Facts({"net": 6}, 6, 0, {}, {"net": db}).to_json())
        for step, db in zip(steps, (15, 10, 5), strict=True)
    }
    assert remarks.rounding(steps, {"a", "b"}, manifests) == ["titles/net (less than 10 dB)"]
