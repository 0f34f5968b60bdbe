"""shape: fixes every axis of a component for one bucket, and leaves no dynamic dim anywhere."""

from __future__ import annotations

from collections.abc import Mapping

from onnx import ModelProto, numpy_helper

from pipeline.graph.model_file import (
    CONSTANTS,
    EXTERNAL_BYTES,
    MODEL,
    BlobWriter,
    blob_names,
    byte_size,
    is_external,
    load_graph,
    save_graph,
    signature,
)
from pipeline.graph.neutral_padding import has_copying_pads, neutralize
from pipeline.graph.static_shapes import following_dims, make_static
from pipeline.model import Json, StageRequest, StageResult


def run(request: StageRequest) -> StageResult:
    """Write ``model.onnx``, and ``constants.bin`` if large constants were computed; the other blobs are ingest's.

    Params: ``axes``, which inputs are padded on, and, optionally, ``fixed``, both axis -> size. Facts: ``inputs`` and
    ``outputs`` with dims as sizes, ``nodes``, ``folded`` (nodes computed away), ``renamed_dims`` (output dims that the
    source names wrongly), ``neutral_pads`` (paddings within the model that no longer see the bucket's).

    Raises:
        ConfigError: an axis has no size.
        ModelError: axis values contradict each other in the model, or a shape depends on data.
    """
    given = request.inputs["ingest"]
    model = load_graph(given.folder / MODEL)
    with BlobWriter(request.out / CONSTANTS) as blob:
        static = make_static(model, _sizes(request.params), given.folder, blob)
        neutral = _neutralized(static.model, request, blob)
    save_graph(static.model, request.out / MODEL)
    for text in static.renamed_dims:
        print(f"output {text}")
    nodes = len(static.model.graph.node)
    print(f"{nodes} nodes, {static.folded} folded, {neutral} paddings made neutral")
    facts: dict[str, Json] = {
        "nodes": nodes,
        "folded": static.folded,
        "renamed_dims": list(static.renamed_dims),
        "neutral_pads": neutral,
    }
    reused = {name: ("ingest", name) for name in sorted(blob_names(static.model) - {CONSTANTS})}
    return StageResult({**signature(static.model), **facts}, reused)


def _neutralized(model: ModelProto, request: StageRequest, blob: BlobWriter) -> int:
    """Make the paddings within the model neutral to the bucket's; returns their number."""
    padded = request.params.get("axes") or {}
    assert isinstance(padded, dict)
    if not padded or not has_copying_pads(model):
        return 0
    source = request.inputs["ingest"].folder
    count = neutralize(model, source, following_dims(source / MODEL, _sizes(request.params), padded))
    for tensor in model.graph.initializer:
        if not is_external(tensor) and byte_size(tensor) >= EXTERNAL_BYTES:
            tensor.CopyFrom(blob.tensor(tensor.name, numpy_helper.to_array(tensor)))
    return count


def _sizes(params: Mapping[str, Json]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for key in ("fixed", "axes"):
        values = params.get(key) or {}
        assert isinstance(values, dict)
        sizes |= {axis: size for axis, size in values.items() if isinstance(size, int)}
    return sizes
