"""The whole search on real models: quantized, compiled, and run on the emulator."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from pipeline.contracts.precision import Found
from pipeline.contracts.scheme import Rule, Scheme
from pipeline.contracts.target import HtpTarget
from pipeline.graph.accuracy.search.sensitivity import REFERENCE
from pipeline.graph.files.model_file import load_graph
from pipeline.graph.quantization.calibration.ranges import read_ranges
from pipeline.graph.quantization.quantizer import quantize
from pipeline.model import StageInput
from tests.support.graphs import attention, graph, sentence
from tests.support.precision_runs import SENSITIVE, frames, outlier, search
from tests.support.stage_runs import Component

Given = tuple[Component, StageInput, StageInput]
SM8450 = HtpTarget(36, 69)


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Given:
    component = Component(tmp_path_factory.mktemp("outlier"), outlier(), {"16": {"frames": 16}})
    calls = frames(8)
    return component, component.samples(calls), component.calibrate(calls)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Given:
    buckets = {"8": {"sequence": 8}, "16": {"sequence": 16}}
    component = Component(tmp_path_factory.mktemp("encoder"), attention(), buckets)
    calls = [sentence(length, seed=length) for length in range(4, 17)]
    return component, component.samples(calls), component.calibrate(calls)


def chosen(found: StageInput) -> Scheme:
    return Found.from_json(json.loads((found.folder / "precision.json").read_text("utf-8"))).scheme


def figure(found: StageInput, name: str) -> float:
    value = found.facts[name]
    assert isinstance(value, float | int)
    return value


def curve(found: StageInput) -> list[dict[str, Any]]:
    points = found.facts["curve"]
    assert isinstance(points, list)
    return [point for point in points if isinstance(point, dict)]


def test_8_bits_are_kept_where_they_do(encoder: Given, tmp_path: Path) -> None:
    found = search(*encoder, tmp_path, target_db=12)

    assert chosen(found).activations == "uint8"
    assert not any(rule.activations for rule in chosen(found).overrides), "weights of 4 bits at most"
    assert figure(found, "share_8bit") == 1.0
    assert figure(found, "db_emulator") >= 14
    assert figure(found, "db_cpu") >= 14


def test_only_the_layer_that_needs_it_is_raised(net: Given, tmp_path: Path) -> None:
    found = search(*net, tmp_path, target_db=25)

    rule = Rule(nodes=SENSITIVE, activations="uint16")
    scheme = chosen(found)
    assert [each for each in scheme.overrides if each.weights is None] == [rule]
    assert {each.activations for each in scheme.overrides} == {None, "uint16"}, "weights of 4 bits beside it at most"
    assert replace(scheme, overrides=()) == replace(REFERENCE, activations="uint8", block=None)
    assert figure(found, "db_emulator") >= 25.5
    assert found.facts["scheme"] == "w8a8 mixed"


def test_what_16_bits_are_too_few_for_stays_in_float(net: Given, tmp_path: Path) -> None:
    found = search(*net, tmp_path, target_db=38)

    scheme = chosen(found)
    assert scheme.activations == "uint16"
    (rule,) = scheme.overrides
    assert rule.precision == "fp16"
    assert 0 < len(rule.nodes) < 6
    assert figure(found, "db_emulator") >= 38.5


def test_the_curve_shows_what_was_tried_with_w8a16_as_the_reference(
    net: Given, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = search(*net, tmp_path, target_db=25)

    points = curve(found)
    labels = [point["label"] for point in points]
    assert [point["cost"] for point in points] == sorted(point["cost"] for point in points)
    reference = points[labels.index("w8a16")]
    assert (reference["cost"], reference["share_8bit"]) == (1.0, 0.0)
    assert points[labels.index("w8a8")]["share_8bit"] == 1.0
    assert points[labels.index("w8a8")]["db_cpu"] < 25 < reference["db_cpu"]
    measured = [point for point in points if point["db_emulator"] is not None]
    assert measured, "what is chosen was emulated"
    assert len(measured) == found.facts["emulations"]
    assert all(not point["rounded"] for point in measured), "and quantized before"

    printed = capsys.readouterr().out
    assert "8 bit ops" in printed
    (line,) = (line for line in printed.splitlines() if line.endswith("<- chosen"))
    assert f"{figure(found, 'db_emulator'):.1f} dB  7 of 11 nodes a8" in line
    assert json.loads((found.folder / "precision.json").read_text("utf-8"))["curve"] == points


def test_integers_are_judged_as_the_ladder_judges_them(tmp_path: Path) -> None:
    """Bytes by how far they are off, not by equality; a choice between two that are as good not at all."""
    weights = np.random.default_rng(0).normal(size=(16, 8)).astype(np.float32)
    model = graph(
        """picture (float[batch,frames,16] x) => (uint8[batch,frames,8] levels, int64[batch,frames] best) {
            m = MatMul (x, w)
            half = Constant <value_float = 128.0> ()
            low = Constant <value_float = 0.0> ()
            high = Constant <value_float = 255.0> ()
            ten = Constant <value_float = 10.0> ()
            a = Mul (m, ten)
            b = Add (a, half)
            c = Clip (b, low, high)
            levels = Cast <to = 2> (c)
            t = MatMul (x, twice)
            best = ArgMax <axis = -1, keepdims = 0> (t)
        }""",
        {"w": weights, "twice": np.concatenate([weights, weights * np.float32(1.0001)], 1)},
    )
    component = Component(tmp_path / "net", model, {"16": {"frames": 16}})
    calls = frames(12)
    samples, ranges = component.samples(calls), component.calibrate(calls)
    found = search(component, samples, ranges, tmp_path, target_db=25, max_emulations=0)

    (byte_wide,) = (point for point in curve(found) if point["label"] == "w8a8")
    assert byte_wide["db_cpu"] > 40, "half a level of 256, of values that are tens of levels"
    assert figure(found, "db_cpu") >= 25
    assert "fp16" not in str(found.facts["scheme"])


def as_contract(written: dict[str, Any]) -> dict[str, Any]:
    """With the type of weights and their block, which a config has under one key, apart."""
    places = [dict(place) for place in (written, *written.get("overrides", []))]
    for place in places:
        if isinstance(place.get("weights"), dict):
            place |= {"weights": place["weights"]["dtype"], "block": place["weights"]["block"]}
    return {**places[0], "overrides": places[1:]}


def test_the_written_configuration_is_what_was_chosen(net: Given, tmp_path: Path) -> None:
    found = search(*net, tmp_path, target_db=20)

    written = yaml.safe_load((found.folder / "quantization.yaml").read_text("utf-8"))["components"]["net"]
    assert written["quantization"].pop("method") == "minmax"
    scheme = Scheme.from_json(as_contract(written["quantization"]))
    assert scheme == chosen(found)
    component, _, calibrated = net
    folder = component.rewrite["16"].folder
    ranges = read_ranges(calibrated.folder / "ranges.json")
    models = [
        quantize(load_graph(folder / "model.onnx"), folder, ranges, each).model for each in (scheme, chosen(found))
    ]
    assert models[0].SerializeToString(deterministic=True) == models[1].SerializeToString(deterministic=True)


def test_the_same_search_gives_the_same_bytes(encoder: Given, tmp_path: Path) -> None:
    first, second = (search(*encoder, tmp_path / name, target_db=25) for name in ("first", "second"))
    assert first.files == second.files
    assert first.facts == second.facts


def test_where_nothing_keeps_to_the_target_the_gates_judge_w8a16(
    net: Given, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a search measures is an estimate on its own samples: it refuses nothing."""
    found = search(*net, tmp_path, target_db=38, fp16=False)
    assert chosen(found) == REFERENCE
    assert "nothing that was tried keeps to 38 dB" in capsys.readouterr().out


def test_targets_without_float16_get_integers(net: Given, tmp_path: Path) -> None:
    found = search(*net, tmp_path, target_db=38, targets=(HtpTarget(60, 73), SM8450))
    assert not chosen(found).overrides


def test_the_budget_is_kept(net: Given, tmp_path: Path) -> None:
    found = search(*net, tmp_path, target_db=25, max_trials=4, max_emulations=1)
    assert found.facts["trials"] == len(curve(found)) <= 4
    assert found.facts["emulations"] == 1


def test_without_emulations_the_cpu_decides(net: Given, tmp_path: Path) -> None:
    found = search(*net, tmp_path, target_db=25, max_emulations=0)
    assert found.facts["emulations"] == 0
    assert found.facts["db_emulator"] is None
    assert figure(found, "db_cpu") >= 25.5
