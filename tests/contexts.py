"""Contexts of tiny models, compiled by the context stage in a process of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from onnx import ModelProto

from pipeline.graph.model_file import load_graph, save_graph
from pipeline.model import Json, StageInput, StageRequest, StageResult
from pipeline.qnn.target import HtpTarget
from pipeline.stages import context as stage
from tests.fresh import fresh

X_ELITE = HtpTarget(60, 73, 8)


def request(model: Path, out: Path, target: HtpTarget = X_ELITE) -> StageRequest:
    out.mkdir(parents=True, exist_ok=True)
    params: dict[str, Json] = {
        "component": "encoder",
        "bucket": "8",
        "axes": {"sequence": 8},
        "soc_model": target.soc_model,
        "htp_arch": target.htp_arch,
        "vtcm_mb": target.vtcm_mb,
    }
    return StageRequest("context:tiny", params, {"model": StageInput(model.parent, {}, {})}, {}, out)


def build(model: Path, out: Path, target: HtpTarget = X_ELITE) -> StageResult:
    return fresh(stage.run, request(model, out, target))


def edit(path: Path, change: Callable[[ModelProto], None]) -> None:
    """Change a model file in place."""
    model = load_graph(path)
    change(model)
    save_graph(model, path)
