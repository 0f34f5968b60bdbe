"""Compiles a language model in parts, each with a context of its own, and joins them to one context model.

    <name>_ctx.onnx:  inputs -> EPContext (<component>_1_of_3) -> EPContext (_2_of_3) -> EPContext (_3_of_3) -> outputs

ONNX Runtime takes such a model: each EPContext node names a binary of its own. Every part is compiled in a process of
its own, so that no process holds more than the weights of one.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from onnx import ModelProto, NodeProto, helper

from pipeline.contracts.context import CompiledModel
from pipeline.contracts.cost import CostFacts
from pipeline.contracts.target import HtpTarget
from pipeline.errors import CompileError
from pipeline.graph.files.model_file import blob_names, load_graph, save_graph, signature
from pipeline.graph.language.parts import split
from pipeline.qnn.child import compile_apart, compile_pack_apart
from pipeline.qnn.format.context_model import partition_name, partitions
from pipeline.qnn.format.graph_names import of_part, rename_in_binary, rename_in_model


def compile_parts(
    models: Mapping[str, Path], cuts: Sequence[str], target: HtpTarget, out: Path, *, stem: str
) -> dict[str, CompiledModel]:
    """Compile each of `models`, cut at the same values, into `<name>_ctx.onnx`; by their names.

    All models share the binary of a part, `<stem>_<n>_of_<total>_qnn.bin`.

    Raises:
        ModelError, QuantizationError, CompileError: as for :func:`pipeline.qnn.compiling.compile.compile_shared`.
    """
    total = len(cuts) + 1
    wholes = {name: load_graph(path) for name, path in models.items()}
    made: dict[str, list[CompiledModel]] = {name: [] for name in models}
    nodes: dict[str, list[ModelProto]] = {name: [] for name in models}
    with tempfile.TemporaryDirectory(prefix="parts-", dir=out.parent, ignore_cleanup_errors=True) as scratch:
        for number in range(1, total + 1):
            work, suffix = Path(scratch) / str(number), f"{number}_of_{total}"
            given = _written(wholes, models, cuts, number, work / "in")
            (work / "out").mkdir()
            compiled = _compiled(given, target, work / "out", f"{stem}_{suffix}_qnn.bin")
            names: dict[str, str] = {}
            for name in models:
                own = compiled[f"{name}_{suffix}"]
                context_model = load_graph(work / "out" / own.context_model)
                graphs = [partition_name(node) for node in partitions(context_model)]
                renamed = {graph: of_part(graph, *_lengths(wholes[name]), number, total) for graph in graphs}
                rename_in_model(context_model, renamed)
                names |= renamed
                made[name].append(own)
                nodes[name].append(context_model)
            for binary in {binary for each in compiled.values() for binary in each.binaries}:
                os.replace(work / "out" / binary, out / binary)
                rename_in_binary(out / binary, names)
            print(f"part {number} of {total}: {', '.join(sorted(given))}", flush=True)
    found = {}
    for name, whole in wholes.items():
        joined = f"{name}_ctx.onnx"
        save_graph(_joined(whole, nodes[name], joined), out / joined)
        found[name] = _described(joined, whole, made[name], cuts)
    return found


def _written(
    wholes: Mapping[str, ModelProto], models: Mapping[str, Path], cuts: Sequence[str], number: int, folder: Path
) -> dict[str, Path]:
    """Write the models of a part, with the blobs that they read beside them."""
    written = {}
    for name, whole in wholes.items():
        place, full = folder / name, f"{name}_{number}_of_{len(cuts) + 1}"
        place.mkdir(parents=True)
        part = split(whole, cuts)[number - 1]
        for blob in blob_names(part):
            os.link(models[name].parent / blob, place / blob)
        save_graph(part, place / f"{full}.onnx")
        written[full] = place / f"{full}.onnx"
    return written


def _compiled(models: Mapping[str, Path], target: HtpTarget, out: Path, binary: str) -> dict[str, CompiledModel]:
    if len(models) > 1:
        return compile_pack_apart(models, target, out, binary=binary)
    name, path = next(iter(models.items()))
    made = compile_apart(path, name, target, out)
    return {name: made}


def _lengths(whole: ModelProto) -> tuple[int, int]:
    """The tokens that a run takes, and the positions that attention sees: the mask's last dims."""
    (mask,) = (value for value in whole.graph.input if value.name == "attention_mask")
    tokens, context = (dim.dim_value for dim in mask.type.tensor_type.shape.dim[-2:])
    return tokens, context


def _joined(whole: ModelProto, parts: Sequence[ModelProto], name: str) -> ModelProto:
    """One context model of those of the parts, with the inputs and outputs of the whole."""
    told = {entry.key: entry.value for entry in parts[0].metadata_props}
    made: list[NodeProto] = []
    for part in parts:
        if {entry.key: entry.value for entry in part.metadata_props} != told:
            raise CompileError(f"the parts of {name} are for different devices", remedy="report it with the model")
        for node in part.graph.node:
            copy = NodeProto.FromString(node.SerializeToString())
            copy.name = f"{node.name}_{len(made)}"  # nodes of two parts may have one name
            made.append(copy)
    initializers = {tensor.name: tensor for part in parts for tensor in part.graph.initializer}
    if Counter(name for node in made for name in node.output if name).most_common(1)[0][1] > 1:
        raise CompileError(f"two parts of {name} make a value of one name", remedy="report it with the model")
    edges = {value.name for value in (*whole.graph.input, *whole.graph.output)}
    # ONNX Runtime asks for the types of all that an EPContext node makes.
    between = {
        value.name: value
        for part in parts
        for value in (*part.graph.value_info, *part.graph.output)
        if value.name not in edges
    }
    graph = helper.make_graph(
        made,
        whole.graph.name,
        list(whole.graph.input),
        list(whole.graph.output),
        list(initializers.values()),
        value_info=list(between.values()),
    )
    opsets = {(entry.domain, entry.version): entry for part in parts for entry in part.opset_import}
    joined = helper.make_model(graph, opset_imports=list(opsets.values()), ir_version=parts[0].ir_version)
    for key, value in told.items():
        joined.metadata_props.add(key=key, value=value)
    return joined


def _described(
    context_model: str, whole: ModelProto, parts: Sequence[CompiledModel], cuts: Sequence[str]
) -> CompiledModel:
    """The facts of all parts together."""
    known = signature(whole)
    return replace(
        parts[0],
        context_model=context_model,
        binaries=tuple(binary for part in parts for binary in part.binaries),
        inputs=known.inputs,
        outputs=known.outputs,
        partitions=sum(part.partitions for part in parts),
        cpu_nodes=tuple(node for part in parts for node in part.cpu_nodes),
        targets=tuple(
            replace(each[0], vtcm_mb=max(filter(None, (target.vtcm_mb for target in each)), default=None))
            for each in zip(*(part.targets for part in parts), strict=True)
        ),
        cost=_sum([part.cost for part in parts]),
        cuts=tuple(cuts),
    )


def _sum(costs: Sequence[CostFacts]) -> CostFacts:
    """What all parts take in one run."""
    macs: Counter[str] = Counter()
    operators: dict[str, Counter[str]] = {}
    for cost in costs:
        macs.update(cost.macs)
        for kind, own in cost.operators.items():
            operators.setdefault(kind, Counter()).update(own)
    reads = [cost.dram_read_bytes for cost in costs if cost.dram_read_bytes is not None]
    writes = [cost.dram_write_bytes for cost in costs if cost.dram_write_bytes is not None]
    return CostFacts(
        macs=dict(sorted(macs.items())),
        elements=sum(cost.elements for cost in costs),
        weight_bytes=sum(cost.weight_bytes for cost in costs),
        activation_bytes=sum(cost.activation_bytes for cost in costs),
        edge_bytes=sum(cost.edge_bytes for cost in costs),
        operators={kind: dict(sorted(operators[kind].items())) for kind in sorted(operators)},
        vtcm_bytes=max(cost.vtcm_bytes for cost in costs),
        spill_bytes=max(cost.spill_bytes for cost in costs),
        dram_read_bytes=sum(reads) if len(reads) == len(costs) else None,
        dram_write_bytes=sum(writes) if len(writes) == len(costs) else None,
    )
