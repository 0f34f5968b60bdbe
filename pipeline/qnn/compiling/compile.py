"""Compiles static models into context models and their binaries, and believes only what it reads back.

A binary holds one bucket for one target (:func:`compile_context`), several buckets of one component for one target
with their weights once (:func:`compile_shared`), or one bucket for several targets (:func:`compile_flexible`). Equal
input gives equal bytes, on any path and in any folder; :mod:`pipeline.qnn.compiling.compiler` says how.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from pipeline.contracts.context import CompiledModel
from pipeline.contracts.target import HtpTarget
from pipeline.errors import PipelineError
from pipeline.graph.files.model_file import load_graph, save_graph
from pipeline.qnn.compiling.compiler import Source, claim_process, run_compiler, workshop
from pipeline.qnn.compiling.readback import check_pack, read_context
from pipeline.qnn.format.context_model import binary_names, rename_binary
from pipeline.qnn.format.flexible import in_record_order, without_timestamps


def compile_context(model: Path, name: str, target: HtpTarget, out: Path) -> CompiledModel:
    """Compile the model file `model` into `<name>_ctx.onnx` and `<name>_ctx_qnn.bin` in the folder `out`.

    `name` becomes part of the bytes. To be called once in a process.

    Raises:
        ModelError: the model has a dim that is not fixed, an operator that crashes the compiler, or only float
            operators where the target has none.
        QuantizationError: a scale of the model is no positive number.
        CompileError: the compiler failed, or what it wrote is not what was asked for.
    """
    source = Source(name, model, [target])
    claim_process(name)
    with workshop(out) as work:
        run_compiler(source, work)
        context = read_context(work, source.context_model, [target], source.model, source.trace(work))
        _hand_out(work, out, [context])
    return context


def compile_flexible(model: Path, name: str, targets: Sequence[HtpTarget], out: Path) -> CompiledModel:
    """Like :func:`compile_context` for several targets, which share the weights in one binary.

    Their order makes no difference.

    Raises:
        ModelError, QuantizationError, CompileError: as for :func:`compile_context`.
    """
    ordered = in_record_order(targets)
    source = Source(name, model, ordered)
    claim_process(name)
    with workshop(out) as work:
        run_compiler(source, work)
        for binary in binary_names(load_graph(work / source.context_model)):
            without_timestamps(work / binary)
        context = read_context(work, source.context_model, ordered, source.model, source.trace(work))
        _hand_out(work, out, [context])
    return context


def compile_shared(
    models: Mapping[str, Path], target: HtpTarget, out: Path, *, binary: str
) -> dict[str, CompiledModel]:
    """Compile each of `models` into `<name>_ctx.onnx`, all with the one context binary `binary`; by their names.

    Weights that are the same in several models, to the bit and in their encodings, are in the binary once. The order
    of `models` makes no difference. To be called once in a process.

    Raises:
        ModelError, QuantizationError, CompileError: as for :func:`compile_context`; `where` names the model.
    """
    sources = []
    for name in sorted(models):
        try:
            sources.append(Source(name, models[name], [target]))
        except PipelineError as error:
            where = f"{name}, {error.where}" if error.where else name
            raise error.but(where=where) from error
    claim_process(", ".join(sorted(models)))
    with workshop(out) as work:
        for source in sources:
            entries = {"ep.share_ep_contexts": "1"}
            if source is sources[-1]:
                entries["ep.stop_share_ep_contexts"] = "1"
            run_compiler(source, work, entries)
        _rename_binary(work, [source.context_model for source in sources], binary)
        check_pack(work, [source.context_model for source in sources])
        contexts = {
            source.name: read_context(work, source.context_model, [target], source.model, source.trace(work))
            for source in sources
        }
        _hand_out(work, out, list(contexts.values()))
    return contexts


def _rename_binary(folder: Path, context_models: Sequence[str], binary: str) -> None:
    """Give the binary that all of these context models refer to another name."""
    models = {name: load_graph(folder / name) for name in context_models}
    (written,) = {name for model in models.values() for name in binary_names(model)}
    os.replace(folder / written, folder / binary)
    for name, model in models.items():
        rename_binary(model, binary)
        save_graph(model, folder / name)


def _hand_out(work: Path, out: Path, contexts: Sequence[CompiledModel]) -> None:
    """Move finished contexts to where they were asked for, binaries before the models that refer to them."""
    for binary in dict.fromkeys(binary for context in contexts for binary in context.binaries):
        os.replace(work / binary, out / binary)
    for context in contexts:
        os.replace(work / context.context_model, out / context.context_model)
