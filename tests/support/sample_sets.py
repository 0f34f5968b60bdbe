"""Running the samples step on small models, as the tests of readers do."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.contracts.samples import Params, Reading
from pipeline.errors import CalibrationError
from pipeline.inputs.samples.sample_set import StoredCall, stored_calls
from pipeline.model import Json, StageInput
from tests.support.graphs import graph
from tests.support.models.builder import save
from tests.support.stage_runs import given, run_stage

Buckets = Mapping[str, Mapping[str, int]]
BUCKETS: Buckets = {str(size): {"sequence": size} for size in (8, 16)}
_TWO = """
two (int64[batch, sequence] input_ids, float[batch, sequence, 2] bias) => (float[batch, sequence, 2] y) {
    axes = Constant <value = int64[1] {2}> ()
    wide = Unsqueeze (input_ids, axes)
    cast = Cast <to = 1> (wide)
    y = Add (cast, bias)
}
"""
_ONE = "one (float[batch, frames] wave) => (float[batch, frames] y) { y = Neg (wave) }"


def ingest(source: Path, components: Mapping[str, str], scratch: Path) -> dict[str, StageInput]:
    """The inputs of a samples step: the source as fetch leaves it, and every component after ingest."""
    inputs = {"fetch": given(source, {})}
    for name, file in components.items():
        inputs[f"ingest/{name}"] = run_stage("ingest", scratch / name, {"file": file}, {"fetch": inputs["fetch"]})
    return inputs


@dataclass(frozen=True)
class SampleStep:
    """A samples step of a model, to be run with one calibration set or another."""

    inputs: Mapping[str, StageInput]
    buckets: Mapping[str, Buckets]
    scratch: Path

    def run(
        self,
        calibration: dict[str, Json],
        samples: Path | None = None,
        code: Path | None = None,
        fixed: Mapping[str, Mapping[str, int]] | None = None,
    ) -> StageInput:
        """Run the step; its output."""
        out = self.scratch / "out"
        shutil.rmtree(out, ignore_errors=True)
        params = Params(
            calibration=Reading.from_json({"max_samples": 128, **calibration}),
            buckets=self.buckets,
            fixed={name: (fixed or {}).get(name, {}) for name in self.buckets},
        ).to_json()
        files = {"samples": samples, "code": code}
        return run_stage("samples", out, params, self.inputs, {role: path for role, path in files.items() if path})


def calls(output: StageInput, component: str) -> list[StoredCall]:
    """What a samples step recorded for a component."""
    return stored_calls(output.folder, component)


def arrays(output: StageInput, component: str) -> list[dict[str, NDArray[Any]]]:
    """The arrays of all calls of a component."""
    return [call.load() for call in calls(output, component)]


def write_code(folder: Path, text: str, name: str = "code.py") -> Path:
    """A Python file in a project's `calibration/` folder."""
    path = folder / "calibration" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    return path


def npz(target: Path | IO[bytes], **arrays: Any) -> None:
    """Write a `.npz`. Typed so that a mapping of arrays passes: numpy's own signature has other keywords too."""
    np.savez(target, **arrays)


def ids(*numbers: int) -> NDArray[np.int64]:
    """Token ids, int64 [1, length]."""
    return np.array([numbers], np.int64)


def two_components(folder: Path) -> SampleStep:
    """A model of `two`, which takes input_ids and bias, and `one`, which takes wave."""
    save(graph(_TWO), folder / "source" / "two.onnx")
    save(graph(_ONE), folder / "source" / "one.onnx")
    inputs = ingest(folder / "source", {"two": "two.onnx", "one": "one.onnx"}, folder / "ingest")
    return SampleStep(inputs, {"two": BUCKETS, "one": {"6": {"frames": 6}}}, folder)


def net_step(folder: Path, text: str, buckets: Buckets | None = None) -> SampleStep:
    """A samples step of a model of one component, `net`."""
    save(graph(text), folder / "source" / "net.onnx")
    return SampleStep(ingest(folder / "source", {"net": "net.onnx"}, folder / "ingest"), {"net": buckets or {}}, folder)


def refusal(
    step: SampleStep, calibration: dict[str, Json], samples: Path | None = None, code: Path | None = None
) -> str:
    """What the samples step says when it refuses a calibration set."""
    with pytest.raises(CalibrationError) as caught:
        step.run(calibration, samples, code)
    return str(caught.value)
