"""What is remarked on below the tables of a build and on a model's page, in sentences."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

Remarks = Mapping[str, Sequence[str]]
"""Names of buckets, outputs, axes or components that something is to be said of, by the kind of remark."""

AS_WRITTEN = ", as 'quantization' is written"
"""What is said of a figure that no climb betters."""
_NAMES = 8  # in a line; the rest is counted
_ADDING = (
    " 'verification', or to 'calibration', of which every fourth"
    " (of exact lengths: the second of each length) is held out"
)


def remark_lines(remarks: Iterable[Remarks]) -> Iterator[str]:
    """A line for each kind of remark that there is on these models."""
    given = [*remarks]
    for kind, told in _TOLD.items():
        if names := [name for each in given for name in each.get(kind, ())]:
            yield told(names)


def listed(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    rest = len(names) - _NAMES
    return ", ".join(names[:_NAMES]) + (f" and {rest} more" if rest > 0 else "")


def _unmeasured(names: Sequence[str]) -> str:
    return f"Not proven, as no held-out sample fits: {listed(names)}. Add samples to{_ADDING}."


def _padded(names: Sequence[str]) -> str:
    return (
        "Not shown, as no held-out sample needs the bucket and shorter ones stand in for it:"
        f" what longer ones give in {listed(names)}. Add samples of that length to{_ADDING}; or drop the bucket."
    )


def _silent(names: Sequence[str]) -> str:
    return (
        f"Not shown, as no held-out sample gets above a half: how {listed(names)} says yes. Add samples where it does."
    )


def _still(names: Sequence[str]) -> str:
    return (
        f"Not shown, as the original gives one number everywhere on all held-out samples: {listed(names)}."
        " Look whether the samples, and the exported model, are what was meant."
    )


def _long(names: Sequence[str]) -> str:
    return (
        f"Not shown, as no held-out sample is short: what fewer tokens, frames or pixels give of {listed(names)}."
        " Add short ones to the samples if the application has them."
    )


def _flipping(names: Sequence[str]) -> str:
    remedy = "; without 'quantization', the build looks for it." if any(AS_WRITTEN in name for name in names) else "."
    return (
        f"More than a choice in a thousand will be another on other inputs, by margins and errors: {listed(names)}."
        f" Weights of 16 bits or fp16 make that less{remedy}"
    )


def _rounding(names: Sequence[str]) -> str:
    return (
        "Built from the floats that a quantized file stands for, which that file's own rounding is far from:"
        f" {listed(names)}. What is built differs from the file by as much; compare it with the float model."
    )


_TOLD: Mapping[str, Callable[[Sequence[str]], str]] = {
    "unmeasured": _unmeasured,
    "padded": _padded,
    "silent": _silent,
    "still": _still,
    "long": _long,
    "flipping": _flipping,
    "rounding": _rounding,
}
