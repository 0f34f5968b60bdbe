from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import ModelProto

from pipeline.errors import CalibrationError
from pipeline.graph.files.model_file import load_graph
from pipeline.graph.quantization.calibration import observe
from pipeline.graph.quantization.calibration.ranges import Range, read_ranges
from pipeline.model import Json, StageInput
from tests.support.graphs import attention, constant, graph, outputs, sentence
from tests.support.sentences import BUCKETS
from tests.support.stage_runs import Component


def ranges(calibrated: StageInput) -> dict[str, list[float]]:
    read: dict[str, list[float]] = json.loads((calibrated.folder / "ranges.json").read_text("utf-8"))
    return read


def measured_apart(component: Component, model: Path, calls: Sequence[Mapping[str, NDArray[Any]]], name: str) -> Any:
    """Min and max of one value, from a model with that value as its only output, padded by hand."""
    found: list[NDArray[Any]] = []
    for call in calls:
        size = 8 if call["input_ids"].shape[1] <= 8 else 16
        padded = {key: np.pad(array, ((0, 0), (0, size - array.shape[1]))) for key, array in call.items()}
        found.append(outputs(model, padded)[name].ravel())
    return np.concatenate(found)


def test_ranges_cover_all_samples_of_all_buckets_and_zero(component: Component) -> None:
    calls = [sentence(5, seed=1), sentence(8, seed=2), sentence(13, seed=3)]

    calibrated = component.calibrate(calls)

    assert calibrated.facts["samples"] == {"8": 2, "16": 1}
    short = measured_apart(component, component.rewrite["8"].folder / "model.onnx", calls[:2], "hidden")
    long = measured_apart(component, component.rewrite["16"].folder / "model.onnx", calls[2:], "hidden")
    values = np.concatenate([short, long])
    low, high = ranges(calibrated)["hidden"]
    assert Range(low, high) == Range.of(values).rounded()
    assert ranges(calibrated)["weights"][0] == 0


@pytest.mark.parametrize(
    ("measured", "rounded"),
    [
        ((0.0, 1.0), (0.0, 1.0)),
        ((0.0, 0.9999999), (0.0, 1.0)),  # a Softmax that adds up otherwise
        ((0.0, 1.0000001), (0.0, 1.0)),
        ((-100.0, 0.0), (-100.0, 0.0)),
        ((-1e-8, 10.0), (0.0, 10.0)),  # what is left of a difference of equals
        ((2.0, 5.0), (0.0, 5.0)),
        ((-5.0, -2.0), (-5.0, 0.0)),
        ((0.0, 0.0), (0.0, 0.0)),
        ((-9.780762672424316, 10.761451721191406), (-9.78125, 10.78125)),  # the same value on x86_64
        ((-9.780760765075684, 10.761445999145508), (-9.78125, 10.78125)),  # and on ARM64
        ((-3.0e-12, 1.0e-12), (-3.0e-12, 1.0e-12)),
    ],
)
def test_ranges_are_rounded_to_what_all_processors_measure(
    measured: tuple[float, float], rounded: tuple[float, float]
) -> None:
    found = Range(*measured).rounded()
    assert (found.low, found.high) == pytest.approx(rounded, rel=4e-3)
    assert (found.low == 0, found.high == 0) == (rounded[0] == 0, rounded[1] == 0)
    if max(-measured[0], measured[1]) > 1e-3:
        assert (found.low, found.high) == rounded
    assert found.rounded() == found


FINITE = st.floats(-1e30, 1e30, allow_subnormal=False)


@given(FINITE, FINITE, st.floats(-2e-6, 2e-6, allow_subnormal=False))
def test_a_rounded_range_is_hardly_wider_and_hardly_cut(first: float, second: float, error: float) -> None:
    measured = Range(min(first, second), max(first, second)).with_zero()
    larger = max(-measured.low, measured.high)
    assume(larger > 1e-30)
    found = measured.rounded()
    for end, now in ((-measured.low, -found.low), (measured.high, found.high)):
        assert -larger / (1 << 16) <= now - end <= larger / (1 << 8)
    other = Range(measured.low * (1 + error), measured.high * (1 - error)).rounded()
    assert other.width == pytest.approx(found.width, rel=2 / (1 << 8))


def test_every_float_value_has_a_range_and_no_other(component: Component) -> None:
    found = ranges(component.calibrate([sentence(5), sentence(12)]))

    # The two linear layers, the attention and the Gelu as rewritten; positions differ from bucket to bucket.
    assert set(found) == {
        "tokens", "positions", "embedded", "x", "query", "key", "value", "turned", "scores", "scaled", "masked",
        "weights", "context", "h", "up", "u", "g", "down", "hidden",
    }  # fmt: skip
    assert list(found) == sorted(found)
    assert found["masked"][0] == -100


def test_a_constant_that_differs_between_buckets_has_the_range_of_all_of_them(component: Component) -> None:
    array = constant(attention(), "places")

    low, high = ranges(component.calibrate([sentence(5), sentence(7)]))["positions"]

    assert (low, high) == (array[:16].min(), array[:16].max())
    assert (low, high) != (array[:8].min(), array[:8].max())


def test_the_same_samples_give_the_same_bytes(component: Component) -> None:
    calls = [sentence(5, seed=1), sentence(13, seed=3)]
    first, second = component.calibrate(calls), component.calibrate(calls)
    assert first.files == second.files


def test_one_other_sample_gives_other_ranges(component: Component) -> None:
    first = component.calibrate([sentence(5, seed=1), sentence(13, seed=3)])
    second = component.calibrate([sentence(5, seed=1), sentence(13, seed=4)])
    assert first.files != second.files


def test_watching_in_several_runs_gives_the_same(component: Component, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = [sentence(5, seed=1), sentence(13, seed=3)]
    at_once = component.calibrate(calls)
    monkeypatch.setattr(observe, "_BYTES_AT_ONCE", 3000)
    assert component.calibrate(calls).files == at_once.files


def test_a_bucket_without_samples_uses_the_ranges_of_the_others(
    component: Component, capsys: pytest.CaptureFixture[str]
) -> None:
    calibrated = component.calibrate([sentence(5), sentence(7)])

    assert calibrated.facts["samples"] == {"8": 2, "16": 0}
    assert "bucket 16: 0 samples, its ranges are those of the others" in capsys.readouterr().out


def test_padding_rules_are_applied(tmp_path: Path) -> None:
    model = graph("g (float[1,sequence] x) => (float[1,sequence] y) { y = Neg (x) }")
    component = Component(tmp_path, model, {"4": {"sequence": 4}}, padding={"x": -7.5})

    found = ranges(component.calibrate([{"x": np.array([[1.5, 3]], np.float32)}]))

    assert found == {"x": [-7.5, 3], "y": [-3, 7.5]}


def test_no_samples(component: Component) -> None:
    with pytest.raises(CalibrationError, match="no sample for component 'net'"):
        component.calibrate([])


def test_a_sample_that_fits_no_bucket(component: Component) -> None:
    with pytest.raises(CalibrationError, match=r"samples:2 fits no bucket: sequence 17"):
        component.calibrate([sentence(5), sentence(17)])


def test_an_infinite_value_is_traced_to_its_node(tmp_path: Path) -> None:
    model = graph(
        """g (float[1,sequence] x) => (float[1,sequence] y) {
            shifted = Add (x, one)
            logs = Log (shifted)
            y = Tanh (logs)
        }""",
        {"one": np.float32(1)},
    )
    component = Component(tmp_path, model, {"4": {"sequence": 4}})
    with pytest.raises(CalibrationError) as caught:
        component.calibrate([{"x": np.array([[1.0, 2]], np.float32)}, {"x": np.array([[-1.0, 2]], np.float32)}])

    text = str(caught.value)
    assert "value 'logs' ranges from -inf to 1.099" in text
    assert "node 'Log_1' (Log), samples:2 in bucket 4" in text
    assert "mask" in text


def test_what_a_graph_marks_with_nan_is_named_with_where_to_end(tmp_path: Path) -> None:
    model = graph(
        """g (float[1,sequence] x, bool[1,sequence] there) => (float[1,sequence] y) {
            squared = Mul (x, x)
            y = Where (there, squared, nothing)
        }""",
        {"nothing": np.float32(np.nan)},
    )
    component = Component(tmp_path, model, {"4": {"sequence": 4}})
    call = {"x": np.array([[1.0, 2]], np.float32), "there": np.array([[True, False]])}
    with pytest.raises(CalibrationError) as caught:
        component.calibrate([call])

    assert "value 'y' is NaN in places" in str(caught.value)
    assert "end the component before it with cut: ['squared']" in str(caught.value)


def test_a_filler_that_no_rewrite_knows_is_refused(tmp_path: Path) -> None:
    model = graph(
        """g (float[1,sequence] x, int64[1,sequence] mask) => (float[1,sequence] y) {
            keep = Cast <to = 9> (mask)
            masked = Where (keep, x, lowest)
            y = Exp (masked)
        }""",
        {"lowest": np.finfo(np.float32).min},
    )
    component = Component(tmp_path, model, {"4": {"sequence": 4}})
    call = {"x": np.array([[1.0, 2]], np.float32), "mask": np.array([[1, 1]])}
    with pytest.raises(CalibrationError, match=r"value 'masked' ranges from -3.403e\+38 to 2"):
        component.calibrate([call])


STEPS = """g (float[1,sequence] x, {dtype}[1] timestep) => (float[1,sequence] y) {{
    time = {to_float} (timestep)
    wave = Sin (time)
    y = Add (x, wave)
}}"""


def denoiser(dtype: str) -> ModelProto:
    return graph(STEPS.format(dtype=dtype, to_float="Identity" if dtype == "float" else "Cast <to = 1>"))


def step(number: int, dtype: str) -> dict[str, NDArray[Any]]:
    x = np.random.default_rng(number).normal(size=(1, 4)).astype(np.float32)
    return {"x": x, "timestep": np.array([number], np.float32 if dtype == "float" else np.int64)}


@pytest.mark.parametrize("dtype", ["float", "int64"])
def test_a_loop_recorded_at_step_0_only_is_refused(dtype: str, tmp_path: Path) -> None:
    component = Component(tmp_path, denoiser(dtype), {"4": {"sequence": 4}})

    with pytest.raises(CalibrationError) as caught:
        component.calibrate([step(0, dtype), {**step(1, dtype), "timestep": step(0, dtype)["timestep"]}])
    text = str(caught.value)
    assert "never varies an input: 'timestep' is 0 throughout" in text
    assert "every step of a loop" in text
    assert "constants: {timestep: 0}" in text

    component.calibrate([step(0, dtype), step(1, dtype)])


def test_a_mask_that_never_masks_is_refused(tmp_path: Path) -> None:
    model = graph(
        """g (float[1,sequence] x, int64[1,sequence] mask) => (float[1,sequence] y) {
            kept = Cast <to = 1> (mask)
            dropped = Sub (one, kept)
            additive = Mul (dropped, filler)
            masked = Add (x, additive)
            y = Softmax (masked)
        }""",
        {"one": np.float32(1), "filler": np.float32(-10000)},
    )
    component = Component(tmp_path, model, BUCKETS)

    def call(length: int) -> dict[str, NDArray[Any]]:
        return {"x": np.ones((1, length), np.float32), "mask": np.ones((1, length), np.int64)}

    with pytest.raises(CalibrationError) as caught:
        component.calibrate([call(8), call(16)])
    text = str(caught.value)
    assert "'mask' is 1 throughout" in text
    assert "value 'dropped' of node 'Sub_1' (Sub), which is 0 in all 2 samples" in text
    assert "a sample shorter than its bucket" in text

    component.calibrate([call(8), call(15)])


def test_a_constant_value_that_comes_from_varying_inputs_is_the_models_own(tmp_path: Path) -> None:
    model = graph(
        """g (float[1,sequence] x) => (float[1,sequence] y) {
            dead = Relu (x)
            y = Add (x, dead)
        }"""
    )
    component = Component(tmp_path, model, {"4": {"sequence": 4}})
    found = ranges(component.calibrate([{"x": np.array([[-1.0, -2]], np.float32)}]))
    assert found["dead"] == [0, 0]


@pytest.mark.parametrize(
    "method", [{"method": "percentile", "percentile": 99.0}, {"method": "mse"}, {"method": "entropy"}]
)
def test_a_method_chooses_narrower_ranges_beside_the_measured_ones(tmp_path: Path, method: dict[str, Json]) -> None:
    model = graph("g (float[1,sequence] x) => (float[1,sequence] y) { y = Neg (x) }")
    component = Component(tmp_path, model, {"65536": {"sequence": 65536}})
    # Of numbers with a few outliers every method cuts some off.
    calls = [{"x": np.random.default_rng(seed).standard_t(3, (1, 65000)).astype(np.float32)} for seed in (1, 2)]
    measured, chosen = component.calibrate(calls), component.calibrate(calls, **method)

    assert chosen.files["ranges.json"] == measured.files["ranges.json"]
    assert set(measured.files) == {"ranges.json"}
    read = read_ranges(chosen.folder / "ranges.json")
    assert chosen.facts["narrowed"] == {str(bits): len(narrowed) for bits, narrowed in read.chosen.items()}
    assert set(read.chosen[8]) == {"x", "y"}
    assert read.at("x", 8).width < 0.9 * read["x"].width
    assert read.at("y", 8).low == pytest.approx(-read.at("x", 8).high, rel=0.1)
    assert component.calibrate(calls, **method).files == chosen.files
    assert component.calibrate(calls[::-1], **method).files == chosen.files, "the order of samples doesn't matter"


def test_a_chosen_range_is_what_a_value_is_encoded_with(component: Component) -> None:
    calls = [sentence(length, seed=length) for length in (5, 8, 13)]
    calibrated = component.calibrate(calls, method="percentile", percentile=90.0)
    read = read_ranges(calibrated.folder / "ranges.json")

    model = load_graph(component.quantize("8", calibrated, activations="uint8").folder / "model.onnx")

    # The down projection is no mover, and nothing demands an encoding of it.
    assert read.chosen[8]["down"].width < read["down"].width
    assert constant(model, "down_scale") == pytest.approx(read.chosen[8]["down"].width / 255, rel=1e-5)


def test_a_value_too_small_for_any_encoding_is_refused(tmp_path: Path) -> None:
    model = graph("g (float[1,sequence] x) => (float[1,sequence] y) { s = Mul (x, tiny) y = Tanh (s) }",
                  {"tiny": np.float32(1e-12)})  # fmt: skip
    component = Component(tmp_path, model, {"4": {"sequence": 4}})
    with pytest.raises(CalibrationError) as caught:
        component.calibrate([{"x": np.array([[1.0, 2]], np.float32)}])
    text = str(caught.value)
    assert "value 's' ranges from 0 to 2e-12 and would be rounded to nothing" in text
    assert "node 'Mul_0' (Mul)" in text
    assert "scale the model's inputs up" in text


def test_a_quiet_signal_keeps_its_digits(tmp_path: Path) -> None:
    model = graph("g (float[1,sequence] x) => (float[1,sequence] y) { y = Add (x, x) }")
    component = Component(tmp_path, model, {"4": {"sequence": 4}})
    quiet = np.array([[1.0, -2, 3, 0.5]], np.float32) * np.float32(1e-5)
    quantized = component.quantize("4", component.calibrate([{"x": quiet}]))
    np.testing.assert_allclose(outputs(quantized.folder / "model.onnx", {"x": quiet})["y"], 2 * quiet, rtol=1e-3)
