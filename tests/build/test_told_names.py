"""What a worker tells of a failure names files as the user does, not by the folders of the store that it was given."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import NoReturn

import pytest

from pipeline.build import worker
from pipeline.build.worker import dump_request, load_answer
from pipeline.errors import ModelError, PipelineError
from pipeline.model import StageInput, StageRequest


def opens(request: StageRequest) -> NoReturn:
    """What code of the user's does that reads a file which the config does not name."""
    try:
        (request.inputs["fetch"].folder / "voices" / "M1.bin").read_bytes()
    except OSError as error:
        both = request.inputs["fetch/data"].folder / "a.npz", request.out
        raise ModelError("a file", where=str(both[0]), why=str(error), remedy=f"see {both[1]}") from error
    raise AssertionError("it is not there")


def trips(request: StageRequest) -> NoReturn:
    raise ValueError(f"Load model from {request.inputs['fetch'].folder / 'onnx' / 'model.onnx'} failed")


def told(run: object, folder: Path, monkeypatch: pytest.MonkeyPatch) -> PipelineError:
    stage = ModuleType("pipeline.stages.tripping")
    stage.run = run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, stage.__name__, stage)
    inputs = {role: StageInput(folder / "in" / role, {}, {}) for role in ("fetch", "fetch/data")}
    request, answer = StageRequest("samples:net/calibration", {}, inputs, {}, folder / "out"), folder / "answer.json"
    (folder / "request.json").write_text(dump_request(request, "tripping", answer), "utf-8")
    worker.main(str(folder / "request.json"))
    with pytest.raises(PipelineError) as caught:
        load_answer(answer)
    return caught.value


def test_files_have_the_names_that_they_have_in_the_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    error = told(opens, tmp_path, monkeypatch)
    assert error.why == f"[Errno 2] No such file or directory: {str(Path('voices', 'M1.bin'))!r}"
    assert error.where == "a.npz"
    assert error.remedy == "see the folder of the output"
    assert str(tmp_path) not in str(told(trips, tmp_path, monkeypatch))
