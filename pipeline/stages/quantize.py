"""quantize: make the QDQ model of one bucket from its float model and the component's ranges.

Inputs: ``rewrite``, ``calibrate``. Params: ``component``, ``bucket``, ``activations``, ``weights``, ``per_channel``.
Output: ``model.onnx``; ``<component>_weights.bin`` with the quantized weights, the same bytes for every bucket;
``<component>_<bucket>_constants.bin`` with the constants of this bucket alone, if any is large. Facts: ``inputs``,
``outputs``, ``scheme``, ``nodes`` (without Q and DQ), ``float_nodes`` (those that still compute in float).
"""

from __future__ import annotations

import json
from typing import Any

from onnx import numpy_helper

from pipeline.graph.encodings import read_ranges
from pipeline.graph.model_file import (
    CONSTANTS,
    MODEL,
    BlobWriter,
    external_range,
    is_external,
    load_graph,
    save_graph,
    signature,
)
from pipeline.graph.quantizer import Q_OPS, float_nodes, quantize
from pipeline.graph.scheme import Scheme
from pipeline.model import Json, StageRequest, StageResult


def run(request: StageRequest) -> StageResult:
    """Quantize one bucket.

    Raises:
        QuantizationError: a value has no range, or onnxruntime's quantizer refuses the model.
    """
    params = request.params
    scheme = Scheme.from_json(_found(request) or params)
    folder = request.inputs["rewrite"].folder
    ranges = read_ranges(request.inputs["calibrate"].folder / "ranges.json")
    source = load_graph(folder / MODEL)
    of_this_bucket = {
        tensor.name
        for tensor in source.graph.initializer
        if tensor.name in ranges or (is_external(tensor) and external_range(tensor).location == CONSTANTS)
    }
    model = quantize(source, folder, ranges, scheme)
    left = float_nodes(model)
    # Named so that the QDQ models of all components and buckets can lie in one folder and share what is equal.
    component = str(params["component"])
    weights = request.out / f"{component}_weights.bin"
    constants = request.out / f"{component}_{params['bucket']}_constants.bin"
    with BlobWriter(weights) as shared, BlobWriter(constants) as own:
        for tensor in model.graph.initializer:
            blob = own if tensor.name.removesuffix("_quantized") in of_this_bucket else shared
            tensor.CopyFrom(blob.tensor(tensor.name, numpy_helper.to_array(tensor)))
    save_graph(model, request.out / MODEL)
    print(f"{scheme.name}, {len(left)} nodes left in float")
    nodes = sum(node.op_type not in Q_OPS for node in model.graph.node)
    facts: dict[str, Json] = {"scheme": scheme.name, "nodes": nodes, "float_nodes": [*left]}
    return StageResult({**signature(model), **facts})


def _found(request: StageRequest) -> dict[str, Any] | None:
    """The scheme that a search found, if there was one."""
    if "precision" not in request.inputs:
        return None
    found: dict[str, Any] = json.loads((request.inputs["precision"].folder / "precision.json").read_text("utf-8"))
    return found
