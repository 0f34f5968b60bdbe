"""An error about sizes points to those that `doit init` guessed, and to no others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipeline.build.bring import with_guesses
from pipeline.config.load import load
from pipeline.contracts.values import TensorSpec
from pipeline.errors import CalibrationError, ModelError
from pipeline.inputs.samples.conform import Interface, conform
from pipeline.plan.planner import plan
from pipeline.plan.steps import Step

CONFIG = """\
source: {path: ../model}
components: {net: {file: model.onnx}}
fixed:
  batch: 1    # a batch
  # GUESS: as many as one run is given
  'x[1]': 1
buckets:
  frames: [64, 128]    # GUESS: no more is known
calibration: {reader: npz, folder: calibration/net}
targets: [sm8650]
"""
GUESSED = "look first at what 'doit init' guessed: 'x[1]': 1 (configs/net.yaml:6:11); 'frames': 64, 128"


def steps(root: Path, text: str = CONFIG) -> dict[str, Step]:
    (root / "configs").mkdir()
    (root / "configs/net.yaml").write_text(text)
    return {step.stage: step for step in plan(load(root / "configs/net.yaml"))}


@pytest.mark.parametrize("remedy", ["", "take a larger one"])
def test_where_the_bucket_fails_all_guesses_are_named(tmp_path: Path, remedy: str) -> None:
    error = with_guesses(ModelError("node 'c' is constant", remedy=remedy), steps(tmp_path)["shape"])
    assert error.remedy.startswith(f"{GUESSED} (configs/net.yaml:8:11). Write what the application gives the model")
    assert error.remedy.endswith(f"; or {remedy}" if remedy else "gives the model")


def test_where_a_sample_does_not_fit_only_its_axis_is_named(tmp_path: Path) -> None:
    samples = steps(tmp_path)["samples"]
    error = with_guesses(CalibrationError("axis 'x[1]' is 576, and the config fixes it to 1", remedy="so"), samples)
    assert "'x[1]': 1 (configs/net.yaml:6:11)" in error.remedy
    assert "frames" not in error.remedy
    other = CalibrationError("axis 'batch' is 2, and the config fixes it to 1", remedy="so")
    assert with_guesses(other, samples).remedy == "so"


def test_nothing_is_said_of_sizes_that_somebody_looked_at(tmp_path: Path) -> None:
    shape = steps(tmp_path, CONFIG.replace("GUESS: ", ""))["shape"]
    assert with_guesses(ModelError("node 'c' is constant", remedy="so"), shape).remedy == "so"


@pytest.mark.parametrize(
    ("length", "said"),
    [
        (576, "write what the model is given in use, if that is 576: fixed: {'x[1]': 576}"),
        (2, "so that shorter ones are padded: buckets: {'x[1]': [8]}"),
    ],
)
def test_what_is_proposed_for_a_fixed_size_is_possible(length: int, said: str) -> None:
    interface = Interface((TensorSpec("x", "float32", (1, "x[1]")),), {"all": {}}, {"x[1]": 8})
    with pytest.raises(CalibrationError, match="the config fixes it to 8") as caught:
        conform({"x": np.zeros((1, length), np.float32)}, interface, where="0.npz")
    assert caught.value.remedy.endswith(said)
