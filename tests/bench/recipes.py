"""The rows of docs/accuracy.md that are ours: MiniLM in each recipe, 64 tokens, sentences that calibration never saw.

    uv run python -m tests.bench.recipes --minilm FOLDER [--only NAME ...]

Each recipe is built as its users would, into a store that they share, and its figures are those of the manifest.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tests.bench.measure import Span
from tests.bench.models import minilm
from tests.bench.ours import Ours
from tests.bench.tools import ARTIFACTS, TARGETS

LOOKING = "rounding: gptq, clip: hessian, wide_products: true"
RECIPES: Mapping[str, Sequence[str]] = {
    "the default": (),
    "w8a16, `nearest`": ("quantization: {activations: uint16, weights: uint8}",),
    "w8a16, `gptq`, `hessian`, `wide_products`": (f"quantization: {{weights: uint8, {LOOKING}}}",),
    "int8 in blocks of 16, the same": (f"quantization: {{weights: {{dtype: int8, block: 16}}, {LOOKING}}}",),
    "int4 for each channel, `nearest`": ("quantization: {weights: int4}",),
    "int4 in blocks of 32, `gptq`, `hessian`, `wide_products`": (
        f"quantization: {{weights: {{dtype: int4, block: 32}}, {LOOKING}}}",
    ),
    "`auto` at 20 dB": ("quantization: {precision: auto}", "thresholds: {total_db: 20}"),
    "`auto` at 30 dB": ("quantization: {precision: auto}", "thresholds: {total_db: 30}"),
    "w8a8, `nearest`": ("quantization: {activations: uint8}",),
}
"""What a config says in each."""
_BELOW = "thresholds: {total_db: 1, worst_db: 0}"
"""For recipes that no build would ship."""
BUCKET, SAMPLES = 64, 32
"""Tokens, and sentences to calibrate with."""
_STAGES = ("correlate", "quantize", "precision")


@dataclass(frozen=True)
class Row:
    """What a recipe came to, in dB, of so many samples on the CPU and on the emulator."""

    name: str
    cpu_db: float
    emulator_db: float
    samples: tuple[int, int]
    megabytes: float
    cpu_s: float

    def markdown(self) -> str:
        """A row of the table."""
        return (
            f"| {self.name} | {self.cpu_db:.1f} | {self.emulator_db:.1f} | {self.megabytes:.1f} | {self.cpu_s:.0f} |"
            f" {self.samples[0]}, {self.samples[1]} emulated |"
        )


def row(name: str, manifest: Path, spans: Sequence[Span]) -> Row:
    """The row of what was built, by its manifest and what the build's steps used."""
    bucket = json.loads(manifest.read_text("utf-8"))["components"]["encoder"]["buckets"][0]
    judged = bucket["verification"]
    (emulated,) = judged["emulator"].values()
    (cpu,) = (figures["sqnr_db"] for figures in judged["cpu"]["outputs"].values())
    (chip,) = (figures["sqnr_db"] for figures in emulated["outputs"].values())
    size = sum(path.stat().st_size for path in manifest.parent.iterdir() if path.suffix in ARTIFACTS)
    used = sum(span.cpu_s for span in spans if re.match("|".join(_STAGES), span.label))
    return Row(name, cpu, chip, (judged["cpu"]["samples"], emulated["samples"]), size / 1e6, used)


def main(arguments: Sequence[str] | None = None) -> None:
    """Build the recipes and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minilm", type=Path, metavar="FOLDER", help="model.onnx and tokenizer.json; else the hub's")
    parser.add_argument("--only", nargs="+", choices=list(RECIPES), default=list(RECIPES), metavar="NAME")
    parser.add_argument("--seconds", type=int, default=60, help="for how long each context is emulated")
    asked = parser.parse_args(arguments)
    print("| recipe | CPU dB | emulator dB | binary MB | CPU s | samples |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as work:
        model = replace(minilm(asked.minilm, Path(work) / "model"), samples=SAMPLES)
        ours = Ours(model, Path(work) / "ours")
        ours.empty()
        for name in asked.only:
            more = RECIPES[name]
            limits = () if any("thresholds" in line for line in more) or not more else (_BELOW,)
            outcome = ours.build((BUCKET,), TARGETS[:1], verified=True, seconds=asked.seconds, more=[*more, *limits])
            manifest = ours.artifacts / TARGETS[0].name / "manifest.json"
            print(row(name, manifest, outcome.usage.spans).markdown(), flush=True)


if __name__ == "__main__":
    main()
