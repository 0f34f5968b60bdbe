from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.model import Json, StageInput
from pipeline.stages import blame
from tests.support.graphs import SPECTRUM, graph, sentence
from tests.support.sentences import BUCKETS, CALLS
from tests.support.stage_runs import Component, run_stage


@pytest.fixture(scope="module")
def ranges(component: Component) -> StageInput:
    ranges = component.calibrate(CALLS)
    path = ranges.folder / "ranges.json"
    found = json.loads(path.read_text())
    found["h"] = [bound / 4 for bound in found["h"]]
    path.write_text(json.dumps(found))
    return ranges


def run(
    component: Component, ranges: StageInput | None, out: Path, bucket: str = "16", calls: Any = CALLS
) -> StageInput:
    params: dict[str, Json] = {
        "component": "net",
        "bucket": bucket,
        "axes": {**BUCKETS[bucket]},
        "buckets": {name: {**axes} for name, axes in BUCKETS.items()},
        "padding": {},
        "part": "all",
        "thresholds": {"padding": 60.0, "rewrite": 60.0, "quantization": 15.0},
    }
    inputs = {
        "ingest": component.ingest,
        "samples": component.samples(calls),
        "shape": component.shape[bucket],
        "rewrite": component.rewrite[bucket],
        **({"quantize": component.quantize(bucket, ranges), "calibrate": ranges} if ranges else {}),
    }
    return run_stage("blame", out, params, inputs)


def test_the_table_and_the_facts_name_the_value_at_fault(
    component: Component, ranges: StageInput, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = run(component, ranges, tmp_path / "out")

    facts: Any = output.facts
    assert (facts["samples"], facts["of"]) == (5, 5), "its own first, then shorter ones"
    assert {rung: [row["value"] for row in rows] for rung, rows in facts["first_wrong"].items()} == {
        "padding": [],
        "rewrite": [],
        "quantization": ["h"],
    }
    worst = facts["worst"][0]
    assert (worst["value"], worst["op"], worst["reason"]["name"]) == ("h", "Add", "saturated")
    assert worst["encoding"]["dtype"] == "uint16"
    assert worst["calibrated"][1] < worst["observed"][1]
    assert worst["own_db"] < 20
    printed = capsys.readouterr().out
    head, first = printed[printed.index("value") :].splitlines()[:2]
    assert head.split()[:8] == ["value", "op", "encoding", "covers", "seen", "dB", "own", "weights"]
    assert first.split()[:3] == ["h", "Add", "uint16"]
    assert "saturated: elements" in first
    assert "first wrong by quantization, under 15 dB:\n  'h' " in printed
    assert (output.folder / "report.txt").read_text("utf-8") == printed[printed.index("value") :]


def test_all_rows_of_every_rung_are_kept_and_are_the_same_again(
    component: Component, ranges: StageInput, tmp_path: Path
) -> None:
    output = run(component, ranges, tmp_path / "out")
    again = run(component, ranges, tmp_path / "again")

    assert again.files == output.files
    assert again.facts == output.facts
    rungs = json.loads((output.folder / "blame.json").read_text("utf-8"))["rungs"]
    assert list(rungs) == ["padding", "rewrite", "quantization"]
    assert {row["value"] for row in rungs["rewrite"]} == {row["value"] for row in rungs["quantization"]}
    assert min(row["sqnr_db"] for row in rungs["padding"]) == 100
    facts: Any = output.facts
    assert rungs["quantization"][: len(facts["worst"])] == facts["worst"]


def test_only_so_many_samples_are_run(
    component: Component, ranges: StageInput, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blame, "MOST_SAMPLES", 1)

    facts = run(component, ranges, tmp_path / "out").facts

    assert (facts["samples"], facts["of"]) == (1, 5)


def test_without_samples_nothing_is_measured(
    component: Component, ranges: StageInput, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = run(component, ranges, tmp_path / "out", "8", [sentence(14)]).facts

    assert facts == {"samples": 0, "of": 0, "worst": [], "first_wrong": {}}
    assert "not measured: bucket 8 holds none of the samples" in capsys.readouterr().out


def test_a_component_that_stays_in_float_has_no_quantization_rung(
    component: Component, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = run(component, None, tmp_path / "out")

    assert output.facts == {"samples": 5, "of": 5, "worst": [], "first_wrong": {"padding": [], "rewrite": []}}
    assert list(json.loads((output.folder / "blame.json").read_text("utf-8"))["rungs"]) == ["padding", "rewrite"]
    assert (output.folder / "report.txt").read_text("utf-8") == ""


def looked_at_in(root: Path, text: str, loudness: tuple[float, ...] = (1.0, 1.0, 1.0), *, quiet: bool = True) -> Any:
    """The facts of blame for a model that takes the logarithm of a spectrum, for samples that are so loud."""
    numbers = np.random.default_rng(3)
    weight = numbers.standard_normal((16, 16)).astype(np.float32)
    component = Component(root, graph(text, {"w": weight, "floor": np.float32(1e-12)}), {"all": {}})
    calls = [{"x": size * numbers.standard_normal((1, 64, 16)).astype(np.float32)} for size in (0.9, 1.0, 0.95)]
    ranges = component.calibrate(calls)
    given = [{"x": call["x"] * np.float32(factor)} for call, factor in zip(calls, loudness, strict=True)]
    params: dict[str, Json] = {
        "component": "net", "bucket": "all", "axes": {}, "buckets": {"all": {}}, "padding": {}, "part": "all",
        "thresholds": {"padding": 60.0, "rewrite": 60.0, "quantization": 19.5}, "quiet": quiet,
    }  # fmt: skip
    inputs = {
        "ingest": component.ingest, "samples": component.samples(given), "shape": component.shape["all"],
        "rewrite": component.rewrite["all"], "quantize": component.quantize("all", ranges), "calibrate": ranges,
    }  # fmt: skip
    return run_stage("blame", root / "out", params, inputs).facts


def test_what_is_near_0_in_silence_is_not_looked_at_there(tmp_path: Path) -> None:
    """A probability of a millionth is rounded to 0, which is 0 dB and no miss."""
    text = SPECTRUM.replace("y = Log (floored)", "l = Log (floored)  y = Sigmoid (l)")
    assert "quiet" not in looked_at_in(tmp_path, text)


@pytest.mark.parametrize(("loudness", "quiet", "looked_at"), [
    ((1.0, 1.0, 1.0), True, "samples:2, quiet"),
    ((1.0, 1.0, 1.0), False, None),
    ((1e-3, 1e-3, 1e-3), True, None),
    ((1.0, 1e-5, 1.0), True, None),
])  # fmt: skip
def test_the_quiet_sample_that_missed_is_looked_at(
    tmp_path: Path, loudness: tuple[float, ...], quiet: bool, looked_at: str | None
) -> None:
    """Loud samples are right; where one that was given is wrong itself, those are what is looked at."""
    facts = looked_at_in(tmp_path, SPECTRUM, loudness, quiet=quiet)

    assert facts.get("quiet") == looked_at
    assert facts["samples"] == (1 if looked_at else 3)
    wrong = [row["value"] for row in facts["first_wrong"]["quantization"]]
    assert bool(wrong) == (looked_at is not None or min(loudness) < 1), "loud samples show nothing"
