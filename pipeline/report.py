"""What the user sees of a build: a line for each step, errors, and the table at the end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pipeline.model import Json, Manifest
from pipeline.plan import Step

_COLUMNS = ("component", "bucket", "target", "scheme", "partitions", "CPU nodes", "size", "time", "")
_RIGHT = frozenset({"partitions", "CPU nodes", "size", "time"})


@dataclass(frozen=True)
class Row:
    """One context model in the final table."""

    cells: tuple[str, ...]


def rows(
    steps: Iterable[Step], manifests: Mapping[str, Manifest], outcomes: Mapping[str, tuple[str, float]]
) -> list[Row]:
    """A row for each context step: `outcomes` says which ran in this build, and for how many seconds."""
    found = []
    for step in steps:
        manifest = manifests.get(step.id)
        if step.stage != "context" or manifest is None or step.target is None or step.component is None:
            continue
        outcome, seconds = outcomes.get(step.id, ("cached", 0.0))
        cpu_nodes = manifest.facts["cpu_nodes"]
        assert isinstance(cpu_nodes, list)
        cells = (
            f"{step.config.name}/{step.component}",
            str(manifest.facts["bucket"]),
            step.target.soc,
            step.config.components[step.component].quantization.scheme,
            str(manifest.facts["partitions"]),
            str(len(cpu_nodes)),
            human_bytes(sum(entry.bytes for entry in manifest.files.values())),
            f"{seconds:.1f} s" if outcome == "built" else "-",
            outcome,
        )
        found.append(Row(cells))
    return found


def table(found: Sequence[Row]) -> str:
    """The rows as aligned text with a heading; an empty string for no rows."""
    if not found:
        return ""
    lines = [_COLUMNS, *(row.cells for row in found)]
    widths = [max(len(line[index]) for line in lines) for index in range(len(_COLUMNS))]
    text = []
    for line in lines:
        cells = (
            cell.rjust(width) if name in _RIGHT else cell.ljust(width)
            for name, cell, width in zip(_COLUMNS, line, widths, strict=True)
        )
        text.append("  ".join(cells).rstrip())
    text.insert(1, "  ".join("-" * width for width in widths).rstrip())
    return "\n".join(text)


def scores(steps: Iterable[Step], manifests: Mapping[str, Manifest]) -> list[str]:
    """A line for each verified bucket: the task score of the original and of the QDQ model, and the dB between them."""
    lines = []
    for step in steps:
        manifest = manifests.get(step.id)
        if step.stage == "verify" and manifest is not None:
            lines.append(f"{step.name}: {verification_text(manifest.facts)}")
    return lines


def verification_text(facts: Mapping[str, Json]) -> str:
    """One line on what a verify step found."""
    if not facts.get("samples"):
        return "not measured: no held-out sample falls into this bucket"
    parts = []
    score = facts.get("score")
    if isinstance(score, dict):
        values = ", ".join(f"{label} {value:.4f}" for label, value in score.items() if isinstance(value, float | int))
        parts.append(f"{score['name']}: {values}")
    outputs = facts.get("outputs")
    if isinstance(outputs, dict):
        for name, measured in outputs.items():
            assert isinstance(measured, dict)
            parts.append(f"{name} {_db(measured.get('sqnr_db'))}")
    return f"{'; '.join(parts)} ({facts['samples']} held-out samples)"


def human_bytes(count: int) -> str:
    """A size in decimal units, e.g. `36.2 MB`."""
    size = float(count)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


def _db(value: Json) -> str:
    return f"SQNR {value:.1f} dB" if isinstance(value, float | int) else "SQNR not measured"
