"""Opens what a compile wrote and holds it against what was asked for."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

from onnx import ModelProto, NodeProto

from pipeline.errors import CompileError
from pipeline.graph.model_file import load_graph, signature
from pipeline.model import Json
from pipeline.qnn.context_binary import HTP_BACKEND, BinaryInfo, read_binary
from pipeline.qnn.session import EP, bundled_sdk
from pipeline.qnn.target import HtpTarget

_COMPATIBILITY = f"ep_compatibility_info.{EP}"


@dataclass(frozen=True)
class CpuNode:
    """A node that QNN left to the CPU, and why, in QNN's words; the reason is empty where it gave none.

    `edge`: it converts an input or output of the graph from or to its encoding, which is meant to happen there.
    """

    name: str
    op: str
    reason: str
    edge: bool = False


@dataclass(frozen=True)
class OpTrace:
    """QNN's account of which nodes it did not take."""

    unsupported: tuple[CpuNode, ...] = ()

    def reason(self, node: NodeProto) -> str:
        """Why QNN left this node to the CPU."""
        return next((told.reason for told in self.unsupported if told.name and told.name == node.name), "")


@dataclass(frozen=True)
class Context:
    """A context model and its binaries as they are on disk, after all checks.

    `vtcm_mb` and the other figures of the target are the binary's own. `compatibility` is the string by which ONNX
    Runtime decides whether a device can load the context: `v2:<backend>:<SDK>:<API>:<arch>:<SoC>:<VTCM>:<driver>`.
    """

    context_model: str
    binaries: tuple[str, ...]
    inputs: Json
    outputs: Json
    partitions: int
    cpu_nodes: tuple[CpuNode, ...]
    soc_model: int
    htp_arch: int
    vtcm_mb: int
    sdk: str
    compatibility: str

    def facts(self) -> dict[str, Json]:
        """As the facts of a step."""
        facts: dict[str, Json] = json.loads(json.dumps(asdict(self)))
        return facts


def read_trace(folder: Path) -> OpTrace:
    """The trace that QNN wrote into `folder`; an empty one when there is none."""
    path = folder / "qnn_op_trace.json"
    if not path.is_file():
        return OpTrace()
    nodes = json.loads(path.read_text("utf-8")).get("unsupported_nodes", [])
    return OpTrace(tuple(CpuNode(node["node_name"], node["op_type"], node["reason"].strip()) for node in nodes))


def partitions(model: ModelProto) -> list[NodeProto]:
    """The EPContext nodes of a context model."""
    return [node for node in model.graph.node if node.op_type == "EPContext"]


def binary_names(model: ModelProto) -> tuple[str, ...]:
    """File names of the binaries that a context model refers to.

    One partition of a binary, its main one, names it; the others are found in it by their names.
    """
    return tuple(_attribute(node, "ep_cache_context") for node in partitions(model) if _is_main(node))


def read_context(folder: Path, context_model: str, target: HtpTarget, source: ModelProto, trace: OpTrace) -> Context:
    """Read back a context that was compiled from `source` for `target`.

    Raises:
        CompileError: it is not what was asked for, in any respect that can be seen from here.
    """
    model = load_graph(folder / context_model)
    nodes = partitions(model)
    if not nodes:
        _refuse(context_model, "it has no EPContext node: QNN took none of the model", "look at the step's log")
    binaries = {name: _open(folder, name, context_model) for name in binary_names(model)}
    for name, info in binaries.items():
        _check_target(name, info, target)
    _check_graphs(context_model, nodes, binaries)
    values = _checked_signature(context_model, model, source)
    compatibility = _check_compatibility(context_model, model, target)
    first = next(iter(binaries.values()))
    return Context(
        context_model=context_model,
        binaries=tuple(binaries),
        inputs=values["inputs"],
        outputs=values["outputs"],
        partitions=len(nodes),
        cpu_nodes=tuple(
            CpuNode(node.name, node.op_type, trace.reason(node), _is_edge(node, model))
            for node in model.graph.node
            if node.op_type != "EPContext"
        ),
        soc_model=first.soc_model,
        htp_arch=first.htp_arch,
        vtcm_mb=max(graph.vtcm_mb for info in binaries.values() for graph in info.graphs),
        sdk=bundled_sdk(),
        compatibility=compatibility,
    )


def _open(folder: Path, name: str, context_model: str) -> BinaryInfo:
    if name != Path(name).name or not (folder / name).is_file():
        _refuse(context_model, f"it refers to {name!r}, which is not beside it", "don't rename a context binary")
    return read_binary(folder / name)


def _check_target(name: str, info: BinaryInfo, target: HtpTarget) -> None:
    """The binary's own record, not the options that ONNX Runtime repeats in the context model."""
    if (info.soc_model, info.htp_arch) != (target.soc_model, target.htp_arch):
        _refuse(
            name,
            f"it is for SoC {info.soc_model} (HTP v{info.htp_arch}), {target} was asked for",
            "check the SoC's id and architecture in the catalogue; an ARM64 host with an NPU compiles for its own SoC "
            "only, whatever is asked",
        )
    if info.backend != HTP_BACKEND:
        _refuse(name, f"it is for QNN backend {info.backend}, not HTP ({HTP_BACKEND})", "reinstall onnxruntime-qnn")
    if not info.sdk.startswith(f"v{bundled_sdk()}."):
        _refuse(name, f"it was made by QNN SDK {info.sdk}, not by the installed {bundled_sdk()}", "run 'uv sync'")
    for graph in info.graphs:
        if target.vtcm_mb not in (None, graph.vtcm_mb):
            _refuse(name, f"it is for {graph.vtcm_mb} MB of VTCM, {target.vtcm_mb} were asked for", "set vtcm_mb")


def _check_graphs(context_model: str, nodes: Iterable[NodeProto], binaries: Mapping[str, BinaryInfo]) -> None:
    graphs = {graph.name for info in binaries.values() for graph in info.graphs}
    for node in nodes:
        name = _attribute(node, "partition_name")
        if name not in graphs:
            _refuse(context_model, f"its partition {name!r} is not in {' or '.join(binaries)}", "build it again")


def _checked_signature(context_model: str, model: ModelProto, source: ModelProto) -> Mapping[str, Json]:
    have, want = signature(model), signature(source)
    for kind in ("inputs", "outputs"):
        if have[kind] != want[kind]:
            _refuse(
                context_model,
                f"its {kind} are {json.dumps(have[kind])}, the model's are {json.dumps(want[kind])}",
                "report this with the model: the compiler changed its interface",
            )
    return have


def _check_compatibility(context_model: str, model: ModelProto, target: HtpTarget) -> str:
    compatibility = next((entry.value for entry in model.metadata_props if entry.key == _COMPATIBILITY), "")
    want = f"v2:{HTP_BACKEND}:{bundled_sdk()}:*:{target.htp_arch}:{target.soc_model}:{target.vtcm_mb or 0}:*"
    given, wanted = compatibility.split(":"), want.split(":")
    if len(given) != len(wanted) or any(b not in ("*", a) for a, b in zip(given, wanted, strict=True)):
        _refuse(
            context_model,
            f"its compatibility string is {compatibility!r}, not {want!r}",
            "run 'uv sync'; if that gives the same, onnxruntime-qnn has changed the string's form",
        )
    return compatibility


def _is_edge(node: NodeProto, model: ModelProto) -> bool:
    if node.op_type == "QuantizeLinear":
        return any(value.name == node.input[0] for value in model.graph.input)
    return node.op_type == "DequantizeLinear" and any(value.name == node.output[0] for value in model.graph.output)


def _is_main(node: NodeProto) -> bool:
    return any(entry.name == "main_context" and entry.i == 1 for entry in node.attribute)


def _attribute(node: NodeProto, name: str) -> str:
    return next((str(entry.s.decode()) for entry in node.attribute if entry.name == name), "")


def _refuse(file: str, why: str, remedy: str) -> NoReturn:
    raise CompileError("the compiled context is not what was asked for", where=file, why=why, remedy=remedy)
