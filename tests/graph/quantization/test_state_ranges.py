"""What one run hands to the next is cut where that costs least, whatever the method for all other values is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import TensorProto, helper

from pipeline.graph.files.model_file import save_graph
from pipeline.graph.quantization.calibration.float_ranges import Calibration
from pipeline.graph.quantization.calibration.observe import Observer
from pipeline.graph.quantization.calibration.ranges import Ranges


def calibrated(tmp_path: Path, x: np.ndarray, states: tuple[str, ...]) -> Ranges:
    """The ranges of `x`, and of what is made of it twice."""
    floats = TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["state"], "a"), helper.make_node("Neg", ["state"], ["y"], "b")],
        "g",
        [helper.make_tensor_value_info("x", floats, x.shape)],
        [helper.make_tensor_value_info("y", floats, x.shape)],
        value_info=[helper.make_tensor_value_info("state", floats, x.shape)],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
    save_graph(made, tmp_path / "model.onnx")
    observer, calibration = Observer(tmp_path / "model.onnx"), Calibration(states=states)
    calibration.add(observer, {"x": x}, where="here")
    return calibration.ranges({"8": observer})


def test_a_state_is_cut_where_the_squared_error_is_least(tmp_path: Path) -> None:
    x = np.random.default_rng(3).normal(size=(64, 10000)).astype(np.float32)
    x[0, 0] = 12.0

    ranges = calibrated(tmp_path, x, ("state",))

    assert [*ranges.chosen[8]] == ["state"]
    narrower = ranges.chosen[8]["state"]

    def lost(half: float) -> float:
        step = half / 127
        return float(((np.clip(np.rint(x / step), -128, 127) * step - x) ** 2).sum())

    assert ranges["state"].low == -12.0
    end = max(-narrower.low, narrower.high)
    assert 3.5 < end < 7
    assert lost(end) < 0.5 * lost(12.0)
    assert lost(end) <= min(lost(end * 1.1), lost(end / 1.1))


def test_nothing_is_cut_of_what_is_no_state(tmp_path: Path) -> None:
    x = np.random.default_rng(3).normal(size=(64, 1000)).astype(np.float32)
    x[0, 0] = 12.0

    assert calibrated(tmp_path, x, ()).chosen == {}
