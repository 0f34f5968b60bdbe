"""shape: fix every axis of a component for one bucket, so that no dynamic dim is left."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from onnx import ModelProto, numpy_helper

from pipeline.contracts.shape import Facts, Params
from pipeline.graph.files.blob_writer import BlobWriter
from pipeline.graph.files.model_file import (
    CONSTANTS,
    EXTERNAL_BYTES,
    MODEL,
    blob_names,
    byte_size,
    is_external,
    load_graph,
    save_graph,
    signature,
)
from pipeline.graph.shapes.neutral_padding import has_copying_pads, neutralize
from pipeline.graph.shapes.random_numbers import check_random_numbers
from pipeline.graph.shapes.static_shapes import following_dims, make_static
from pipeline.model import StageRequest, StageResult


def run(request: StageRequest) -> StageResult:
    """Write ``model.onnx``, and ``constants.bin`` if large constants were computed; the other blobs are ingest's.

    Raises:
        ConfigError: an axis has no size.
        ModelError: axis values contradict each other in the model, a shape depends on data, or it draws random numbers.
    """
    params, given = Params.from_json(request.params), request.inputs["ingest"]
    sizes = {**params.fixed, **params.axes}
    model = load_graph(given.folder / MODEL)
    with BlobWriter(request.out / CONSTANTS) as blob:
        static = make_static(model, sizes, given.folder, blob)
        check_random_numbers(static.model)
        neutral = _neutralized(static.model, given.folder, sizes, params.axes, blob)
    save_graph(static.model, request.out / MODEL)
    for text in static.stale_outputs:
        print(f"warning: output {text}: what is computed counts")
    nodes = len(static.model.graph.node)
    print(f"{nodes} nodes, {static.folded} folded, {neutral} paddings made neutral")
    known = signature(static.model)
    facts = Facts(
        inputs=known.inputs,
        outputs=known.outputs,
        nodes=nodes,
        folded=static.folded,
        stale_outputs=tuple(static.stale_outputs),
        neutral_pads=neutral,
    )
    reused = {name: ("ingest", name) for name in sorted(blob_names(static.model) - {CONSTANTS})}
    return StageResult(facts.to_json(), reused)


def _neutralized(
    model: ModelProto, source: Path, sizes: Mapping[str, int], padded: Mapping[str, int], blob: BlobWriter
) -> int:
    """Make the paddings within the model neutral to the bucket's; returns their number."""
    if not padded or not has_copying_pads(model):
        return 0
    count = neutralize(model, source, following_dims(source / MODEL, sizes, padded))
    for tensor in model.graph.initializer:
        if not is_external(tensor) and byte_size(tensor) >= EXTERNAL_BYTES:
            tensor.CopyFrom(blob.tensor(tensor.name, numpy_helper.to_array(tensor)))
    return count
