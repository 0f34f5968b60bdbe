from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto

from pipeline.graph.rewrites import apply_all
from pipeline.graph.rewrites.activations import decompose_hard_sigmoid
from tests.conformance.batches import run_batch
from tests.support.graphs import graph, operators, outputs

NUMBERS = np.random.default_rng(5)
X = NUMBERS.normal(size=(1, 8, 6, 6)).astype(np.float32)
WEIGHT = (NUMBERS.normal(size=(8, 8, 2, 2)) * 0.3).astype(np.float32)
TEXT = (
    "g (float[1,8,6,6] x) => (float[1,8,12,12] y) {"
    "h = ConvTranspose <strides = [2, 2]> (x, w) y = HardSigmoid <alpha = 0.25> (h) }"
)


def _model(text: str = TEXT) -> ModelProto:
    return graph(text, {"w": WEIGHT, "two": np.float32(2)})


@pytest.mark.parametrize("between", ["", "r = Relu (h) ", "r = Mul (h, two) "])
def test_a_hard_sigmoid_behind_strides_is_written_out(between: str, tmp_path: Path) -> None:
    model = _model(TEXT.replace("y = H", f"{between}y = H").replace("(h) }", "(r) }" if between else "(h) }"))
    before = outputs(model, {"x": X})["y"]

    assert apply_all(model, tmp_path)["decompose_hard_sigmoid"] == 1

    assert "HardSigmoid" not in operators(model)
    np.testing.assert_allclose(outputs(model, {"x": X})["y"], before, atol=1e-6)
    assert decompose_hard_sigmoid.apply(model, tmp_path) == 0


@pytest.mark.parametrize(
    "text",
    [
        TEXT.replace("[2, 2]", "[1, 1]").replace("12,12", "7,7"),
        TEXT.replace("HardSigmoid <alpha = 0.25>", "Sigmoid"),
        "g (float[1,8,6,6] x) => (float[1,8,6,6] y) { y = HardSigmoid (x) }",
    ],
    ids=["no strides", "a sigmoid", "an input"],
)
def test_others_are_left_alone(text: str, tmp_path: Path) -> None:
    assert decompose_hard_sigmoid.apply(_model(text), tmp_path) == 0


@pytest.mark.slow
def test_the_chip_reads_other_memory(tmp_path: Path) -> None:
    truth = outputs(_model(), {"x": X})["y"]
    cured = _model()
    decompose_hard_sigmoid.apply(cured, tmp_path)

    # Apart: the one that is wrong spoils what is compiled with it.
    wrong, right = (run_batch([model], [{"x": X}], tmp_path / "work")[0].outputs[0] for model in (_model(), cured))

    np.testing.assert_allclose(right, truth, atol=0.005)
    assert np.abs(wrong - truth).max() > 0.1, "QNN computes it rightly now: drop decompose_hard_sigmoid"
