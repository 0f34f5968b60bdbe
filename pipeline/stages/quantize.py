"""quantize: make the QDQ model of every bucket from the float models and the component's ranges.

Inputs: ``rewrite/<bucket>`` for every bucket, ``calibrate``, ``correlate`` for a scheme that looks at data, and
``precision`` where that finds the scheme. Output:
``<component>_<bucket>.onnx``; ``<component>_weights.bin`` with the quantized weights, once for all buckets;
``<component>_<bucket>_constants.bin`` with the constants of a bucket alone, if any is large; ``embedding.bin`` where
the table of embeddings stays on the host.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from pathlib import Path

from onnx import ModelProto, TensorProto

from pipeline.contracts.language import Edge
from pipeline.contracts.quantize import FLOAT16, ConstantCount, Facts, Params, Part, PartFacts
from pipeline.contracts.scheme import FP16, Rule, Scheme
from pipeline.graph.files.blob_writer import BlobWriter
from pipeline.graph.files.model_file import (
    CONSTANTS,
    MODEL,
    REWRITTEN,
    blob_names,
    byte_size,
    external_range,
    is_external,
    load_graph,
    save_graph,
    signature,
    tensor_dtype,
)
from pipeline.graph.ir.index import FLOATS, GraphIndex
from pipeline.graph.ir.tensor_chunks import Pieces
from pipeline.graph.language.host_table import DTYPE, take_out, write_table
from pipeline.graph.language.names import EMBEDDED, TABLE
from pipeline.graph.quantization.bounds.activation_outliers import with_massive
from pipeline.graph.quantization.calibration.ranges import Range, Ranges, read_integers, read_ranges
from pipeline.graph.quantization.forecast.htp_errors import forecast
from pipeline.graph.quantization.passes import write_out_layers
from pipeline.graph.quantization.passes.residual_streams import loud_streams
from pipeline.graph.quantization.qdq.qdq_model import Q_OPS
from pipeline.graph.quantization.qdq.states import check_tied, groups, integer_edges, tied
from pipeline.graph.quantization.quantizer import computes_in_float, float_nodes, quantize
from pipeline.graph.quantization.weights.block_minima import with_middles
from pipeline.graph.quantization.weights.constant_store import InBlobs, SharedConstants
from pipeline.graph.quantization.weights.correlations import Correlations
from pipeline.graph.quantization.weights.weight_encodings import rounded_to
from pipeline.model import StageRequest, StageResult
from pipeline.progress import within


def run(request: StageRequest) -> StageResult:
    """Quantize every bucket.

    Raises:
        QuantizationError: a value has no range, a constant is not finite, or a rule of the scheme can't be followed.
    """
    params = Params.from_json(request.params)
    assert params.scheme is not None, "what a search found was put in"
    scheme = params.scheme
    ranges = read_ranges(request.inputs["calibrate"].folder / "ranges.json")
    given = request.inputs.get("correlate")
    correlations = Correlations(given.folder) if given is not None else None
    # Named so that the QDQ models of all components and buckets can lie in one folder.
    with BlobWriter(request.out / f"{params.component}_weights.bin") as blob:
        shared = SharedConstants(blob)
        parts: dict[str, Part] = {}
        for bucket in params.buckets:
            with within(f"bucket {bucket}"):
                name = f"{params.component}_{bucket}"
                on_host = bool(params.on_host)
                parts[bucket] = _quantized(request, name, bucket, ranges, scheme, shared, correlations, on_host=on_host)
    unchanged = scheme.name == FP16 and all(
        _nodes(request.inputs[f"rewrite/{bucket}"].folder / MODEL) == _nodes(request.out / part.files[MODEL])
        for bucket, part in parts.items()
    )
    return StageResult(Facts(scheme.name, parts, unchanged or None).to_json())


def _quantized(
    request: StageRequest,
    name: str,
    bucket: str,
    ranges: Ranges,
    scheme: Scheme,
    shared: SharedConstants,
    correlations: Correlations | None,
    *,
    on_host: bool,
) -> Part:
    """Write the QDQ model of one bucket under a name. Returns its part of the step's output.

    `on_host`: the table of embeddings becomes a file of its own, the same for all buckets.
    """
    rewritten = request.inputs[f"rewrite/{bucket}"]
    model = load_graph(rewritten.folder / MODEL)
    own_names = {tensor.name for tensor in model.graph.initializer if _is_of_one_bucket(tensor, ranges)}
    digests = {file: entry.sha256 for file, entry in rewritten.files.items()}
    with BlobWriter(request.out / f"{name}_constants.bin") as own:
        store = InBlobs(shared, own, own_names, digests)
        states: list[tuple[str, ...]] = []
        rows = None
        if on_host:
            index = GraphIndex(model, rewritten.folder)
            rows = index.pieces(take_out(index))
            ranges = Ranges({**ranges, EMBEDDED: Range.of_pieces(rows)}, ranges.chosen)
            scheme = scheme.with_rules([Rule(tensors=(EMBEDDED,), activations=DTYPE)])
        if scheme.states:
            index = GraphIndex(model, rewritten.folder)
            states = groups(index)
            ranges, scheme = tied(index, ranges, with_massive(index, ranges, with_middles(index, scheme)))
        loud = [*loud_streams(GraphIndex(model, rewritten.folder), ranges, scheme)]
        quantized = quantize(model, rewritten.folder, ranges, scheme, store, correlations)
        model = quantized.model
        if states:
            check_tied(GraphIndex(model, rewritten.folder), states)
    shared.blob.flush()  # biases and the forecast's scales are read of it
    written = write_out_layers.apply(model, request.out, is_wanted=computes_in_float)
    index = GraphIndex(model, request.out)
    left = float_nodes(index)
    integers = read_integers(request.inputs["calibrate"].folder)
    told = [*loud, *forecast(index, quantized.ranges, integers)]
    edges = integer_edges(model) if scheme.states else {}
    save_graph(model, request.out / f"{name}.onnx")
    constants_by_type = _constants(model)
    stored = ", ".join(f"{count.tensors} in {kind}" for kind, count in constants_by_type.items())
    print(f"{bucket}: {scheme.name}, {len(left)} nodes left in float; constants: {stored or 'none'}")
    if written:
        print(f"{bucket}: {written} layers in float are written out, place by place")
    nodes = sum(node.op_type not in Q_OPS for node in model.graph.node)
    for each in told:
        print(f"{bucket}: {each.line()}")
    known = signature(model)
    facts = PartFacts(
        inputs=known.inputs,
        outputs=known.outputs,
        scheme=scheme.name,
        nodes=nodes,
        float_nodes=tuple(left),
        constants=constants_by_type,
        forecasts=tuple(told),
        edges=edges,
    )
    files = sorted(blob_names(model))
    if rows is not None:
        if not (request.out / TABLE).exists():
            write_table(_as_stored(rows, edges[EMBEDDED]), request.out)
        files.append(TABLE)
    return Part({MODEL: f"{name}.onnx", **{file: file for file in files}}, facts)


def _as_stored(numbers: Pieces, edge: Edge) -> Pieces:
    """Floats as integers, in the encoding `edge` of a graph's input or output."""
    stored = rounded_to(numbers, edge.dtype, edge.scale, edge.zero_point).values
    assert isinstance(stored, Pieces)
    return stored


def _nodes(file: Path) -> set[bytes]:
    """The nodes of a model, in no order: quantize sorts them."""
    return {node.SerializeToString() for node in load_graph(file).graph.node}


def _is_of_one_bucket(tensor: TensorProto, ranges: Mapping[str, Range]) -> bool:
    """Whether a constant may differ between buckets. Floats that differ have a range."""
    location = external_range(tensor).location if is_external(tensor) else ""
    is_rest = location == REWRITTEN and tensor.data_type not in FLOATS
    return tensor.name in ranges or location == CONSTANTS or is_rest


def _constants(model: ModelProto) -> dict[str, ConstantCount]:
    """How many constants each type has, and their bytes; floats count 16 bits, as on HTP.

    Scales and zero points don't count.
    """
    read = {node.input[0] for node in model.graph.node if node.op_type == "DequantizeLinear"}
    in_float = {name for node in model.graph.node if node.op_type not in Q_OPS for name in node.input}
    found: dict[str, ConstantCount] = {}
    stored = [tensor for tensor in model.graph.initializer if tensor.name in read or tensor.name in in_float]
    for tensor in sorted(stored, key=lambda tensor: tensor_dtype(tensor).name):
        if tensor.name in read:
            kind, size = tensor_dtype(tensor).name, byte_size(tensor)
        elif tensor.data_type in FLOATS:
            kind, size = FLOAT16, 2 * prod(tensor.dims)
        else:
            continue
        count = found.get(kind, ConstantCount(0, 0))
        found[kind] = ConstantCount(count.tensors + 1, count.bytes + size)
    return found
