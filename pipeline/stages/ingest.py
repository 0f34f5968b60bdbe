"""ingest: read one component of a source, check it, and bring it into normal form.

Weights stay where they are, in the files of the source: see :mod:`pipeline.graph.files.source_weights`. A float16 model
computes in float32 from here on: see :mod:`pipeline.graph.files.single_precision`.
"""

from __future__ import annotations

from pathlib import Path

from onnx import GraphProto, ModelProto

from pipeline.contracts.ingest import Begin, Facts, Params
from pipeline.errors import SourceError
from pipeline.graph.files.admission import check_functions, check_model
from pipeline.graph.files.blob_writer import BlobWriter
from pipeline.graph.files.cutting import take_part
from pipeline.graph.files.given_constants import give_constants
from pipeline.graph.files.lean_parse import parse_lean
from pipeline.graph.files.loose_forms import tighten
from pipeline.graph.files.model_file import CONVERTED, MODEL, byte_size, save_graph, signature, tensor_array
from pipeline.graph.files.reserved_names import free_reserved_names
from pipeline.graph.files.single_precision import widen
from pipeline.graph.files.source_weights import SourceWeights
from pipeline.graph.floats import write_in_floats
from pipeline.graph.ir.inference import Opsets
from pipeline.graph.ir.traverse import all_nodes, all_tensors, reads
from pipeline.graph.shapes.axes import model_axes
from pipeline.graph.shapes.empty_values import fix_empty_inputs
from pipeline.graph.shapes.folding import Constants
from pipeline.graph.shapes.normal_form import inline_functions, lift_opset, normalize
from pipeline.graph.shapes.strings import check_strings
from pipeline.graph.shapes.tables import tables
from pipeline.inputs.gguf.source import gguf_source
from pipeline.inputs.language_source import ingest_language
from pipeline.inputs.safetensors.index import is_safetensors
from pipeline.inputs.safetensors.source import safetensors_source
from pipeline.inputs.safetensors.whisper import ingest_whisper
from pipeline.model import StageRequest, StageResult

_MOST_INSIDE = 64 << 20
"""How many bytes of constants in branches and loop bodies the graph file itself may hold."""


def run(request: StageRequest) -> StageResult:
    """Write ``model.onnx``, and ``converted.bin`` for constants that are not in the source as they are needed.

    ``weights.bin`` is the file of the source that the others are in, ``weights_2.bin`` and so on if there are several.

    Raises:
        ConfigError: a value of ``constants`` does not fit its input, or one of ``begin`` or ``cut`` is not there.
        SourceError: the source has no such file.
        ModelError: the model is damaged, unsafe, quantized already, or not one that can be built.
    """
    params = Params.from_json(request.params)
    file = params.file
    source = request.inputs["fetch"].folder / file
    if file not in request.inputs["fetch"].files:
        raise SourceError(
            f"the source has no file {file!r}",
            why=f"it has {', '.join(sorted(request.inputs['fetch'].files)) or 'none'}",
            remedy="correct 'file' of this component in the config",
        )
    if file.lower().endswith(".gguf"):
        return ingest_language(request, file, gguf_source)
    if params.speech is not None:
        return ingest_whisper(request, file, params.speech)
    if is_safetensors(file):
        return ingest_language(request, file, safetensors_source)
    model = parse_lean(source)
    check_functions(model)
    model = inline_functions(model)
    tighten(model)
    begin = _begin(model, params)
    gone = take_part(model, params.begin or (), params.cut) if params.cut or begin else ()
    given = give_constants(model, params.constants)
    check_strings(model)
    fixed = {**given, **fix_empty_inputs(model)}
    check_model(model, file)
    model = lift_opset(model)
    if quantized := write_in_floats(model):
        print(f"warning: {file} is quantized: {quantized} operators are taken as floats, and quantized anew for HTP")
    model, constants = normalize(model, source.parent)
    widen(model)
    graph = model.graph
    with BlobWriter(request.out / CONVERTED) as blob:
        weights = SourceWeights(request.inputs["fetch"].folder, source.parent, blob)
        _place_constants(graph, constants, weights, source.parent)
    free_reserved_names(graph)
    save_graph(model, request.out / MODEL)
    print(f"{file}: {len(graph.node)} nodes, {len(graph.initializer)} initializers")
    known = signature(model)
    facts = Facts(
        inputs=known.inputs,
        outputs=known.outputs,
        constants=fixed,
        opset=Opsets.of(model).versions.get(""),
        nodes=len(graph.node),
        axes={axis: tuple(inputs) for axis, inputs in model_axes(model).items()},
        gone=gone or None,
        begin=begin,
        layers=any(node.op_type == "LSTM" for node in all_nodes(graph)) or None,
        tables=tables(model) or None,
    )
    reused = {name: ("fetch", of) for name, of in weights.kept.items()}
    return StageResult(facts.to_json(), reused)


def _begin(model: ModelProto, params: Params) -> Begin | None:
    """Where the component begins, with the constants of the whole file's inputs; None for one that begins with it."""
    if not params.begin:
        return None
    inputs = ModelProto(graph=GraphProto(input=model.graph.input))
    return Begin(params.file, params.begin, give_constants(inputs, params.constants))


def _place_constants(graph: GraphProto, constants: Constants, weights: SourceWeights, folder: Path) -> None:
    """Make the constants that the graph reads its initializers, in files; small ones of subgraphs go into the graph.

    `folder` is that of the source's file, from which tensors of subgraphs are read.
    """
    inner = list(all_tensors(graph))
    read = {name for node in graph.node for name in reads(node)} | {value.name for value in graph.output}
    for name in constants.types:
        if name in read:
            came = constants.stored(name)
            kept = weights.kept_tensor(came) if came is not None else None
            graph.initializer.append(kept or weights.written_tensor(name, constants.value(name)))
    inside = 0
    for tensor in inner:
        # onnxruntime refuses a subgraph's tensors in a file of several names, as a step's inputs are.
        inside += byte_size(tensor)
        if inside <= _MOST_INSIDE:
            tensor.CopyFrom(weights.inline_tensor(tensor.name, tensor_array(tensor, folder)))
            continue
        kept = weights.kept_tensor(tensor)
        tensor.CopyFrom(kept or weights.written_tensor(tensor.name, tensor_array(tensor, folder)))
