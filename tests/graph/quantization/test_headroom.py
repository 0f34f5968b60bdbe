from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipeline.graph.cpu import load_session, run
from pipeline.graph.ir.index import GraphIndex
from pipeline.graph.quantization.bounds.headroom import with_headroom
from pipeline.graph.quantization.calibration.ranges import Range, Ranges, range_at
from tests.support.graphs import graph
from tests.support.stage_runs import Component

RANGES = {
    "x": Range(-4, 4), "up": Range(0, 2), "key": Range(-1, 3), "turned": Range(-1, 3), "scores": Range(-8, 8),
    "y": Range(0, 6),
}  # fmt: skip


@pytest.fixture
def index() -> GraphIndex:
    model = graph(
        """g (float[1,4,4] x) => (float[1,4,4] y) {
            up = Relu (x)
            key = MatMul (x, w)
            turned = Transpose <perm = [0, 2, 1]> (key)
            scores = MatMul (up, turned)
            y = Clip (scores, low, high)
        }""",
        {"w": np.eye(4, dtype=np.float32), "low": np.float32(0), "high": np.float32(6)},
    )
    return GraphIndex(model, Path())


def test_more_room_is_given_where_it_is_asked_for() -> None:
    model = graph("g (float[4] x) => (float[4] y) { y = Add (x, x) }")
    wider = with_headroom(GraphIndex(model, Path()), {"x": Range(0, 1), "y": Range(-2, 1)}, 2)
    assert (range_at(wider, "x", 16), range_at(wider, "y", 16)) == (Range(0, 3), Range(-8, 7))


def test_16_bit_encodings_get_room_at_each_end_that_is_not_zero(index: GraphIndex) -> None:
    wider = with_headroom(index, RANGES)
    assert range_at(wider, "x", 16) == Range(-6, 6)
    assert range_at(wider, "up", 16) == Range(0, 2.5)


def test_8_bit_encodings_have_no_steps_to_spare(index: GraphIndex) -> None:
    wider = with_headroom(index, RANGES)
    assert {name: range_at(wider, name, 8) for name in RANGES} == RANGES


def test_what_htp_rounds_to_8_bits_gets_less(index: GraphIndex) -> None:
    wider = with_headroom(index, RANGES)
    assert range_at(wider, "key", 16) == range_at(wider, "turned", 16) == Range(-1.4, 3.4)


def test_the_room_ends_where_a_clip_does(index: GraphIndex) -> None:
    assert range_at(with_headroom(index, RANGES), "y", 16) == Range(0, 6)
    assert range_at(with_headroom(index, RANGES | {"y": Range(0, 4)}), "y", 16) == Range(0, 5)
    assert range_at(with_headroom(index, RANGES | {"y": Range(0, 5)}), "y", 16) == Range(0, 6)


def test_a_clip_to_computed_bounds_gets_none() -> None:
    model = graph("g (float[4] x, float low) => (float[4] y) { high = Neg (low) y = Clip (x, low, high) }")
    wider = with_headroom(GraphIndex(model, Path()), {"x": Range(-1, 1), "y": Range(-1, 1)})
    assert (range_at(wider, "x", 16), range_at(wider, "y", 16)) == (Range(-1.5, 1.5), Range(-1, 1))


def test_a_clip_from_below_has_room_above() -> None:
    model = graph("g (float[4] x) => (float[4] y) { y = Clip (x, low) }", {"low": np.float32(1e-12)})
    wider = with_headroom(GraphIndex(model, Path()), {"y": Range(0, 4)})
    assert range_at(wider, "y", 16) == Range(0, 5)


def test_a_sine_has_its_own_ends() -> None:
    model = graph("g (float[4] x) => (float[4] y) { y = Sin (x) }")
    wider = with_headroom(GraphIndex(model, Path()), {"y": Range(-0.9, 0.5)})
    assert range_at(wider, "y", 16) == Range(-1, 0.85)


def test_what_calibration_chose_stays(index: GraphIndex) -> None:
    chosen = Ranges(RANGES, {16: {"x": Range(-2, 2)}, 8: {"x": Range(-1, 1)}})
    wider = with_headroom(index, chosen)
    assert range_at(wider, "x", 16) == Range(-2, 2)
    assert range_at(wider, "x", 8) == Range(-1, 1)
    assert range_at(wider, "up", 16) == Range(0, 2.5)


@pytest.mark.parametrize(("activations", "reaches"), [("uint16", True), ("uint8", False)])
def test_values_beyond_the_samples_are_not_cut_off(activations: str, reaches: bool, tmp_path: Path) -> None:
    model = graph("g (float[1,length] x) => (float[1,length] y) { y = Neg (x) }")
    component = Component(tmp_path / "net", model, {"4": {"length": 4}})
    ranges = component.calibrate([{"x": np.array([[-1, 0.5, 0, 1]], np.float32)}])
    quantized = component.quantize("4", ranges, activations=activations)

    (y,) = run(load_session(quantized.folder / "model.onnx"), {"x": np.array([[-1.4, 0, 0, 1.4]], np.float32)}).values()

    assert np.allclose(y, [[1.4, 0, 0, -1.4]], atol=0.01) is reaches


DECIDES = """g (float[1,4] x) => (float[1,8] y) {
    product = MatMul (x, w)
    logits = Add (product, bias)
    bounded = Clip (logits, low)
    word = Sigmoid (bounded)
    gate = Sigmoid (x)
    gated = Mul (x, gate)
    y = Concat <axis = 1> (word, gated)
}"""


def test_a_decision_may_be_anything_from_no_to_yes() -> None:
    model = graph(
        DECIDES, {"w": np.eye(4, dtype=np.float32), "bias": np.full(4, -1, np.float32), "low": np.float32(-128)}
    )
    measured = {
        "x": Range(-4, 2), "product": Range(-7, 0), "logits": Range(-8, 0), "bounded": Range(-8, 0),
        "word": Range(0, 0.25), "gate": Range(0, 0.5), "gated": Range(-1, 1), "y": Range(-1, 1),
    }  # fmt: skip
    wider = with_headroom(GraphIndex(model, Path()), measured)
    assert range_at(wider, "word", 16) == Range(0, 1)
    assert range_at(wider, "logits", 16) == range_at(wider, "bounded", 16) == Range(-10, 10)
    assert range_at(wider, "product", 16) == Range(-8.75, 8.75)
    assert range_at(wider, "gate", 16).high < 1, "what is multiplied is no decision"
    assert range_at(wider, "x", 16) == Range(-5.5, 3.5)
    assert range_at(wider, "word", 8) == Range(0, 0.25)


@pytest.mark.parametrize("bounded", ["Max (x, floor)", "Max (floor, x)", "Clip (x, floor)"])
def test_a_logarithm_ends_where_that_of_its_floor_does(bounded: str, tmp_path: Path) -> None:
    """Silence: 16 bits make 0 of the floor, and its logarithm became something quieter than silence by the headroom."""
    model = graph(
        f"g (float[1,64] x) => (float[1,64] y) {{ b = {bounded} y = Log (b) }}", {"floor": np.float32(1e-12)}, opset=17
    )
    loud = np.random.default_rng(3).uniform(0, 20, (1, 64)).astype(np.float32)
    loud[0, :4] = 0
    component = Component(tmp_path, model, {"all": {}})
    made = component.quantize("all", component.calibrate([{"x": loud}]))
    quiet = np.zeros((1, 64), np.float32)
    (found,) = run(load_session(made.folder / "model.onnx"), {"x": quiet}).values()
    assert np.abs(found - np.log(1e-12)).max() < 0.1  # ranges are rounded, by a 500th here; it was 7.7


def test_a_logarithm_without_a_floor_has_room_below() -> None:
    model = graph("g (float[4] x) => (float[4] y) { y = Log (x) }")
    wider = with_headroom(GraphIndex(model, Path()), {"x": Range(0, 1), "y": Range(-4, 0)})
    assert range_at(wider, "y", 16) == Range(-5, 0)
