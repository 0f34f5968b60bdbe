"""export: write files for other engines from the contexts of a component for a target, and read them back.

Inputs: ``context/<bucket>``, what was compiled for it; for DLCs ``model/<bucket>``, what it was compiled of.

    pte    <component>.pte               an ExecuTorch program in which each context is a method
    dlc    <component>_<bucket>.dlc      the graph before HTP's compiler, one for each bucket
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from onnx import ModelProto

from pipeline.contracts import context
from pipeline.contracts.export import EncodedTensor, ExportedGraph, Facts, Params
from pipeline.errors import CompileError
from pipeline.graph.files.model_file import MODEL, load_graph
from pipeline.model import StageInput, StageRequest, StageResult
from pipeline.qnn.child import compose_apart, write_dlc_apart
from pipeline.qnn.compiling.composed import check_composed, compare
from pipeline.qnn.format.context_binary import GraphInfo, read_binary
from pipeline.qnn.format.context_model import partition_name, partitions
from pipeline.qnn.format.graph_io import EdgeTensor
from pipeline.qnn.format.pte import ProgramBinary, write_program
from pipeline.qnn.format.pte_reading import check_program
from pipeline.store.digests import sha256_file


def run(request: StageRequest) -> StageResult:
    """Write the files, and believe only what can be read back.

    Raises:
        CompileError: a context is not one graph on the NPU, a program does not hold what was put into it, or HTP does
            not make the context of a DLC.
    """
    params = Params.from_json(request.params)
    exported = _program(request, params) if params.kind == "pte" else _dlcs(request, params)
    return StageResult(Facts(exported).to_json())


def _program(request: StageRequest, params: Params) -> dict[str, ExportedGraph]:
    binaries: dict[str, ProgramBinary] = {}
    graphs: dict[str, GraphInfo] = {}
    for bucket in params.buckets:
        binary, graphs[bucket] = _graph(request.inputs[f"context/{bucket}"])
        binaries.setdefault(sha256_file(binary.path), binary)
    file = f"{params.component}.{params.kind}"
    write_program(request.out / file, [*binaries.values()], params.target, params.performance_mode)
    check_program(request.out / file, [*binaries.values()])
    print(f"{file}: {len(graphs)} methods, {len(binaries)} binaries, {(request.out / file).stat().st_size} bytes")
    return {bucket: _exported(file, graph) for bucket, graph in graphs.items()}


def _dlcs(request: StageRequest, params: Params) -> dict[str, ExportedGraph]:
    exported = {}
    for bucket in params.buckets:
        binary, graph = _graph(request.inputs[f"context/{bucket}"])
        name = f"{params.component}_{bucket}"
        dlc, model = request.out / f"{name}.{params.kind}", request.inputs[f"model/{bucket}"].folder / MODEL
        # The emulator does not run a graph of a binary that several share.
        alone = len(binary.graphs) == 1
        with tempfile.TemporaryDirectory(prefix="dlc-", dir=request.out.parent) as folder:
            work = Path(folder)
            composed = compose_apart(dlc, write_dlc_apart(model, name, params.target, dlc, work), params.target, work)
            own = check_composed(composed, binary.path, graph, params.target)
            if alone:
                compare(composed, own, binary.path, graph, params.target, work)
        exported[bucket] = _exported(dlc.name, own, emulated=alone)
        told = "gives what the context gives" if alone else "not run, as the context is in a shared binary"
        print(f"{dlc.name}: {dlc.stat().st_size} bytes; composed for {params.target}, {told}")
    return exported


def _graph(given: StageInput) -> tuple[ProgramBinary, GraphInfo]:
    """The binary of a bucket and its graph in it."""
    made = context.PartFacts.from_json(given.facts)
    if made.fallbacks or made.partitions != 1:
        node = made.fallbacks[0] if made.fallbacks else None
        raise CompileError(
            "what other engines take is one graph, all of it on the NPU",
            where=made.context_model,
            why=f"{node.op} {node.name!r} runs on the CPU: {node.reason}" if node else f"{made.partitions} partitions",
            remedy="see what the message of the context says of it, or leave 'outputs' out",
        )
    path: Path = given.folder / made.binaries[0]
    model = load_graph(given.folder / made.context_model)
    _tell_left_out(model)
    (node,) = partitions(model)
    info = read_binary(path)
    (graph,) = [each for each in info.graphs if each.name == partition_name(node)]
    return ProgramBinary(path, info.graphs), graph


def _tell_left_out(model: ModelProto) -> None:
    """Warn of outputs that no graph computes: constants, and inputs that are passed on unchanged."""
    made = {name for node in model.graph.node for name in node.output}
    left = [value.name for value in model.graph.output if value.name not in made]
    if left:
        print(f"warning: outputs that the NPU does not compute are in the context model alone: {', '.join(left)}")


def _exported(file: str, graph: GraphInfo, *, emulated: bool | None = None) -> ExportedGraph:
    inputs, outputs = (tuple(map(_told, tensors)) for tensors in (graph.inputs, graph.outputs))
    return ExportedGraph(file=file, method=graph.name, inputs=inputs, outputs=outputs, emulated=emulated)


def _told(tensor: EdgeTensor) -> EncodedTensor:
    scale = tensor.encoding.scale if tensor.encoding else None
    zero_point = tensor.encoding.zero_point if tensor.encoding else None
    return EncodedTensor(tensor.name, tensor.dtype.name, tensor.shape, scale, zero_point)
