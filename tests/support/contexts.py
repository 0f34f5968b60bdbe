"""Contexts of tiny models, compiled by the context stage in a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from onnx import ModelProto

from pipeline.contracts.target import HtpTarget
from pipeline.graph.files.model_file import load_graph, save_graph
from pipeline.model import PARTS, Json, StageInput, StageRequest
from pipeline.stages import context as stage
from tests.support.fresh import fresh

X_ELITE = HtpTarget(60, 73, 8)


def request(model: Path, out: Path, target: HtpTarget = X_ELITE) -> StageRequest:
    out.mkdir(parents=True, exist_ok=True)
    params: dict[str, Json] = {
        "component": "encoder",
        "buckets": {"8": {"sequence": 8}},
        "form": "separate",
        "targets": [asdict(target)],
    }
    return StageRequest("context:tiny", params, {"model/8": StageInput(model.parent, {}, {})}, {}, out)


def build(model: Path, out: Path, target: HtpTarget = X_ELITE) -> Mapping[str, Json]:
    """The facts of the context."""
    return part(fresh(stage.run, request(model, out, target)).facts, "8")


def part(facts: Mapping[str, Json], bucket: str) -> Mapping[str, Json]:
    """What a context step says of one bucket."""
    parts: Any = facts[PARTS]
    found: Mapping[str, Json] = parts[bucket]["facts"]
    return found


def edit(path: Path, change: Callable[[ModelProto], None]) -> None:
    """Change a model file in place."""
    model = load_graph(path)
    change(model)
    save_graph(model, path)
