"""rewrite: replace what HTP would compute wrongly or not at all, without changing what the model computes.

Inputs: ``shape``. Output: ``model.onnx``, and ``rewritten.bin`` if large constants were made; other blobs are those of
the shaped model.
"""

from __future__ import annotations

from pipeline.contracts.rewrite import Facts, Params
from pipeline.graph.files.blob_writer import BlobWriter
from pipeline.graph.files.model_file import (
    EXTERNAL_BYTES,
    MODEL,
    REWRITTEN,
    blob_names,
    byte_size,
    is_external,
    load_graph,
    save_graph,
    signature,
    tensor_array,
)
from pipeline.graph.ir.index import GraphIndex
from pipeline.graph.quantization.calibration.input_guards import input_guards
from pipeline.graph.quantization.passes import write_out_layers
from pipeline.graph.rewrites import apply_all, separate_middles
from pipeline.graph.shapes.too_many_dims import too_many_dims
from pipeline.model import StageRequest, StageResult


def run(request: StageRequest) -> StageResult:
    """Apply every rewrite to one bucket's model."""
    params, shaped = Params.from_json(request.params), request.inputs["shape"]
    model = load_graph(shaped.folder / MODEL)
    applied = apply_all(model, shaped.folder)
    if params.in_float and (
        written := write_out_layers.apply(model, shaped.folder, is_wanted=lambda _index, _layer: True)
    ):
        applied["write_out_layers"] = written
    if params.middles:
        applied["separate_middles"] = separate_middles.apply(model, shaped.folder)
    with BlobWriter(request.out / REWRITTEN) as blob:
        for tensor in model.graph.initializer:
            if not is_external(tensor) and byte_size(tensor) >= EXTERNAL_BYTES:
                tensor.CopyFrom(blob.tensor(tensor.name, tensor_array(tensor, shaped.folder)))
    save_graph(model, request.out / MODEL)
    reused = {name: ("shape", name) for name in sorted(blob_names(model) - {REWRITTEN})}
    for name, count in applied.items():
        print(f"{name}: {count}")
    known = signature(model)
    nodes = len(model.graph.node)
    deep = too_many_dims(model)
    takes_nan = (*sorted(input_guards(GraphIndex(model, shaped.folder)).takes_nan),)
    facts = Facts(known.inputs, known.outputs, nodes, applied, deep, takes_nan or None)
    return StageResult(facts.to_json(), reused)
