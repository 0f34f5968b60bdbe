"""Many small models as one: they are compiled and emulated together, since starting QNN costs more than any of them.

Of a batch that fails, the model that QNN names is set apart, and those of the same operators go on by themselves, in
two halves, since most of them may fail as well. Where it names none, the batch is cut in halves until the model that
fails stands alone.
"""

from __future__ import annotations

import re
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
_NAMED = re.compile(r"\bNode '(n\d{4}/)")
"""How onnxruntime names a node that QNN asked for and did not take."""


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
    if not models:
        return []
    try:
        return _together(models, feeds, work, target)
    except PipelineError as error:
        refused = OnChip(refused=f"{error.what}: {error.why}")
    if len(models) == 1:
        return [refused]
    named = _named(refused, len(models))
    if named is None:
        parts = [[*range(len(models) // 2)], [*range(len(models) // 2, len(models))]]
    else:
        alike = [at for at, model in enumerate(models) if at != named and _ops(model) == _ops(models[named])]
        others = [at for at in range(len(models)) if at != named and at not in alike]
        parts = [alike[: len(alike) // 2], alike[len(alike) // 2 :], others]
    found = {} if named is None else {named: refused}
    for part in parts:
        outcomes = run_batch([models[at] for at in part], [feeds[at] for at in part], work, target)
        found |= dict(zip(part, outcomes, strict=True))
    return [found[at] for at in range(len(models))]


def _named(refused: OnChip, count: int) -> int | None:
    """The place of the model that a refusal names."""
    match = _NAMED.search(refused.refused)
    return next((at for at in range(count) if match and match[1] == _prefix(at)), None)


def _ops(model: ModelProto) -> set[str]:
    return {node.op_type for node in model.graph.node}


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
