"""rewrite: change what HTP would compute wrongly or not at all, and nothing about the result.

Inputs: ``shape``. Output: ``model.onnx``, with the blobs of the shaped model beside it. Facts: ``inputs``, ``outputs``,
``nodes``, ``applied`` (rewrite -> number of places changed).
"""

from __future__ import annotations

from pathlib import Path

from onnx import ModelProto

from pipeline.graph.model_file import (
    CONSTANTS,
    EXTERNAL_BYTES,
    WEIGHTS,
    BlobWriter,
    byte_size,
    external_range,
    is_external,
    load_graph,
    save_graph,
    signature,
    tensor_array,
)
from pipeline.graph.rewrites import apply_all
from pipeline.model import StageRequest, StageResult


def run(request: StageRequest) -> StageResult:
    """Apply every rewrite to one bucket's model."""
    shaped = request.inputs["shape"]
    model = load_graph(shaped.folder / "model.onnx")
    applied = apply_all(model, shaped.folder)
    reused = {name: ("shape", name) for name in (WEIGHTS, CONSTANTS) if name in shaped.files}
    if _has_new_constants(model):
        _write_constants(model, shaped.folder, request.out)
        reused.pop(CONSTANTS, None)
    save_graph(model, request.out / "model.onnx")
    for name, count in applied.items():
        print(f"{name}: {count}")
    return StageResult({**signature(model), "nodes": len(model.graph.node), "applied": {**applied}}, reused)


def _has_new_constants(model: ModelProto) -> bool:
    return any(not is_external(tensor) and byte_size(tensor) >= EXTERNAL_BYTES for tensor in model.graph.initializer)


def _write_constants(model: ModelProto, folder: Path, out: Path) -> None:
    """Write a blob with the constants that came with the model and those that a rewrite made."""
    with BlobWriter(out / CONSTANTS) as blob:
        for tensor in model.graph.initializer:
            if not is_external(tensor) or external_range(tensor).location == CONSTANTS:
                tensor.CopyFrom(blob.tensor(tensor.name, tensor_array(tensor, folder)))
