"""The node tests that ship with ONNX, as models with feeds."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, numpy_helper
from onnx.backend.test.loader import load_model_tests

from pipeline.graph.files.model_file import MODEL, save_graph
from pipeline.model import Json, StageInput, StageRequest, StageResult
from pipeline.stages import ingest, shape
from tests.support.stage_runs import given

Arrays = Mapping[str, NDArray[Any]]

NEWEST_OPSET, NEWEST_IR = 26, 13
"""What onnxruntime 1.31 runs; later tests say that they are of these. Those whose operator is new stay out."""


def node_tests() -> list[Any]:
    """All of them; `variants` makes models of each."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tests make their data as they are loaded, infinities included
        return list(load_model_tests(kind="node"))


def variants(case: Any) -> Iterator[tuple[str, ModelProto, dict[str, NDArray[Any]]]]:
    """The test as it is, and with all inputs but the first as constants."""
    model = ModelProto()
    model.CopyFrom(case.model)
    model.ir_version = min(model.ir_version, NEWEST_IR)
    for entry in model.opset_import:
        if not entry.domain:
            entry.version = min(entry.version, NEWEST_OPSET)
    feeds = {value.name: _array(given) for value, given in zip(model.graph.input, case.data_sets[0][0], strict=False)}
    yield "", model, feeds
    if len(feeds) > 1 and all(isinstance(array, np.ndarray) for array in feeds.values()):
        first = next(iter(feeds))
        fixed = ModelProto()
        fixed.CopyFrom(model)
        fixed.ir_version = max(model.ir_version, 4)  # the first in which a constant need not be an input
        del fixed.graph.input[1:]
        fixed.graph.initializer.extend(
            numpy_helper.from_array(array, name) for name, array in feeds.items() if name != first
        )
        yield "constants", fixed, {first: feeds[first]}


def static(model: ModelProto, feeds: Arrays, folder: Path) -> StageInput:
    """The model after ingest and shape, with the axes that its feeds have; `folder` is used again and again.

    Raises:
        PipelineError: a step refuses it.
    """
    source = emptied(folder / "source")
    save_graph(model, source / MODEL)
    ingested = step(ingest.run, folder / "ingest", {"file": MODEL}, {"fetch": given(source, {})})
    inputs: Any = ingested.facts["inputs"]
    axes = {
        dim: size
        for value in inputs
        for dim, size in zip(value["shape"], feeds[value["name"]].shape, strict=False)
        if isinstance(dim, str)
    }
    return step(shape.run, folder / "shape", {"axes": axes}, {"ingest": ingested})


def step(
    run: Callable[[StageRequest], StageResult], out: Path, params: dict[str, Json], inputs: dict[str, StageInput]
) -> StageInput:
    """A stage as `tests.support.stage_runs` runs it, but in a folder that was used before, which is quicker."""
    result = run(StageRequest("a node test", params, inputs, {}, emptied(out)))
    for name, (role, source) in result.reused.items():
        shutil.copyfile(inputs[role].folder / source, out / name)
    return given(out, result.facts)


def emptied(folder: Path) -> Path:
    """The folder, without the files that were in it."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in folder.iterdir():
        file.unlink()
    return folder


def _array(value: Any) -> Any:
    """A test's input as onnxruntime takes it: numbers as arrays. Lists, for sequences, stay."""
    if isinstance(value, TensorProto):
        return numpy_helper.to_array(value)
    return value if isinstance(value, list) or value is None else np.asarray(value)
