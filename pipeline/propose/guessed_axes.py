"""What the axes of a model's inputs are taken to count, by what its graph does with them, their names and places."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pipeline.graph.shapes.axes import axis_names
from pipeline.propose.axis_uses import AxisUse
from pipeline.propose.interface import NEVER_VARIED, GuessedComponent, GuessedInput

_BATCH = re.compile(r"batch", re.IGNORECASE)
_SHORT = re.compile(r"^(n|b|bs|bsz)$", re.IGNORECASE)
"""Names of a batch where it is a first axis, or one of a state; elsewhere they may count anything."""
_COUNTED = re.compile(r"seq|len|time|frame|step|^n(um)?_|_num$|count|node|edge|atom|point|residue|token", re.IGNORECASE)
"""Names of what a sample has some of, so that a first axis of this name is no batch."""

AxisKind = Literal["batch", "height", "width", "channels", "tokens", "samples", "length"]


@dataclass(frozen=True)
class GuessedAxis:
    """An axis of a model's inputs and what it is taken to count; `carriers` are ``component.input[place]``.

    `why` is what the graph does with it, where that tells.
    """

    name: str
    kind: AxisKind
    carriers: tuple[str, ...]
    why: str = ""


def guess_axes(components: Mapping[str, GuessedComponent]) -> list[GuessedAxis]:
    """Every axis of the components, in their order; what any of them says of one counts for all."""
    seen: dict[str, list[tuple[str, GuessedInput, int]]] = {}
    for component, guessed in components.items():
        for given in guessed.inputs:
            for place, dim in enumerate(given.spec.shape):
                for axis in axis_names(dim) if isinstance(dim, str) else ():
                    if given.kind not in NEVER_VARIED:
                        seen.setdefault(axis, []).append((component, given, place))
    found = []
    for axis, places in seen.items():
        told = [components[c].uses[given.spec.name, place] for c, given, place in places
                if (given.spec.name, place) in components[c].uses]  # fmt: skip
        use = next((each for each in told if each.use == "steps"), told[0] if told else None)
        carriers = tuple(f"{component}.{given.spec.name}[{place}]" for component, given, place in places)
        found.append(GuessedAxis(axis, _axis_kind(axis, places, use), carriers, use.why if use else ""))
    return found


def _axis_kind(axis: str, places: Sequence[tuple[str, GuessedInput, int]], use: AxisUse | None) -> AxisKind:
    """What an axis counts: what a graph does with it goes before its name."""
    plain = "" if axis.endswith("]") else axis
    leading = any(place == 0 or given.kind == "state" for _, given, place in places)
    if use is None and (_BATCH.search(plain) or (leading and _SHORT.search(plain))):
        return "batch"
    for _, given, place in places:
        rank = len(given.spec.shape)
        if given.kind == "image" and rank == 4 and place > 0:
            first = given.spec.shape[1] in (1, 3) or given.spec.shape[3] not in (1, 3)
            kinds: tuple[AxisKind, ...] = ("channels", "height", "width") if first else ("height", "width", "channels")
            return kinds[place - 1]
    if use is not None and use.use == "batch":
        return "batch"
    firsts = [place == 0 and (len(given.spec.shape) > 1 or given.kind == "length") for _, given, place in places]
    if use is None and all(firsts) and not _COUNTED.search(axis):
        return "batch"
    if (
        use is None
        and all(given.kind == "state" and place < len(given.spec.shape) - 1 for _, given, place in places)
        and not re.search(r"seq|len|time|frame|step|past", axis, re.IGNORECASE)
    ):
        return "batch"  # [layers, batch, hidden]
    kinds_of = {given.kind for _, given, _ in places}
    if "audio" in kinds_of:
        return "samples" if any(_counts_samples(given, place) for _, given, place in places) else "length"
    return "tokens" if kinds_of & {"ids", "mask"} else "length"


def _counts_samples(given: GuessedInput, place: int) -> bool:
    """Whether an axis of a waveform is along it, rather than how many of them, or windows of one, a run is given."""
    return given.kind == "audio" and (place > 0 or len(given.spec.shape) == 1)
