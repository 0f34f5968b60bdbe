"""Which exact lengths to build where padding does harm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pipeline.config.buckets import MOST

_COMBINED = 12
"""Combinations of lengths that are listed one by one."""


def exact_lengths(lengths: Mapping[str, Sequence[int]]) -> str:
    """The buckets to write into a configuration for these lengths of samples, as the end of a remedy.

    `lengths` has a sequence for each axis; the entries at one place make a combination that samples have. Braces are
    doubled, as remedies are formatted later. Empty if there are no combinations, or too many.
    """
    combined = [*zip(*lengths.values(), strict=True)]
    if not 0 < len(combined) <= MOST:
        return ""
    if len(lengths) == 1 or len(combined) > _COMBINED:
        listed = (f"{axis}: [{', '.join(map(str, sizes))}]" for axis, sizes in lengths.items())
        named = f"{{{{{', '.join(listed)}}}}}"
    else:
        points = (", ".join(f"{axis}: {size}" for axis, size in zip(lengths, sizes, strict=True)) for sizes in combined)
        named = f"[{', '.join(f'{{{{{point}}}}}' for point in points)}]"
    return f", here buckets: {named}, two samples or more of each"
