"""ingest: takes in one component of a source, checks it, brings it into normal form.

Weights stay where they are, in the files of the source: see :mod:`pipeline.graph.source_weights`. A float16 model
computes in float32 from here on: see :mod:`pipeline.graph.single_precision`.
"""

from __future__ import annotations

from pipeline.errors import SourceError
from pipeline.graph.admission import check_functions, check_model
from pipeline.graph.axes import model_axes
from pipeline.graph.inference import Opsets
from pipeline.graph.model_file import CONVERTED, MODEL, BlobWriter, save_graph, signature, tensor_array
from pipeline.graph.normal_form import inline_functions, lift_opset, normalize
from pipeline.graph.single_precision import widen
from pipeline.graph.source_weights import SourceWeights
from pipeline.graph.traverse import all_tensors, reads
from pipeline.graph.wire import parse_lean
from pipeline.model import Json, StageRequest, StageResult


def run(request: StageRequest) -> StageResult:
    """Write ``model.onnx``, and ``converted.bin`` for constants that are not in the source as they are needed.

    ``weights.bin`` is the file of the source that the others are in, ``weights_2.bin`` and so on if there are several.
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
    with BlobWriter(request.out / CONVERTED) as blob:
        weights = SourceWeights(request.inputs["fetch"].folder, source.parent, blob)
        for name in constants.types:
            if name in read:
                came = constants.stored(name)
                kept = weights.kept_tensor(came) if came is not None else None
                graph.initializer.append(kept or weights.written_tensor(name, constants.value(name)))
        for tensor in inner:
            kept = weights.kept_tensor(tensor)
            tensor.CopyFrom(kept or weights.written_tensor(tensor.name, tensor_array(tensor, source.parent)))
    save_graph(model, request.out / MODEL)
    print(f"{file}: {len(graph.node)} nodes, {len(graph.initializer)} initializers")
    axes: dict[str, Json] = {axis: [*inputs] for axis, inputs in model_axes(model).items()}
    opset = Opsets.of(model).versions.get("")
    facts: dict[str, Json] = {"opset": opset, "nodes": len(graph.node), "axes": axes}
    reused = {name: ("fetch", of) for name, of in weights.kept.items()}
    return StageResult({**signature(model), **facts}, reused)
