"""quantize: make the QDQ model of every bucket from the float models and the component's ranges.

Inputs: ``rewrite/<bucket>`` for every bucket, ``calibrate``. Params: ``component``, ``buckets``, and those of a
:class:`pipeline.graph.scheme.Scheme`: ``activations``, ``weights``, ``per_channel``, ``overrides``, ``wide_products``.
Output: ``<component>_<bucket>.onnx``; ``<component>_weights.bin`` with the quantized weights, once for all buckets;
``<component>_<bucket>_constants.bin`` with the constants of a bucket alone, if any is large. Facts: ``scheme``, and
``parts``, for each bucket ``inputs``, ``outputs``, ``scheme``, ``nodes`` (without Q and DQ), ``float_nodes`` (those
that still compute in float), ``constants`` (type -> how many were quantized to it, and their bytes).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from onnx import ModelProto, TensorProto

from pipeline.graph.constant_store import InBlobs, SharedConstants
from pipeline.graph.encodings import Range, read_ranges
from pipeline.graph.model_file import (
    CONSTANTS,
    MODEL,
    REWRITTEN,
    BlobWriter,
    blob_names,
    byte_size,
    external_range,
    is_external,
    load_graph,
    save_graph,
    signature,
    tensor_dtype,
)
from pipeline.graph.observe import FLOATS
from pipeline.graph.qdq import Q_OPS
from pipeline.graph.quantizer import float_nodes, quantize
from pipeline.graph.scheme import Scheme
from pipeline.model import PARTS, Json, StageRequest, StageResult


def run(request: StageRequest) -> StageResult:
    """Quantize every bucket.

    Raises:
        QuantizationError: a value has no range, a constant is not finite, or a rule of the scheme can't be followed.
    """
    scheme = Scheme.from_json(_found(request) or request.params)
    ranges = read_ranges(request.inputs["calibrate"].folder / "ranges.json")
    buckets = request.params["buckets"]
    assert isinstance(buckets, dict)
    parts: dict[str, Json] = {}
    # Named so that the QDQ models of all components and buckets can lie in one folder.
    with BlobWriter(request.out / f"{request.params['component']}_weights.bin") as blob:
        shared = SharedConstants(blob)
        for bucket in buckets:
            parts[bucket] = _quantized(request, bucket, ranges, scheme, shared)
    return StageResult({"scheme": scheme.name, PARTS: parts})


def _quantized(
    request: StageRequest, bucket: str, ranges: Mapping[str, Range], scheme: Scheme, shared: SharedConstants
) -> Json:
    """Write the QDQ model of one bucket; its part of the step's output."""
    rewritten = request.inputs[f"rewrite/{bucket}"]
    model = load_graph(rewritten.folder / MODEL)
    own_names = {tensor.name for tensor in model.graph.initializer if _is_of_one_bucket(tensor, ranges)}
    digests = {file: entry.sha256 for file, entry in rewritten.files.items()}
    name = f"{request.params['component']}_{bucket}"
    with BlobWriter(request.out / f"{name}_constants.bin") as own:
        store = InBlobs(shared, own, own_names, digests)
        model = quantize(model, rewritten.folder, ranges, scheme, store)
    left = float_nodes(model)
    save_graph(model, request.out / f"{name}.onnx")
    constants_by_type = _constants(model)
    stored = ", ".join(f"{count['tensors']} in {kind}" for kind, count in constants_by_type.items())
    print(f"{bucket}: {scheme.name}, {len(left)} nodes left in float; constants: {stored or 'none'}")
    nodes = sum(node.op_type not in Q_OPS for node in model.graph.node)
    facts: dict[str, Json] = {"scheme": scheme.name, "nodes": nodes, "float_nodes": [*left]}
    facts["constants"] = {kind: {**count} for kind, count in constants_by_type.items()}
    files: dict[str, Json] = {MODEL: f"{name}.onnx", **{blob: blob for blob in sorted(blob_names(model))}}
    return {"files": files, "facts": {**signature(model), **facts}}


def _is_of_one_bucket(tensor: TensorProto, ranges: Mapping[str, Range]) -> bool:
    """Whether a constant is, or may be, another one in other buckets. Those in float that are have a range."""
    location = external_range(tensor).location if is_external(tensor) else ""
    is_rest = location == REWRITTEN and tensor.data_type not in FLOATS
    return tensor.name in ranges or location == CONSTANTS or is_rest


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
