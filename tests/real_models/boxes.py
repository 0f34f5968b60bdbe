"""Boxes that a detector found, and whether two runs found the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tests.real_models.model import Verdict

_CLEAR = 0.05  # a score this far above the detector's threshold does not hang on rounding
_GOOD_IOU = 0.97
_LEAST_IOU = 0.9  # a text of 30 pixels' height loses 0.03 by one pixel that crosses the threshold


@dataclass(frozen=True)
class Box:
    """Corners in pixels of the model's input, a score from 0 to 1, and how far that is above the threshold."""

    left: float
    top: float
    right: float
    bottom: float
    label: int
    score: float
    above: float

    @property
    def clear(self) -> bool:
        """Whether the score is far enough above the threshold that both runs must find it."""
        return self.above >= _CLEAR


def iou(one: Box, other: Box) -> float:
    """Intersection over union."""
    wide = min(one.right, other.right) - max(one.left, other.left)
    high = min(one.bottom, other.bottom) - max(one.top, other.top)
    if wide <= 0 or high <= 0:
        return 0.0
    return wide * high / (_area(one) + _area(other) - wide * high)


def _area(box: Box) -> float:
    return (box.right - box.left) * (box.bottom - box.top)


def without_overlaps(boxes: Sequence[Box], most: float) -> list[Box]:
    """Non-maximum suppression over all labels: the best boxes of which no two overlap by more than `most`."""
    kept: list[Box] = []
    for box in sorted(boxes, key=lambda box: -box.score):
        if all(iou(box, other) <= most for other in kept):
            kept.append(box)
    return kept


def compare_boxes(expected: Sequence[Sequence[Box]], actual: Sequence[Sequence[Box]]) -> Verdict:
    """Each clear box of one run must be in the other, of its label and an IoU of 0.9, and the mean IoU be 0.97."""
    clear = found = extra = 0
    overlaps: list[float] = []
    for ours, theirs in zip(expected, actual, strict=True):
        for box in ours:
            if box.clear:
                best = max((iou(box, other) for other in theirs if other.label == box.label), default=0.0)
                clear += 1
                found += best >= _GOOD_IOU
                overlaps.append(best)
        extra += sum(
            box.clear and not any(iou(box, other) >= 0.5 and other.label == box.label for other in ours)
            for box in theirs
        )
    if not clear:
        return Verdict(False, "the original finds no boxes in these pictures, so nothing was judged")
    least, mean = min(overlaps), float(np.mean(overlaps))
    text = f"boxes {found}/{clear} with IoU >= {_GOOD_IOU}, least {least:.3f}, mean {mean:.3f}"
    return Verdict(
        least >= _LEAST_IOU and mean >= _GOOD_IOU and not extra, text + (f", {extra} too many" if extra else "")
    )


def connected(mask: NDArray[np.bool_]) -> list[NDArray[np.intp]]:
    """The 8-connected regions of a mask, each as indices [pixels, 2] of row and column."""
    parents: list[int] = []

    def root(label: int) -> int:
        while parents[label] != label:
            parents[label] = parents[parents[label]]
            label = parents[label]
        return label

    runs: list[tuple[int, int, int, int]] = []  # row, start, end, label
    above: list[tuple[int, int, int, int]] = []
    for row, line in enumerate(mask):
        edges = np.flatnonzero(np.diff(np.concatenate([[0], line.astype(np.int8), [0]])))
        here = []
        for start, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            touching = [root(label) for _, other, last, label in above if other <= end and start <= last]
            if touching:
                label = min(touching)
                for other in touching:
                    parents[other] = label
            else:
                label = len(parents)
                parents.append(label)
            here.append((row, start, end, label))
        runs += here
        above = here
    regions: dict[int, list[NDArray[np.intp]]] = {}
    for row, start, end, label in runs:
        columns = np.arange(start, end)
        regions.setdefault(root(label), []).append(np.stack([np.full_like(columns, row), columns], axis=1))
    return [np.concatenate(parts) for parts in regions.values()]
