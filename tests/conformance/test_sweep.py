from __future__ import annotations

from itertools import permutations
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from onnx import numpy_helper

from pipeline.errors import PipelineError
from pipeline.graph.quantization.calibration.ranges import Range
from pipeline.qnn.child import compile_apart
from tests.conformance import batches
from tests.conformance.batches import run_batch
from tests.conformance.cases import Case, single
from tests.conformance.findings import FINDINGS, explain
from tests.conformance.formats import in_format
from tests.conformance.judge import AGREES, COARSE, FORMAT, WRONG, judge
from tests.conformance.page import write
from tests.conformance.same_rounding import between, moved
from tests.conformance.sweep import Outcome, Results, sweep
from tests.support.graphs import graph, outputs

X = np.array([[-0.0, 0.5, 3, 60000]], np.float32)


@pytest.mark.parametrize(
    ("given", "verdict"),
    [
        ([0, 0.25, 9, 131008], FORMAT),
        ([0, 0.25, 9.01, 131008], FORMAT),
        ([0, 0.25, 9.1, 131008], FORMAT),
        ([-4, 0.25, 9, 131008], WRONG),
        ([0, 0.25, 9, 0], WRONG),
        ([0, 0.25, 9, -131008], WRONG),
    ],
    ids=["right", "rounded", "coarse and too large", "minus four", "nothing for too large", "of the other sign"],
)
def test_float16_is_judged_by_its_own_rounding(given: list[float], verdict: str) -> None:
    model, feeds = single("Mul", [X, X])
    assert judge("Mul", "fp16", model, feeds, [np.array([given], np.float32)]).kind == verdict


def test_what_is_subnormal_may_be_flushed() -> None:
    model, feeds = single("Neg", [np.array([[3e-5, 1]], np.float32)])
    assert judge("Neg", "fp16", model, feeds, [np.array([[0, -1]], np.float32)]).kind == AGREES
    assert judge("Neg", "fp16", model, feeds, [np.array([[0, -1.01]], np.float32)]).kind == COARSE


@pytest.mark.parametrize(("steps", "verdict"), [(0, AGREES), (8, AGREES), (9, COARSE), (256, COARSE), (257, WRONG)])
def test_integers_are_judged_in_steps(steps: int, verdict: str) -> None:
    model, feeds = single("Neg", [np.linspace(-1, 1, 16, dtype=np.float32)[None]])
    quantized = in_format(model, feeds, "u16", {})
    right = outputs(quantized, feeds)["y0"]
    step = 3 / 65535  # the quantizer gives values of an input half their range more
    assert judge("Neg", "u16", quantized, feeds, [right + np.float32(steps * step)]).kind == verdict


@pytest.mark.parametrize(("steps", "right"), [(1, True), (3, False)])
def test_what_a_step_in_front_does_to_the_next_operator_is_right(steps: int, right: bool) -> None:
    """A step of the sum is eight of its sine's, which are right of one, and not of three."""
    x = np.linspace(-1, 1, 64, dtype=np.float32)[None]
    model = graph("g (float[1,64] x) => (float[1,64] y) { h = Add (x, x) y = Sin (h) }")
    quantized = in_format(model, {"x": x}, "u8", {"h": Range(-8, 8), "y": Range(-1, 1)})
    given = outputs(quantized, {"x": x})["y"]
    off = np.sin(np.arcsin(np.clip(given, -1, 1)) + steps * 16 / 255).astype(np.float32)
    assert np.abs(off - given).max() > 5 * 2 / 255, "more than the rounding of the result"
    assert (judge("Add+Sin", "u8", quantized, {"x": x}, [off]).kind == AGREES) is right


@pytest.mark.parametrize(("given", "verdict"), [(-20, AGREES), (-19, AGREES), (-18, WRONG), (-21, WRONG)])
def test_a_cast_may_cut_off_what_float32_rounds_away(given: int, verdict: str) -> None:
    """Of a value that is computed: an input that is cast as it comes stays in float."""
    feeds = {"x": np.array([[20, -20, -3.5]], np.float32)}
    model = graph("g (float[1,3] x) => (int32[1,3] y0) { n = Neg (x) y0 = Cast <to = 6> (n) }")
    quantized = in_format(model, feeds, "u16", {})
    assert outputs(quantized, feeds)["y0"][0, 0] == -20
    assert judge("Cast", "u16", quantized, feeds, [np.array([[given, 20, 3]], np.int32)]).kind == verdict


def test_a_value_in_front_is_not_moved_beyond_its_encoding() -> None:
    """1 / Sqrt(0) is the end of its encoding; were the root a step below 0, it would be 0."""
    x = np.array([[1e-6, 1.0, 2.0, 3.0]], np.float32)
    model = graph("g (float[1,4] x) => (float[1,4] y) { h = Sqrt (x) y = Div (one, h) }", {"one": np.float32(1)})
    quantized = in_format(model, {"x": x}, "u16", {"y": Range(0, 200)})
    right = outputs(quantized, {"x": x})["y"]
    assert right[0, 0] > 199
    assert judge("Sqrt+Div", "u16", quantized, {"x": x}, [right]).kind == AGREES
    assert judge("Sqrt+Div", "u16", quantized, {"x": x}, [right * np.array([[0, 1, 1, 1]], np.float32)]).kind == WRONG


def test_any_two_elements_are_moved_against_each_other() -> None:
    x = np.linspace(-1, 1, 12, dtype=np.float32)[None]
    model = graph("g (float[1,12] x) => (float[1,12] y) { h = Neg (x) y = Softmax (h) }")
    quantized = in_format(model, {"x": x}, "u8", {})
    (name,) = [node.output[0] for node in between(quantized)]
    shifts = [
        numpy_helper.to_array(tensor).ravel()
        for each in moved(quantized, {name: x}, 1)
        for tensor in each.graph.initializer
        if tensor.name == f"{name}_shift"
    ]
    missed = [(a, b) for a, b in permutations(range(12), 2) if not any(shift[a] > 0 > shift[b] for shift in shifts)]
    assert missed == []
    assert np.ptp(np.abs(shifts)) < 1e-9, "all by the same"


def test_outcomes_of_other_versions_are_not_mixed_in(tmp_path: Path) -> None:
    Results(tmp_path).add([Outcome("a", "Relu", "fp16", "ordinary", "", AGREES, versions="onnxruntime-qnn 1.0.0")])
    with pytest.raises(PipelineError, match=r"(?s)onnxruntime-qnn 1\.0\.0.*delete this one"):
        sweep([], tmp_path, 60, print)


@pytest.mark.slow
def test_a_batch_that_fails_names_the_model_that_does(tmp_path: Path) -> None:
    good, feeds = single("Relu", [X])
    bad, _ = single("Mish", [X], opset=21)

    found = run_batch([good, bad, good], [feeds] * 3, tmp_path / "work")

    assert ["Mish" in outcome.refused for outcome in found] == [False, True, False]
    np.testing.assert_allclose(found[0].outputs[0], [[0, 0.5, 3, 60000]], rtol=1e-3)
    np.testing.assert_array_equal(found[2].outputs[0], found[0].outputs[0])


@pytest.mark.slow
def test_of_a_batch_the_model_that_qnn_names_is_set_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    relu, feeds = single("Relu", [X])
    four = [np.ones((2, 4, 3), np.float32), *[np.ones(4, np.float32)] * 2]
    group, own = single("GroupNormalization", four, constants=(1, 2), num_groups=2)
    compiled = Mock(side_effect=compile_apart)
    monkeypatch.setattr(batches, "compile_apart", compiled)

    found = run_batch([relu, group, relu, relu, relu], [feeds, own, *[feeds] * 3], tmp_path / "work")

    assert ["GroupNormalization" in outcome.refused for outcome in found] == [False, True, False, False, False]
    assert all(outcome.outputs for at, outcome in enumerate(found) if at != 1)
    assert compiled.call_count == 2


@pytest.mark.slow
def test_a_sweep_goes_on_where_it_was_ended(tmp_path: Path) -> None:
    model, _ = single("Relu", [X])
    cases = [Case("Relu", "fp16", "ordinary", str(number), model, {"x0": X + number}) for number in range(2)]
    cases.append(Case("Relu", "fp16", "ordinary", "again", model, {"x0": X + 0}))
    said: list[str] = []

    assert sweep(cases, tmp_path, -1, said.append) == 2
    assert sweep(cases[:1], tmp_path, 60, said.append) == 0
    with (tmp_path / "results.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"name": "Relu')  # a run that was killed
    assert [*Results(tmp_path).read()] == ["Relu/fp16/ordinary/0"]
    assert sweep(cases, tmp_path, -1, said.append) == 1
    assert len(said) == 1


def test_the_page_has_every_finding_and_what_none_explains(tmp_path: Path) -> None:
    known = Outcome("a", "Exp", "fp16", "hundreds", "", WRONG, "", 1, 64, ("-300: 131008, right 0",), versions="qnn 2")
    new = Outcome("b", "Neg", "u8", "ordinary", "", WRONG, "", 3, 64, ("1: 1, right -1",))
    assert (explain(known), explain(new)) == (next(f for f in FINDINGS if f.id == "exp-far-below"), None)

    write([known, new], {"onnx": 7}, "2026-01-01", tmp_path / "page.md")

    text = (tmp_path / "page.md").read_text("utf-8")
    assert all(f"`{finding.id}`" in text for finding in FINDINGS)
    assert "| Neg | u8 | ordinary |  | 1: 1, right -1 | 1 of 1 |" in text
    assert "1 of 2 outcomes were made with qnn 2.\n1 of 2 outcomes don't say" in text
    assert "Not run, for want of time: 7 of `onnx`." in text
