"""What is remarked on below the tables of a build and on a model's page, in sentences."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal

Kind = Literal["unmeasured", "unneeded", "kept", "silent", "still", "long", "flipping", "rounding"]
"""What kinds of remark there are; :mod:`pipeline.report.remarks` has how each is found, this module how it is told."""
Remarks = Mapping[Kind, Sequence[str]]
"""Names of buckets, outputs, axes or components that something is to be said of, by the kind of remark."""

AS_WRITTEN = ", as 'quantization' is written"
"""What is said of a figure that no climb betters."""
_ADDING = (
    " 'verification', or to 'calibration', of which every fourth"
    " (of exact lengths: the second of each length) is held out"
)


def remark_lines(remarks: Iterable[Remarks], most: int | None = None) -> Iterator[str]:
    """A line for each kind of remark that there is on these models, with at most so many names; None: with all."""
    given = [*remarks]
    for kind, told in TOLD.items():
        if names := [name for each in given for name in each.get(kind, ())]:
            yield told(names, most)


def listed(names: Sequence[str], most: int | None = None) -> str:
    """The first names, and how many more there are; None: all of them."""
    shown = names[:most]
    rest = len(names) - len(shown)
    return ", ".join(shown) + (f" and {rest} more" if rest else "")


def _unmeasured(names: Sequence[str], most: int | None) -> str:
    return f"Not proven, as no held-out sample fits: {listed(names, most)}. Add samples to{_ADDING}."


def _unneeded(names: Sequence[str], most: int | None) -> str:
    return (
        "Not shown, as no sample needs the bucket and shorter ones stand in for it:"
        f" what longer ones give in {listed(names, most)}. Add samples of that length to{_ADDING}; or drop the bucket."
    )


def _kept(names: Sequence[str], most: int | None) -> str:
    return (
        "Not shown, as all samples of that length went to calibration and shorter ones stand in for them:"
        f" what longer ones give in {listed(names, most)}. Add more of that length, or give 'verification.samples'."
    )


def _silent(names: Sequence[str], most: int | None) -> str:
    return (
        f"Not shown, as no held-out sample gets above a half: how {listed(names, most)} says yes."
        " Add samples where it does."
    )


def _still(names: Sequence[str], most: int | None) -> str:
    return (
        f"Not shown, as the original gives one number everywhere on all held-out samples: {listed(names, most)}."
        " Look whether the samples, and the exported model, are what was meant."
    )


def _long(names: Sequence[str], most: int | None) -> str:
    return (
        f"Not shown, as no held-out sample is short: what fewer tokens, frames or pixels give of {listed(names, most)}."
        " Add short ones to the samples if the application has them."
    )


def _flipping(names: Sequence[str], most: int | None) -> str:
    remedy = "; without 'quantization', the build looks for it." if any(AS_WRITTEN in name for name in names) else "."
    return (
        "More than a choice in a thousand will be another on other inputs, by margins and errors:"
        f" {listed(names, most)}. Weights of 16 bits or fp16 make that less{remedy}"
    )


def _rounding(names: Sequence[str], most: int | None) -> str:
    return (
        "Built from the floats that a quantized file stands for, which that file's own rounding is far from:"
        f" {listed(names, most)}. What is built differs from the file by as much; compare it with the float model."
    )


TOLD: Mapping[Kind, Callable[[Sequence[str], int | None], str]] = {
    "unmeasured": _unmeasured,
    "unneeded": _unneeded,
    "kept": _kept,
    "silent": _silent,
    "still": _still,
    "long": _long,
    "flipping": _flipping,
    "rounding": _rounding,
}
