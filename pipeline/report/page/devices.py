"""The part of a page about what `doit device` measured: times on each device."""

from __future__ import annotations

import json
from collections.abc import Iterator
from xml.etree.ElementTree import Element

from pipeline.contracts.codec import ContractError
from pipeline.contracts.device import MeasuredOn
from pipeline.report.page.markup import note, section, table
from pipeline.report.page.source import PageSource

FOLDER = "devices"
"""In the build folder: a folder for each model, with a file for each device."""
_HEADING = (
    "measured on", "component", "bucket", "target", ">load", ">first run", ">median", ">90 % below", ">runs",
    "performance mode", "power", "contexts",
)  # fmt: skip
_MOST_BYTES = 16 << 20


def devices(source: PageSource) -> Element | None:
    """How long each context took on each device; None where nothing was measured, or the page tells of no run."""
    found = [*_measured(source)] if source.run is not None else []
    if not found:
        return None
    current = {entry["sha256"] for artifact in source.artifacts.values() for entry in artifact["files"].values()}
    rows = [
        (
            f"{on.name}, {on.system}" + (", QNN's emulator" if on.device == "emulator" else ""),
            each.component, "×".join(map(str, each.axes.values())) or "all", each.target,
            f"{each.load_s:.3g} s", f"{each.first_ms:.4g} ms", f"{each.median_ms:.4g} ms", f"{each.p90_ms:.4g} ms",
            str(each.runs), on.performance_mode.get(each.target, ""),
            ", ".join(part for part in (on.power, on.plan) if part),
            "these" if {*each.files.values()} <= current else "of another build",
        )
        for on in found
        for each in on.contexts
    ]  # fmt: skip
    said = note(
        "One run after the other in a process of its own, from Python, padding and cropping included. The first run is"
        " cold. Loading is after the digests were checked."
    )
    emulated = any(on.device == "emulator" for on in found)
    caveat = note("Times of QNN's emulator are those of a processor that emulates; they tell nothing of an NPU.")
    return section(
        "Measured on devices", "devices", said, caveat if emulated else None, table([_HEADING, *rows], "Times")
    )


def _measured(source: PageSource) -> Iterator[MeasuredOn]:
    """What is kept of this model, by the devices' names; files that are damaged are passed by."""
    for path in sorted((source.workspace.build / FOLDER / source.config.name).glob("*.json")):
        try:
            with path.open("rb") as stream:
                yield MeasuredOn.from_json(json.loads(stream.read(_MOST_BYTES)))
        except (OSError, ValueError, RecursionError, ContractError, AttributeError):
            continue
