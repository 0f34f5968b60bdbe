"""Opens what a compile wrote and checks it against what was asked for."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from onnx import ModelProto, NodeProto

from pipeline.contracts.context import CompiledModel, CpuNode
from pipeline.contracts.cost import CostFacts
from pipeline.contracts.target import HtpTarget
from pipeline.contracts.values import Signature
from pipeline.errors import CompileError
from pipeline.graph.files.model_file import load_graph, signature
from pipeline.graph.quantization.compiled_cost import count, origins
from pipeline.qnn.format.compiled_work import work_digest
from pipeline.qnn.format.context_binary import HTP_BACKEND, BinaryInfo, read_binaries
from pipeline.qnn.format.context_edges import contradictions, is_edge
from pipeline.qnn.format.context_model import binary_names, compatibility, is_plain, partition_name, partitions
from pipeline.qnn.format.schematic import read_traffic, schematic_name
from pipeline.qnn.provider_options import OPTIMIZATION
from pipeline.qnn.session import bundled_sdk

_CONVERSIONS = frozenset({"QuantizeLinear", "DequantizeLinear"})
_COPY = "/duplicated"
"""What ONNX Runtime appends to the names of copies it makes of a node."""


@dataclass(frozen=True)
class OpTrace:
    """QNN's account of which nodes it did not take, and of its own operators: kind and nodes that each came from."""

    unsupported: tuple[CpuNode, ...] = ()
    operators: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def reason(self, node: NodeProto) -> str:
        """Why QNN left this node to the CPU."""
        return next((told.reason for told in self.unsupported if told.name and told.name == node.name), "")


def read_trace(folder: Path) -> OpTrace:
    """The trace that QNN wrote into `folder`; an empty one when there is none."""
    path = folder / "qnn_op_trace.json"
    if not path.is_file():
        return OpTrace()
    content = json.loads(path.read_text("utf-8"))
    nodes = content.get("unsupported_nodes", [])
    mapped = {
        (graph.get("graph_name", ""), each.get("dst_name", "")): (
            str(each.get("dst_qnn_op_type", "")),
            tuple(str(source.get("name", "")).partition(_COPY)[0] for source in each.get("sources", [])),
        )
        for graph in content.get("subgraph_traces", [])
        for each in graph.get("op_mappings", [])
    }
    return OpTrace(
        tuple(CpuNode(node["node_name"], node["op_type"], node["reason"].strip()) for node in nodes),
        tuple(mapped.values()),
    )


def read_context(
    folder: Path, context_model: str, targets: Sequence[HtpTarget], source: ModelProto, trace: OpTrace
) -> CompiledModel:
    """Read back a context that was compiled from `source` for `targets`.

    Raises:
        CompileError: it is not what was asked for, in any respect that can be seen from here.
    """
    model = load_graph(folder / context_model)
    nodes = partitions(model)
    if not nodes:
        raise _refused(context_model, "it has no EPContext node: QNN took none of the model", "look at the step's log")
    binaries = {name: _open(folder, name, context_model) for name in binary_names(model)}
    for name, infos in binaries.items():
        _check_targets(name, infos, targets)
        for info in infos:
            _check_graphs(context_model, nodes, name, info)
            for told in contradictions(model, {graph.name: graph for graph in info.graphs}):
                raise _refused(context_model, f"it contradicts {name}: {told}", "report this with the model")
    values = _checked_signature(context_model, model, source)
    _check_compatibility(context_model, compatibility(model), targets)
    return CompiledModel(
        context_model=context_model,
        binaries=tuple(binaries),
        inputs=values.inputs,
        outputs=values.outputs,
        partitions=len(nodes),
        cpu_nodes=tuple(
            CpuNode(node.name, node.op_type, trace.reason(node), is_edge(node, model))
            for node in model.graph.node
            if node.op_type != "EPContext"
        ),
        targets=tuple(
            HtpTarget(target.soc_model, target.htp_arch, _vtcm_mb(target, binaries.values())) for target in targets
        ),
        sdk=bundled_sdk(),
        compatibility=compatibility(model),
        cost=_cost(folder, source, nodes, binaries.values(), trace),
        work=_work(folder, binaries) if len(targets) == 1 else None,
    )


def _work(folder: Path, binaries: Mapping[str, Sequence[BinaryInfo]]) -> str | None:
    """The digest of what a context with one binary computes."""
    if len(binaries) != 1:
        return None
    ((name, infos),) = binaries.items()
    return work_digest(folder / name, infos[0]) if len(infos) == 1 else None


def _cost(
    folder: Path,
    source: ModelProto,
    nodes: Sequence[NodeProto],
    binaries: Iterable[Sequence[BinaryInfo]],
    trace: OpTrace,
) -> CostFacts:
    """What the graph takes, and what the compiler says of it."""
    counted, ops = count(source), origins(source)
    kinds: dict[str, Counter[str]] = {}
    for kind, names in trace.operators:
        made = {ops[name] for name in names if name in ops}
        names_made = sorted(made - _CONVERSIONS) or sorted(made)
        kinds.setdefault(kind, Counter()).update([" + ".join(names_made) or "added by the compiler"])
    own = {partition_name(node) for node in nodes}
    traffic = [read_traffic(folder / schematic_name(name)) for name in own]
    known = [each for each in traffic if each is not None]
    told = len(known) == len(own)
    graphs = [graph for infos in binaries for info in infos for graph in info.graphs if graph.name in own]
    return CostFacts(
        macs=dict(sorted(counted.macs.items())),
        elements=counted.elements,
        weight_bytes=counted.weight_bytes,
        activation_bytes=counted.activation_bytes,
        edge_bytes=counted.edge_bytes,
        operators={kind: dict(sorted(kinds[kind].items())) for kind in sorted(kinds)},
        vtcm_bytes=max((graph.vtcm_mb << 20 for graph in graphs), default=0),
        spill_bytes=max((graph.spill_fill_bytes for graph in graphs), default=0),
        dram_read_bytes=sum(each.read_bytes for each in known) if told else None,
        dram_write_bytes=sum(each.write_bytes for each in known) if told else None,
    )


def check_pack(folder: Path, context_models: Sequence[str]) -> None:
    """Check that a binary which several context models share has their graphs and no other.

    Raises:
        CompileError: a graph is missing, is not referred to, or is referred to twice.
    """
    models = [load_graph(folder / name) for name in context_models]
    names = sorted(partition_name(node) for model in models for node in partitions(model))
    for binary in {binary for model in models for binary in binary_names(model)}:
        for info in read_binaries(folder / binary):
            graphs = sorted(graph.name for graph in info.graphs)
            if graphs != names:
                raise _refused(
                    binary,
                    f"its graphs are {', '.join(graphs)}, those of {' and '.join(context_models)} {', '.join(names)}",
                    "report this with the model",
                )


def _open(folder: Path, name: str, context_model: str) -> tuple[BinaryInfo, ...]:
    if not is_plain(name) or not (folder / name).is_file():
        raise _refused(context_model, f"it refers to {name!r}, which is not beside it", "don't rename a context binary")
    return read_binaries(folder / name)


def _vtcm_mb(target: HtpTarget, binaries: Iterable[Sequence[BinaryInfo]]) -> int:
    of_target = [info for infos in binaries for info in infos if info.soc_model == target.soc_model]
    return max(graph.vtcm_mb for info in of_target for graph in info.graphs)


def _check_targets(name: str, infos: Sequence[BinaryInfo], targets: Sequence[HtpTarget]) -> None:
    """Check the targets by the binary's own records: the context model only repeats the options of the compile."""
    have = [HtpTarget(info.soc_model, info.htp_arch) for info in infos]
    if sorted(map(_chip, have)) != sorted(map(_chip, targets)):
        raise _refused(
            name,
            f"it is for {' and '.join(map(str, have))}, {' and '.join(map(str, targets))} was asked for",
            "check the SoC's id and architecture in the catalogue; an ARM64 host with an NPU compiles for its own SoC "
            "only, whatever is asked",
        )
    asked = {target.soc_model: target for target in targets}
    for info in infos:
        _check_info(name, info, asked[info.soc_model])


def _chip(target: HtpTarget) -> tuple[int, int]:
    return target.soc_model, target.htp_arch


def _check_info(name: str, info: BinaryInfo, target: HtpTarget) -> None:
    if info.backend != HTP_BACKEND:
        raise _refused(
            name, f"it is for QNN backend {info.backend}, not HTP ({HTP_BACKEND})", "reinstall onnxruntime-qnn"
        )
    if not info.sdk.startswith(f"v{bundled_sdk()}."):
        raise _refused(
            name, f"it was made by QNN SDK {info.sdk}, not by the installed {bundled_sdk()}", "run 'uv sync'"
        )
    mode = dict(target.options or ()).get(OPTIMIZATION)
    for graph in info.graphs:
        if target.vtcm_mb not in (None, graph.vtcm_mb):
            raise _refused(
                name, f"it is for {graph.vtcm_mb} MB of VTCM, {target.vtcm_mb} were asked for", "set vtcm_mb"
            )
        if mode not in (None, str(graph.optimization_mode)):
            why = f"it was compiled with optimization {graph.optimization_mode}, {mode} was asked for"
            raise _refused(name, why, "set optimization")


def _check_graphs(context_model: str, nodes: Iterable[NodeProto], binary: str, info: BinaryInfo) -> None:
    graphs = {graph.name for graph in info.graphs}
    for node in nodes:
        name = partition_name(node)
        if name not in graphs:
            raise _refused(context_model, f"its partition {name!r} is not in {binary}", "build it again")


def _checked_signature(context_model: str, model: ModelProto, source: ModelProto) -> Signature:
    have, want = signature(model), signature(source)
    for kind, made, asked in (("inputs", have.inputs, want.inputs), ("outputs", have.outputs, want.outputs)):
        if made != asked:
            raise _refused(
                context_model,
                f"its {kind} are {', '.join(map(str, made))}, the model's are {', '.join(map(str, asked))}",
                "report this with the model: the compiler changed its interface",
            )
    return have


def _check_compatibility(context_model: str, given: str, targets: Sequence[HtpTarget]) -> None:
    archs, socs, vtcm_mb = (
        ",".join(str(getattr(target, field) or 0) for target in targets)
        for field in ("htp_arch", "soc_model", "vtcm_mb")
    )
    want = f"v2:{HTP_BACKEND}:{bundled_sdk()}:*:{archs}:{socs}:{vtcm_mb}:*"
    has, wanted = given.split(":"), want.split(":")
    if len(has) != len(wanted) or any(b not in ("*", a) for a, b in zip(has, wanted, strict=True)):
        raise _refused(
            context_model,
            f"its compatibility string is {given!r}, not {want!r}",
            "run 'uv sync'; if that gives the same, onnxruntime-qnn has changed the string's form",
        )


def _refused(file: str, why: str, remedy: str) -> CompileError:
    return CompileError("the compiled context is not what was asked for", where=file, why=why, remedy=remedy)
