"""ingest: takes in one component of a source, checks it, brings it into normal form, its weights in one blob.

A float16 model computes in float32 from here on: see :mod:`pipeline.graph.single_precision`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from pipeline.errors import ModelError, SourceError
from pipeline.graph.admission import check_functions, check_model
from pipeline.graph.axes import model_axes
from pipeline.graph.inference import Opsets
from pipeline.graph.model_file import EXTERNAL_BYTES, MODEL, WEIGHTS, BlobWriter, save_graph, signature, tensor_array
from pipeline.graph.normal_form import inline_functions, lift_opset, normalize
from pipeline.graph.single_precision import widen, widened
from pipeline.graph.traverse import all_tensors, reads
from pipeline.graph.wire import parse_lean
from pipeline.model import Json, StageRequest, StageResult


def run(request: StageRequest) -> StageResult:
    """Write ``model.onnx`` and ``weights.bin``.

    Params: ``file``, the component's name in the output of fetch. Facts: ``inputs`` and ``outputs`` with dims as sizes
    or names, ``opset``, ``nodes``, ``axes`` (each with the inputs that carry it).

    Raises:
        SourceError: the source has no such file.
        ModelError: the model is damaged, unsafe, quantized already, or not one that can be built.
    """
    file = str(request.params["file"])
    source = request.inputs["fetch"].folder / file
    if file not in request.inputs["fetch"].files:
        raise SourceError(
            f"the source has no file {file!r}",
            why=f"it has {', '.join(sorted(request.inputs['fetch'].files)) or 'none'}",
            remedy="correct 'file' of this component in the config",
        )
    model = parse_lean(source)
    check_functions(model)
    model = inline_functions(model)
    check_model(model, file)
    model, constants = normalize(lift_opset(model), source.parent)
    widen(model)
    graph = model.graph
    inner = list(all_tensors(graph))
    read = {name for node in graph.node for name in reads(node)} | {value.name for value in graph.output}
    with BlobWriter(request.out / WEIGHTS) as blob:
        for name in constants.types:
            if name in read:
                graph.initializer.append(_stored(name, constants.value(name), blob))
        for tensor in inner:
            tensor.CopyFrom(_stored(tensor.name, tensor_array(tensor, source.parent), blob))
    save_graph(model, request.out / MODEL)
    print(f"{file}: {len(graph.node)} nodes, {len(graph.initializer)} initializers")
    axes: dict[str, Json] = {axis: [*inputs] for axis, inputs in model_axes(model).items()}
    opset = Opsets.of(model).versions.get("")
    return StageResult({**signature(model), "opset": opset, "nodes": len(graph.node), "axes": axes})


def _stored(name: str, values: NDArray[Any], blob: BlobWriter) -> TensorProto:
    values = widened(values)
    # Small constants may hold NaN on purpose, weights don't. The maximum is NaN if any is, and takes no second array.
    if values.dtype.kind == "f" and values.nbytes >= EXTERNAL_BYTES and np.isnan(np.max(values)):
        raise ModelError(
            f"tensor {name!r} holds NaN",
            why="whatever is computed with it is NaN too",
            remedy="fetch the file again; if it is so in the source, the model was exported from a failed training run",
        )
    return blob.tensor(name, values)
