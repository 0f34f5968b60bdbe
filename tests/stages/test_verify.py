from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.contracts.verify import UNMEASURED, Facts
from pipeline.errors import ConfigError, VerificationError
from pipeline.graph.accuracy.figures.accuracy import Accuracy
from pipeline.ladder import EXACT_DB
from pipeline.model import Json, StageInput
from tests.support.figures import db
from tests.support.graphs import graph, outputs, sentence
from tests.support.sentences import CALLS
from tests.support.stage_runs import Component


@pytest.fixture(scope="module")
def held_out(component: Component) -> StageInput:
    return component.samples(CALLS, labels=["even" if call["input_ids"].sum() % 2 == 0 else "odd" for call in CALLS])


def code(folder: Path, text: str) -> Path:
    file = folder / "calibration" / "score.py"
    file.parent.mkdir()
    file.write_text(text, "utf-8")
    return file


def test_every_rung_is_measured_against_the_one_above(
    component: Component, quantized: dict[str, StageInput], held_out: StageInput
) -> None:
    facts = Facts.from_json(component.verify("16", held_out, quantized["16"]).facts)

    assert (facts.samples, facts.shorter) == (5, 3), "those of 11 and 14, and for want of more the shorter ones"
    assert db(facts.rungs["padding"]["hidden"]) == EXACT_DB
    assert db(facts.rungs["rewrite"]["hidden"]) == EXACT_DB
    assert 35 < db(facts.rungs["quantization"]["hidden"]) < 60
    assert facts.score is None


def test_the_outputs_are_the_last_rung_against_the_truth_in_the_valid_region(
    component: Component, quantized: dict[str, StageInput], held_out: StageInput
) -> None:
    facts = Facts.from_json(component.verify("16", held_out, quantized["16"]).facts)

    signal = noise = largest = 0.0
    for call in CALLS:
        length = call["input_ids"].shape[1]
        truth = outputs(component.ingest.folder / "model.onnx", call)["hidden"].astype(np.float64)
        padded = {name: np.pad(array, ((0, 0), (0, 16 - length))) for name, array in call.items()}
        error = outputs(quantized["16"].folder / "model.onnx", padded)["hidden"][:, :length] - truth
        signal, noise = signal + (truth**2).sum(), noise + (error**2).sum()
        largest = max(largest, float(np.abs(error).max()))
    assert db(facts.outputs["hidden"]) == pytest.approx(10 * math.log10(signal / noise), abs=0.1)
    assert facts.outputs["hidden"].max_abs_error == pytest.approx(largest, rel=0.05)
    cosine = facts.outputs["hidden"].cosine
    assert cosine is not None
    assert cosine > 0.9998


def test_a_component_that_stays_in_float_has_no_quantization_rung(component: Component, held_out: StageInput) -> None:
    facts = Facts.from_json(component.verify("8", held_out).facts)

    assert list(facts.rungs) == ["padding", "rewrite"]
    assert db(facts.outputs["hidden"]) == EXACT_DB


def test_what_stays_in_float_is_forecast_from_the_samples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = graph("g (float[1,8] x, int64[1,8] n) => (float[1,1] y, int64[1,8] s) { s = Mul (n, n) y = ReduceSum (x) }")
    component = Component(tmp_path, model, {"all": {}})
    loud: dict[str, NDArray[Any]] = {"x": np.full((1, 8), 20000, np.float32), "n": np.arange(8)[None] * 10**5}
    quiet: dict[str, NDArray[Any]] = {"x": np.ones((1, 8), np.float32), "n": np.zeros((1, 8), np.int64)}

    facts = Facts.from_json(component.verify("all", component.samples([quiet, loud])).facts)

    assert [(each.rule, each.value) for each in facts.forecasts] == [("fp16_overflow", "y"), ("integer_overflow", "s")]
    assert "fp16_overflow: 'y'" in capsys.readouterr().out
    assert Facts.from_json(component.verify("all", component.samples([quiet])).facts).forecasts == ()
    quantized = component.quantize("all", component.calibrate([quiet, loud]))
    facts = Facts.from_json(component.verify("all", component.samples([quiet, loud]), quantized).facts)
    assert facts.forecasts == (), "that of a QDQ model is the quantizer's"


def test_the_cost_of_padding_shows_on_its_rung(tmp_path: Path) -> None:
    model = graph(
        """g (float[1,2,frames] x) => (float[1,2,frames] y) {
            wide = Pad <mode = "edge"> (x, pads)
            y = Conv (wide, w)
        }""",
        {"pads": np.array([0, 0, 1, 0, 0, 1]), "w": np.ones((2, 2, 3), np.float32)},
    )
    component = Component(tmp_path, model, {"8": {"frames": 8}})
    samples = component.samples([{"x": np.ones((1, 2, 5), np.float32)}])

    facts = Facts.from_json(component.verify("8", samples).facts)

    # The last valid column sees the zeros of the padding in place of its own edge: one of three taps is lost.
    expected = 10 * math.log10(5 * 6**2 / 2**2)
    assert db(facts.rungs["padding"]["y"]) == pytest.approx(expected, abs=0.01)
    assert db(facts.rungs["rewrite"]["y"]) == EXACT_DB


def test_no_sample_in_the_bucket_is_not_measured(
    component: Component, quantized: dict[str, StageInput], capsys: pytest.CaptureFixture[str]
) -> None:
    samples = component.samples([sentence(13)])

    facts = Facts.from_json(component.verify("8", samples, quantized["8"]).facts)

    assert facts == UNMEASURED
    assert "not measured: bucket 8" in capsys.readouterr().out


def test_a_bucket_without_samples_of_its_own_is_measured_on_shorter_ones(
    component: Component, quantized: dict[str, StageInput]
) -> None:
    facts = Facts.from_json(component.verify("16", component.samples([sentence(3)]), quantized["16"]).facts)
    assert (facts.samples, facts.shorter) == (1, 1)
    assert db(facts.rungs["padding"]["hidden"]) == EXACT_DB


SCORE = """
def first_half(samples, outputs):
    assert [sample.label in ("even", "odd") for sample in samples] == [True] * len(samples)
    assert [sample.text for sample in samples] == [f"text {n}" for n in (4, 5, 3, 2, 1)]
    for sample, output in zip(samples, outputs, strict=True):
        assert output["hidden"].shape[1] == sample.inputs["input_ids"].shape[1]
    return sum(float(output["hidden"].mean()) for output in outputs)
"""


def test_the_users_score_of_the_original_and_of_the_qdq_model(
    component: Component, quantized: dict[str, StageInput], held_out: StageInput, tmp_path: Path
) -> None:
    facts = Facts.from_json(
        component.verify("16", held_out, quantized["16"], (code(tmp_path, SCORE), "first_half")).facts
    )

    truth = sum(outputs(component.ingest.folder / "model.onnx", call)["hidden"].mean() for call in CALLS)
    score = facts.score
    assert score is not None
    assert list(score.to_json()) == ["name", "fp32", "qdq"]
    assert score.name == "first_half"
    assert score.fp32 == pytest.approx(truth, abs=1e-5)
    assert score.qdq != score.fp32
    assert score.qdq == pytest.approx(truth, abs=0.05)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "def accuracy(samples, outputs):\n    return outputs[0]['logits']",
            "(?s)accuracy.* failed.*score.py:2.*KeyError",
        ),
        ("def accuracy(samples, outputs):\n    return float('nan')", "(?s)accuracy.* failed.*it returned nan"),
        ("def accurcy(samples, outputs):\n    return 1.0", "(?s)no function 'accuracy'.*accurcy"),
    ],
)
def test_a_score_function_that_fails(
    text: str, message: str, component: Component, held_out: StageInput, tmp_path: Path
) -> None:
    with pytest.raises(VerificationError, match=message):
        component.verify("8", held_out, score=(code(tmp_path, text), "accuracy"))


def measured(truth: list[float], tested: list[float]) -> tuple[float | None, ...]:
    accuracy = Accuracy()
    accuracy.add(np.array(truth, np.float32), np.array(tested, np.float32))
    facts = accuracy.figures()
    assert facts.sqnr_db == facts.median_db == facts.worst_db
    return facts.sqnr_db, facts.cosine, facts.max_abs_error


def test_figures_that_are_no_number_are_null() -> None:
    assert measured([1, 2], [1, 2]) == (EXACT_DB, 1.0, 0.0)
    assert measured([0, 0], [0, 0]) == (EXACT_DB, None, 0.0)
    assert measured([0, 0], [0, 1]) == (None, None, 1.0)
    assert measured([1, 2], [1, math.nan]) == (None, None, None)
    assert measured([1, 2], [1, math.inf]) == (None, None, None)
    assert measured([10, 0], [9, 0]) == (20.0, 1.0, 1.0)


def test_the_worst_sample_and_the_median_are_told() -> None:
    accuracy = Accuracy()
    for name, tested in (("good", 9.99), ("bad", 9), ("fair", 9.9)):
        accuracy.add(np.array([10.0]), np.array([tested]), name)
    facts = accuracy.figures()
    assert (facts.worst_sample, facts.worst_db, facts.median_db) == ("bad", 20.0, 40.0)
    accuracy.add(np.array([10.0]), np.array([math.nan]), "broken")
    facts = accuracy.figures()
    assert (facts.worst_sample, facts.worst_db, facts.median_db) == ("broken", None, None)


def test_integers_are_equal_or_not() -> None:
    accuracy = Accuracy()
    accuracy.add(np.arange(100), np.where(np.arange(100) == 7, 70000, np.arange(100)))
    assert accuracy.sqnr_db == pytest.approx(20), "one of a hundred is wrong, however far"


def test_infinities_in_the_same_places_are_right() -> None:
    truth = np.array([1.0, -np.inf, 3.0])
    accuracy = Accuracy()
    accuracy.add(truth, truth)
    assert accuracy.sqnr_db == EXACT_DB
    accuracy.add(truth, np.array([1.0, -1e30, 3.0]))
    assert accuracy.sqnr_db is None


def test_a_bucket_of_exact_lengths_is_measured_on_these_alone(tmp_path: Path) -> None:
    model = graph("g (float[1,2,frames] x) => (float[1,2,frames] y) { m = ReduceMean <axes = [2]> (x) y = Sub (x, m) }")
    component = Component(tmp_path, model, {"8": {"frames": 8}, "16": {"frames": 16}})
    numbers = np.random.default_rng(0)
    calls = [{"x": numbers.normal(size=(1, 2, length)).astype(np.float32)} for length in (8, 16, 8)]
    facts = Facts.from_json(component.verify("16", component.samples(calls)).facts)
    assert (facts.samples, facts.shorter) == (1, 0)
    assert db(facts.rungs["padding"]["y"]) == EXACT_DB


MEAN = "g (float[1,2,frames] x) => (float[1,2,frames] y) { m = ReduceMean <axes = [2]> (x) y = Sub (x, m) }"


def frames(*lengths: int) -> list[dict[str, np.ndarray]]:
    numbers = np.random.default_rng(0)
    return [{"x": numbers.normal(size=(1, 2, length)).astype(np.float32)} for length in lengths]


def test_an_application_that_always_pads_is_held_against_the_padded_original(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    component = Component(tmp_path, graph(MEAN), {"8": {"frames": 8}})
    samples = component.samples(frames(5, 6, 8))
    unpadded = Facts.from_json(component.verify("8", samples).facts)
    assert db(unpadded.rungs["padding"]["y"]) < 40
    assert unpadded.lengths == {"frames": (5, 6, 8)}

    longer = Component(tmp_path / "longer", graph(MEAN), {"6": {"frames": 6}, "8": {"frames": 8}})
    shown = Facts.from_json(longer.verify("6", longer.samples(frames(5, 6, 8)), part="held out").facts)
    assert shown.lengths == {"frames": (5, 6, 8)}, "those of the other bucket and of calibration as well"

    padded = Facts.from_json(component.verify("8", samples, truth="padded").facts)
    assert db(padded.rungs["padding"]["y"]) == EXACT_DB
    assert padded.truth == "padded"
    assert "exact by definition" in capsys.readouterr().out


def test_a_bucket_of_exact_lengths_takes_no_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    component = Component(tmp_path, graph(MEAN), {"6": {"frames": 6}, "8": {"frames": 8}})
    samples = component.samples(frames(5, 6, 6, 7))
    exact = Facts.from_json(component.verify("6", samples, truth="exact").facts)
    assert (exact.samples, exact.shorter, exact.truth) == (2, 0, "exact")
    assert db(exact.rungs["padding"]["y"]) == EXACT_DB
    assert "1 samples are left out" in capsys.readouterr().out

    none = Facts.from_json(component.verify("8", samples, truth="exact").facts)
    assert (none.samples, none.truth) == (0, "exact")
    assert "bucket 8 holds none of the samples of exactly frames 8" in capsys.readouterr().out


def test_slices_and_choices_are_judged_as_the_config_says(tmp_path: Path) -> None:
    component = Component(tmp_path, graph(MEAN), {"8": {"frames": 8}})
    outputs: Json = {
        "first": {"output": "y", "slice": ":, 0"},
        "largest": {"output": "y", "slice": ":, 1", "choice": -1},
    }
    facts = Facts.from_json(component.verify("8", component.samples(frames(8, 8)), outputs=outputs).facts)
    assert list(facts.outputs) == ["first", "largest"]
    assert facts.subjects["largest"].by == "choice"
    with pytest.raises(ConfigError, match=r"there is no output 'z'"):
        component.verify("8", component.samples(frames(8)), outputs={"z": {"output": "z"}})


def test_samples_are_put_in_the_order_to_emulate_them_in(
    component: Component, quantized: dict[str, StageInput], held_out: StageInput
) -> None:
    facts = Facts.from_json(component.verify("16", held_out, quantized["16"]).facts)
    assert sorted(facts.order) == list(range(5))
    names = ["samples:4", "samples:5", "samples:3", "samples:2", "samples:1"]
    assert {*facts.order[:2]} == {0, 1}, "those that need the bucket, before those that stand in"
    assert names[facts.order[2]] == facts.outputs["hidden"].worst_sample == "samples:3", "of those, the worst"
    alone = Facts.from_json(component.verify("16", component.samples(CALLS[3:]), quantized["16"]).facts)
    assert ["samples:1", "samples:2"][alone.order[0]] == alone.outputs["hidden"].worst_sample
    assert facts.order[0] == alone.order[0], "of those that need the bucket, the worst"


def test_samples_that_read_other_rows_are_emulated_early(
    component: Component, quantized: dict[str, StageInput]
) -> None:
    calls = [call for call in CALLS if call["input_ids"].shape[1] <= 8]
    facts = Facts.from_json(component.verify("8", component.samples(calls), quantized["8"]).facts)
    first, second = facts.order[:2]
    assert f"samples:{first + 1}" == facts.outputs["hidden"].worst_sample
    words = [{*call["input_ids"].flat} for call in calls]
    assert len(words[second] - words[first]) == max(len(each - words[first]) for each in words)


@pytest.mark.parametrize(("shift", "silent"), [(-6.0, ("y",)), (0.0, ())])
def test_a_probability_that_is_never_near_1_is_told(
    tmp_path: Path, shift: float, silent: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    model = graph(
        "g (float[1,2,frames] x) => (float[1,2,frames] y) { z = Add (x, shift) y = Sigmoid (z) }",
        {"shift": np.float32(shift)},
    )
    component = Component(tmp_path, model, {"8": {"frames": 8}})
    assert Facts.from_json(component.verify("8", component.samples(frames(8))).facts).silent == silent
    assert ("says yes rightly is not shown" in capsys.readouterr().out) == bool(silent)


def test_a_quieter_sample_that_the_model_itself_makes_nothing_of_is_not_judged(tmp_path: Path) -> None:
    """A logarithm without a floor is infinite in silence."""
    model = graph("g (float[1,8] x) => (float[1,8] y) { e = Mul (x, x) y = Log (e) }")
    component = Component(tmp_path, model, {"all": {}})
    calls: list[dict[str, NDArray[Any]]] = [
        {"x": np.linspace(0.2, 1, 8, dtype=np.float32)[None] * scale} for scale in (1, 2)
    ]

    facts = Facts.from_json(
        component.verify("all", component.samples(calls), component.quantize("all", component.calibrate(calls))).facts
    )

    assert facts.heard == ("x",)
    assert len(facts.quiet_order) == 2, "the two at a 64th; of three each, fading and silent ones have a zero"
    assert all(np.isfinite(db(figures)) for figures in facts.quiet.values())
