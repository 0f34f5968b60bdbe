"""quantize: make the QDQ model of one bucket from its float model and the component's ranges.

Inputs: ``rewrite``, ``calibrate``. Params: ``component``, ``bucket``, and those of a
:class:`pipeline.graph.scheme.Scheme`: ``activations``, ``weights``, ``per_channel``, ``overrides``, ``wide_products``.
Output: ``model.onnx``; ``<component>_weights.bin`` with the quantized weights, the same bytes for every bucket;
``<component>_<bucket>_constants.bin`` with the constants of this bucket alone, if any is large. Facts: ``inputs``,
``outputs``, ``scheme``, ``nodes`` (without Q and DQ), ``float_nodes`` (those that still compute in float),
``constants`` (type -> how many were quantized to it, and their bytes).
"""

from __future__ import annotations

import json
import re
from typing import Any

from onnx import ModelProto, numpy_helper

from pipeline.graph.encodings import read_ranges
from pipeline.graph.model_file import (
    CONSTANTS,
    MODEL,
    BlobWriter,
    byte_size,
    external_range,
    is_external,
    load_graph,
    save_graph,
    signature,
    tensor_dtype,
)
from pipeline.graph.qdq import Q_OPS
from pipeline.graph.quantizer import float_nodes, quantize
from pipeline.graph.scheme import Scheme
from pipeline.model import Json, StageRequest, StageResult


def run(request: StageRequest) -> StageResult:
    """Quantize one bucket.

    Raises:
        QuantizationError: a value has no range, a constant is not finite, or a rule of the scheme can't be followed.
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
            blob = own if of_this_bucket.intersection(_originals(tensor.name)) else shared
            tensor.CopyFrom(blob.tensor(tensor.name, numpy_helper.to_array(tensor)))
    save_graph(model, request.out / MODEL)
    constants_by_type = _constants(model)
    stored = ", ".join(f"{count['tensors']} in {kind}" for kind, count in constants_by_type.items())
    print(f"{scheme.name}, {len(left)} nodes left in float; constants: {stored or 'none'}")
    nodes = sum(node.op_type not in Q_OPS for node in model.graph.node)
    facts: dict[str, Json] = {"scheme": scheme.name, "nodes": nodes, "float_nodes": [*left]}
    facts["constants"] = {kind: {**count} for kind, count in constants_by_type.items()}
    return StageResult({**signature(model), **facts})


def _originals(name: str) -> tuple[str, ...]:
    """What a quantized constant may have been called before: readers that need it in two ways have a copy each."""
    stem = name.removesuffix("_quantized")
    return stem, re.sub(r"_\d+$", "", stem)


def _constants(model: ModelProto) -> dict[str, dict[str, int]]:
    """How many constants are stored in each type, and their bytes."""
    read = {node.input[0] for node in model.graph.node if node.op_type == "DequantizeLinear"}
    found: dict[str, dict[str, int]] = {}
    for tensor in sorted(model.graph.initializer, key=lambda tensor: tensor_dtype(tensor).name):
        if tensor.name in read:
            count = found.setdefault(tensor_dtype(tensor).name, {"tensors": 0, "bytes": 0})
            count["tensors"] += 1
            count["bytes"] += byte_size(tensor)
    return found


def _found(request: StageRequest) -> dict[str, Any] | None:
    """The scheme that a search found, if there was one."""
    if "precision" not in request.inputs:
        return None
    found: dict[str, Any] = json.loads((request.inputs["precision"].folder / "precision.json").read_text("utf-8"))
    return found
