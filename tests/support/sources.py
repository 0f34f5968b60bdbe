"""Models as a source has them, and what ingest and shape make of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import ArrayLike, NDArray
from onnx import ModelProto, numpy_helper, parser

from pipeline.graph.files.model_file import MODEL, set_external
from pipeline.model import StageInput
from tests.support.stage_runs import given, run_stage

NUMBERS = np.random.default_rng(7)


def numbers(*shape: int) -> NDArray[np.float32]:
    """Normally distributed weights or inputs."""
    return NUMBERS.standard_normal(shape).astype(np.float32)


def model(text: str, constants: Mapping[str, ArrayLike] | None = None, *, opset: int = 17) -> ModelProto:
    """A model from ONNX text (https://onnx.ai/onnx/repo-docs/Syntax.html), not checked, with these initializers."""
    imports = f'"" : {opset}, "com.microsoft" : 1, "ai.onnx.ml" : 3, "local" : 1'
    parsed: ModelProto = parser.parse_model(f"<ir_version: 8, opset_import: [{imports}]>\n{text}")
    for name, array in (constants or {}).items():
        parsed.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    return parsed


def fetched(folder: Path, source: ModelProto | bytes, file: str = MODEL) -> StageInput:
    """The output of a fetch step that holds this model."""
    path = folder / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(source if isinstance(source, bytes) else source.SerializeToString())
    return given(folder, {})


def ingested(root: Path, source: ModelProto | bytes) -> StageInput:
    """The output of ingest for a model."""
    return run_stage("ingest", root / "ingest", {"file": MODEL}, {"fetch": fetched(root / "fetch", source)})


def shaped(root: Path, source: ModelProto | StageInput, **axes: int) -> StageInput:
    """The output of shape for a model, or for what ingest made of one."""
    taken = source if isinstance(source, StageInput) else ingested(root, source)
    folder = root / "-".join(("shape", *map(str, axes.values())))
    return run_stage("shape", folder, {"axes": {**axes}}, {"ingest": taken})


def outputs(source: ModelProto | Path, feeds: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
    """What a model computes on onnxruntime's CPU with nothing optimized."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    data = str(source) if isinstance(source, Path) else source.SerializeToString()
    results: list[NDArray[Any]] = ort.InferenceSession(data, options).run(None, dict(feeds))
    return results


def same(first: list[NDArray[Any]], second: list[NDArray[Any]]) -> bool:
    """Whether two lists of arrays are equal in dtypes, shapes and every bit but the sign of NaN."""
    return len(first) == len(second) and all(
        a.dtype == b.dtype and a.shape == b.shape and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
        for a, b in zip(first, second, strict=True)
    )


def move_to_external(source: ModelProto, folder: Path, location: str) -> None:
    """Make every initializer external data at `location` under `folder`, as exporters pack them: back to back."""
    path = folder / location
    path.parent.mkdir(parents=True, exist_ok=True)
    data = b""
    for tensor in source.graph.initializer:
        values = numpy_helper.to_array(tensor).tobytes()
        set_external(tensor, location, len(data), len(values))
        data += values
    path.write_bytes(data)
