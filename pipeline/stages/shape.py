"""shape: fixes every axis of a component for one bucket, and leaves no dynamic dim anywhere."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.graph.model_file import CONSTANTS, MODEL, WEIGHTS, BlobWriter, load_graph, save_graph, signature
from pipeline.graph.static_shapes import make_static
from pipeline.model import Json, StageRequest, StageResult


def run(request: StageRequest) -> StageResult:
    """Write ``model.onnx``, and ``constants.bin`` if large constants were computed; ``weights.bin`` is ingest's.

    Params: ``axes`` and, optionally, ``fixed``, both axis -> size. Facts: ``inputs`` and ``outputs`` with dims as
    sizes, ``nodes``, ``folded`` (nodes computed away), ``renamed_dims`` (output dims that the source names wrongly).

    Raises:
        ConfigError: an axis has no size.
        ModelError: axis values contradict each other in the model, or a shape depends on data.
    """
    given = request.inputs["ingest"]
    model = load_graph(given.folder / MODEL)
    with BlobWriter(request.out / CONSTANTS) as blob:
        static = make_static(model, _sizes(request.params), given.folder, blob)
    save_graph(static.model, request.out / MODEL)
    for text in static.renamed_dims:
        print(f"output {text}")
    nodes = len(static.model.graph.node)
    print(f"{nodes} nodes, {static.folded} folded")
    facts: dict[str, Json] = {"nodes": nodes, "folded": static.folded, "renamed_dims": list(static.renamed_dims)}
    reused = {WEIGHTS: ("ingest", WEIGHTS)} if WEIGHTS in given.files else {}
    return StageResult({**signature(static.model), **facts}, reused)


def _sizes(params: Mapping[str, Json]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for key in ("fixed", "axes"):
        values = params.get(key) or {}
        assert isinstance(values, dict)
        sizes |= {axis: size for axis, size in values.items() if isinstance(size, int)}
    return sizes
