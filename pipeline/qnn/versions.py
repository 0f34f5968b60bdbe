"""Versions of QAIRT, the QNN SDK, compared as numbers: 2.9 is older than 2.40. Needs the standard library alone."""

from __future__ import annotations

import re


def numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: `2.45.40.260326` is (2, 45, 40, 260326)."""
    found = re.match(r"v?(\d+(?:\.\d+)*)", version.strip())
    return tuple(int(part) for part in found[1].split(".")) if found else ()


def newer(sdk: str, driver: str) -> bool:
    """Whether an SDK is newer than a driver's, in as many of the first three numbers as both give.

    A driver that is given as 2.40 takes any 2.40.x.
    """
    ours, theirs = numbers(sdk)[:3], numbers(driver)[:3]
    shorter = min(len(ours), len(theirs))
    return ours[:shorter] > theirs[:shorter]
