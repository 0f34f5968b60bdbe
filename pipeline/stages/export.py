"""export: put the contexts of a component for a target into one file of another engine, and read that back.

Inputs: ``context/<bucket>``, what was compiled for it. Output: ``<component>.pte``, an ExecuTorch program in which each
bucket is a method.
"""

from __future__ import annotations

from pathlib import Path

from pipeline.contracts import context
from pipeline.contracts.export import EncodedTensor, ExportedGraph, Facts, Params
from pipeline.errors import CompileError
from pipeline.graph.files.model_file import load_graph
from pipeline.model import StageInput, StageRequest, StageResult
from pipeline.qnn.format.context_binary import GraphInfo, read_binary
from pipeline.qnn.format.context_model import partition_name, partitions
from pipeline.qnn.format.graph_io import EdgeTensor
from pipeline.qnn.format.pte import ProgramBinary, write_program
from pipeline.qnn.format.pte_reading import check_program
from pipeline.store.digests import sha256_file


def run(request: StageRequest) -> StageResult:
    """Write the program, and believe only what can be read back.

    Raises:
        CompileError: a context is not one graph on the NPU, or the program does not hold what was put into it.
    """
    params = Params.from_json(request.params)
    binaries: dict[str, ProgramBinary] = {}
    graphs: dict[str, GraphInfo] = {}
    for bucket in params.buckets:
        binary, graphs[bucket] = _graph(request.inputs[f"context/{bucket}"])
        binaries.setdefault(sha256_file(binary.path), binary)
    file = f"{params.component}.{params.kind}"
    write_program(request.out / file, [*binaries.values()], params.target, params.performance_mode)
    check_program(request.out / file, [*binaries.values()])
    print(f"{file}: {len(graphs)} methods, {len(binaries)} binaries, {(request.out / file).stat().st_size} bytes")
    exported = {bucket: _exported(file, graph) for bucket, graph in graphs.items()}
    return StageResult(Facts(exported).to_json())


def _graph(given: StageInput) -> tuple[ProgramBinary, GraphInfo]:
    """The binary of a bucket and its graph in it."""
    made = context.PartFacts.from_json(given.facts)
    if made.fallbacks or made.partitions != 1:
        node = made.fallbacks[0] if made.fallbacks else None
        raise CompileError(
            "a program of another engine holds one graph, all of it on the NPU",
            where=made.context_model,
            why=f"{node.op} {node.name!r} runs on the CPU: {node.reason}" if node else f"{made.partitions} partitions",
            remedy="see what the message of the context says of it, or leave 'outputs' out",
        )
    path: Path = given.folder / made.binaries[0]
    (node,) = partitions(load_graph(given.folder / made.context_model))
    info = read_binary(path)
    (graph,) = [each for each in info.graphs if each.name == partition_name(node)]
    return ProgramBinary(path, info.graphs), graph


def _exported(file: str, graph: GraphInfo) -> ExportedGraph:
    inputs, outputs = (tuple(map(_told, tensors)) for tensors in (graph.inputs, graph.outputs))
    return ExportedGraph(file=file, method=graph.name, inputs=inputs, outputs=outputs)


def _told(tensor: EdgeTensor) -> EncodedTensor:
    scale = tensor.encoding.scale if tensor.encoding else None
    zero_point = tensor.encoding.zero_point if tensor.encoding else None
    return EncodedTensor(tensor.name, tensor.dtype.name, tensor.shape, scale, zero_point)
