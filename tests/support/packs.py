"""Contexts of tiny models in binaries that they share, each compiled in a process of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pipeline.contracts.context import CompiledModel
from pipeline.contracts.target import HtpTarget
from pipeline.qnn.compiling.compile import compile_flexible, compile_shared
from tests.support.fresh import fresh

X_ELITE = HtpTarget(60, 73, 8)
SM8650 = HtpTarget(57, 75, 8)
SM8750 = HtpTarget(69, 79, 8)
SHARED = "encoder_ctx_qnn.bin"
NAME = "encoder_8"
FLEXIBLE = f"{NAME}_ctx_qnn.bin"


def shared(models: Mapping[str, Path], out: Path, target: HtpTarget = X_ELITE) -> dict[str, CompiledModel]:
    """All models in one binary."""
    out.mkdir(parents=True, exist_ok=True)
    return fresh(compile_shared, models, target, out, binary=SHARED)


def flexible(model: Path, out: Path, targets: Sequence[HtpTarget]) -> CompiledModel:
    """One model for several targets in one binary."""
    out.mkdir(parents=True, exist_ok=True)
    return fresh(compile_flexible, model, NAME, targets, out)


def contents(folder: Path) -> dict[str, bytes]:
    """The files of a folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}
