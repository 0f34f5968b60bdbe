"""The table of recipes: a row is what a manifest says, and what the steps used that a recipe adds."""

from __future__ import annotations

import json
from pathlib import Path

from tests.bench.measure import Span
from tests.bench.recipes import row


def test_a_row_is_of_the_manifest(tmp_path: Path) -> None:
    judged = {
        "cpu": {"samples": 32, "outputs": {"y": {"sqnr_db": 36.68}}},
        "emulator": {"sm8650": {"samples": 6, "outputs": {"y": {"sqnr_db": 35.9}}}},
    }
    manifest = {"components": {"encoder": {"buckets": [{"verification": judged}]}}}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest), "utf-8")
    (tmp_path / "a_ctx.onnx").write_bytes(bytes(100_000))
    (tmp_path / "a.bin").write_bytes(bytes(37_800_000))
    spans = [Span(f"{stage}:m/encoder", 0, 1, 4.0, 1) for stage in ("calibrate", "correlate", "quantize", "context")]

    found = row("a recipe", tmp_path / "manifest.json", spans)

    assert found.markdown() == "| a recipe | 36.7 | 35.9 | 37.9 | 8 | 32, 6 emulated |"
