"""What must be shown of a component before its contexts are compiled: that padding does it no harm."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.config.load import load
from pipeline.plan.compile_order import compiled_after
from pipeline.plan.planner import plan

CONFIG = """\
source: {path: ../models/net}
components:
  net: {file: a.onnx}
  other: {file: b.onnx}
buckets: {frames: [16, 8]}
calibration: {reader: npz, folder: samples}
targets: [sm8650]
"""
FIRST = ["verify:net/net/8"]


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("", FIRST),
        ("packing: auto\n", FIRST),
        ("verification: {truth: padded}\n", []),
        ("verification: {truth: exact}\n", []),
        ("verification: {enabled: false}\n", []),
        ("packing: auto\nrelease: {version: '1.0', unverified: [net/8]}\n", []),
    ],
)
def test_contexts_come_after_what_shows_that_padding_does_no_harm(
    tmp_path: Path, more: str, expected: list[str]
) -> None:
    path = tmp_path / "configs" / "net.yaml"
    path.parent.mkdir()
    (tmp_path / "samples").mkdir()
    path.write_text(CONFIG + more, "utf-8")
    steps = {step.id: step for step in plan(load(path))}
    compiling = [step for step in steps.values() if step.stage in ("packing", "context") and step.component == "net"]
    assert compiling
    for step in compiling:
        assert compiled_after(step, steps) == expected
    assert not any(compiled_after(step, steps) for step in steps.values() if step.stage in ("quantize", "verify"))


def test_nothing_is_padded_without_length_axes(tmp_path: Path) -> None:
    path = tmp_path / "configs" / "net.yaml"
    path.parent.mkdir()
    (tmp_path / "samples").mkdir()
    path.write_text(CONFIG.replace("buckets: {frames: [16, 8]}\n", ""), "utf-8")
    steps = {step.id: step for step in plan(load(path))}
    assert not any(compiled_after(step, steps) for step in steps.values())
