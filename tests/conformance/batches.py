"""Many small models as one: they are compiled and emulated together, since starting QNN costs more than any of them.

A batch whose compile or run fails is cut in halves until the model that fails stands alone.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from onnx import ModelProto, NodeProto

from pipeline.contracts.target import HtpTarget
from pipeline.errors import PipelineError
from pipeline.graph.files.model_file import save_graph
from pipeline.qnn.child import compile_apart, run_apart

Arrays = Mapping[str, NDArray[Any]]

X_ELITE = HtpTarget(60, 73, 8)
_NAME = "batch"


@dataclass(frozen=True)
class OnChip:
    """What became of one model of a batch.

    `outputs` are in graph order, none if it was refused; `refused` is QNN's reason; `on_cpu` names the operators that
    QNN left to the CPU.
    """

    outputs: tuple[NDArray[Any], ...] = ()
    refused: str = ""
    on_cpu: tuple[str, ...] = ()


def run_batch(
    models: Sequence[ModelProto], feeds: Sequence[Arrays], work: Path, target: HtpTarget = X_ELITE
) -> list[OnChip]:
    """Compile and emulate these models, one feed each; `work` is a folder for what is made meanwhile.

    All weights must be inside the models, and their operator sets be the same.
    """
    try:
        return _together(models, feeds, work, target)
    except PipelineError as error:
        if len(models) == 1:
            return [OnChip(refused=f"{error.what}: {error.why}")]
    middle = len(models) // 2
    return run_batch(models[:middle], feeds[:middle], work, target) + run_batch(
        models[middle:], feeds[middle:], work, target
    )


def _together(models: Sequence[ModelProto], feeds: Sequence[Arrays], work: Path, target: HtpTarget) -> list[OnChip]:
    work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=work) as folder:
        out, arrays = Path(folder) / "out", Path(folder) / "arrays"
        out.mkdir()
        arrays.mkdir()
        save_graph(merged(models), Path(folder) / "model.onnx")
        made = compile_apart(Path(folder) / "model.onnx", _NAME, target, out)
        feed = {
            f"{_prefix(number)}{name}": array for number, given in enumerate(feeds) for name, array in given.items()
        }
        results = run_apart(out, made.context_model, target, [feed], arrays)[0]
    on_cpu = [(node.name, node.op) for node in made.fallbacks]
    outcomes, position = [], 0
    for number, model in enumerate(models):
        count = len(model.graph.output)
        left = sorted({op for name, op in on_cpu if name.startswith(_prefix(number))})
        outcomes.append(OnChip(tuple(results[position : position + count]), on_cpu=tuple(left)))
        position += count
    return outcomes


def merged(models: Sequence[ModelProto]) -> ModelProto:
    """One model of all these; the names of the n-th begin with its number. Graphs inside of nodes are not taken."""
    whole = ModelProto()
    whole.ir_version = max(model.ir_version for model in models)
    whole.opset_import.extend(models[0].opset_import)
    whole.graph.name = _NAME
    for number, model in enumerate(models):
        graph, prefix = model.graph, _prefix(number)
        for field in ("input", "output", "value_info", "initializer"):
            for value in getattr(graph, field):
                copy = getattr(whole.graph, field).add()
                copy.CopyFrom(value)
                copy.name = prefix + value.name
        whole.graph.node.extend(_renamed(node, prefix, at) for at, node in enumerate(graph.node))
    return whole


def opsets(model: ModelProto) -> tuple[tuple[str, int], ...]:
    """The operator sets of a model, in an order; models of a batch have the same."""
    return tuple(sorted((entry.domain, entry.version) for entry in model.opset_import))


def _renamed(node: NodeProto, prefix: str, at: int) -> NodeProto:
    copy = NodeProto()
    copy.CopyFrom(node)
    copy.name = f"{prefix}{node.name or f'{node.op_type}_{at}'}"
    for field in (copy.input, copy.output):
        for position, name in enumerate(field):
            if name:
                field[position] = prefix + name
    return copy


def _prefix(number: int) -> str:
    return f"n{number:04d}/"
