"""Models on QNN's emulator of the chip: the real compiler, the real emulator, each in a process of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto

from pipeline.contracts.context import CompiledModel
from pipeline.contracts.target import HtpTarget
from pipeline.graph.cpu import load_session, run
from pipeline.graph.files.model_file import MODEL, load_graph
from pipeline.model import StageInput
from pipeline.qnn.compiling.compile import compile_context
from pipeline.qnn.running.emulate import run_context
from tests.support.fresh import fresh
from tests.support.stage_runs import Component

Arrays = Mapping[str, NDArray[Any]]

X_ELITE = HtpTarget(60, 73, 8)


@dataclass(frozen=True)
class OnChip:
    """What was compiled, and its outputs for each of the feeds."""

    context: CompiledModel
    outputs: list[dict[str, NDArray[Any]]]

    @property
    def cpu_ops(self) -> set[str]:
        """The operators that were left to the CPU, but for the conversions at the edges."""
        return {node.op for node in self.context.cpu_nodes} - {"QuantizeLinear", "DequantizeLinear"}


def on_chip(model: StageInput, feeds: Sequence[Arrays], out: Path, target: HtpTarget = X_ELITE) -> OnChip:
    """Compile the output of a rewrite or quantize step, and run it."""
    out.mkdir(parents=True)
    context = fresh(compile_context, model.folder / MODEL, "net", target, out)
    results = fresh(run_context, out, context.context_model, target, feeds)
    names = [value.name for value in load_graph(model.folder / MODEL).graph.output]
    return OnChip(context, [dict(zip(names, result, strict=True)) for result in results])


def on_cpu(model: StageInput, feeds: Sequence[Arrays]) -> list[dict[str, NDArray[Any]]]:
    """The outputs of the output of any step that leaves a model."""
    session = load_session(model.folder / MODEL)
    return [run(session, feed) for feed in feeds]


def with_rewrites(root: Path, model: ModelProto) -> Component:
    """A static model, rewritten."""
    return Component(root, model, {"all": {}})


def without_rewrites(root: Path, model: ModelProto) -> Component:
    """A static model as it came, with nothing rewritten."""
    component = Component(root, model, {"all": {}})
    component.rewrite["all"] = component.shape["all"]
    return component


def sqnr_db(truth: Sequence[Arrays], tested: Sequence[Arrays], name: str) -> float:
    """The SQNR of one output over all feeds, of the part that the truth has."""
    signal = noise = 0.0
    for expected, actual in zip(truth, tested, strict=True):
        valid = actual[name][tuple(slice(size) for size in expected[name].shape)]
        signal += float((expected[name].astype(np.float64) ** 2).sum())
        noise += float(((valid.astype(np.float64) - expected[name]) ** 2).sum())
    return float(10 * np.log10(signal / noise)) if noise else 300.0
