"""Words the remarks below the tables of a build and on a model's page, such as what was not measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

Kind = Literal[
    "unmeasured", "alone", "few", "unneeded", "kept", "silent", "still", "long", "flipping", "rounding", "rewritten",
    "unread",
]  # fmt: skip
"""The kinds of remark. :mod:`pipeline.report.remarks` finds them; this module words them."""
Remarks = Mapping[Kind, Sequence[str]]
"""For each kind of remark, the names of the buckets, outputs, axes or components that it is about."""

AS_WRITTEN = ", as 'quantization' is written"
"""Follows a figure that no climb may improve, as the config says how to quantize."""
_ADDING = (
    " 'verification', or to 'calibration', of which every fourth"
    " (of exact lengths: the second of each length) is held out"
)


TOLD: Mapping[Kind, str] = {
    "unmeasured": "Not proven, as no held-out sample fits: {names}. Add samples to" + _ADDING + ".",
    "alone": "Not proven, as 'calibration' has one sample, which can't both give the ranges and show what they are"
    " worth: {names}. Give it 16 to 64, of which every fourth is held out, or give 'verification.samples' 16 others.",
    "few": "Ranges from next to no samples, which other inputs will leave: {names}. Give 'calibration' 16 to 64 that"
    " are typical of the model's use, short and long.",
    "unneeded": "Not shown, as no sample needs the bucket and shorter ones stand in for it: what longer ones give in"
    " {names}. Add samples of that length to" + _ADDING + "; or drop the bucket.",
    "kept": "Not shown, as all samples of that length went to calibration and shorter ones stand in for them: what"
    " longer ones give in {names}. Add more of that length, or give 'verification.samples'.",
    "silent": "Not shown, as no held-out sample gets above a half: how {names} says yes. Add samples where it does.",
    "still": "Not shown, as the original gives one number everywhere on all held-out samples: {names}. Look whether the"
    " samples, and the exported model, are what was meant.",
    "long": "Not shown, as no held-out sample is short: what fewer tokens, frames or pixels give of {names}. Add short"
    " ones to the samples if the application has them.",
    "flipping": "More than a choice in a thousand will be another on other inputs, by margins and errors: {names}."
    " Weights of 16 bits or fp16 make that less{search}.",
    "rounding": "Own rounding: a file that rounds as it runs is built from the floats that it stands for: {names}. Each"
    " of its operators alone gives what was read; all together differ from the file by as much. Compare it with the"
    " float model.",
    "rewritten": "Judged by the end, as rewrites for HTP are a means and cost accuracy themselves: {names}."
    " 'rewrite_db' makes that a threshold of its own.",
    "unread": "Reading not proven, as the file itself did not run: {names}. To refuse such a model, say verification:"
    " {{reading: required}}.",
}
"""The sentences of each kind of remark."""


def remark_lines(remarks: Iterable[Remarks], most: int | None = None) -> Iterator[str]:
    """A line for each kind of remark on these models, with at most `most` names, or with all if that is None."""
    given = [*remarks]
    for kind, told in TOLD.items():
        if names := [name for each in given for name in each.get(kind, ())]:
            fixed = any(AS_WRITTEN in name for name in names)
            search = "; without 'quantization', the build looks for it" if fixed else ""
            yield told.format(names=listed(names, most), search=search)


def listed(names: Sequence[str], most: int | None = None) -> str:
    """The first `most` names, and how many more there are; all names if that is None."""
    shown = names[:most]
    rest = len(names) - len(shown)
    return ", ".join(shown) + (f" and {rest} more" if rest else "")
