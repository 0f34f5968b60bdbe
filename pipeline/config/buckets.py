"""The buckets of a model: which lengths of its axes are built together."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any

from pipeline.config.yaml.decode import INVALID
from pipeline.config.yaml.problems import Keys, Problems
from pipeline.config.yaml.tree import Node, place_of
from pipeline.frozen import dataclass

_LONGEST_NAME = 64
MOST = 256


@dataclass(frozen=True)
class Bucket:
    """One fixed length for each length axis, with the axes in the order of the config."""

    axes: Mapping[str, int]

    @cached_property
    def name(self) -> str:
        """The name in steps and artifacts: `64`, `64x128`, or `all` without a length axis."""
        return "x".join(str(value) for value in self.axes.values()) or "all"

    def on(self, axes: Collection[str]) -> Bucket:
        """This bucket with only those of its axes that are in `axes`."""
        if all(axis in axes for axis in self.axes):
            return self  # with its name, which every step asks for
        return Bucket({axis: value for axis, value in self.axes.items() if axis in axes})


def read_buckets(fields: Mapping[str, Any], node: Node, problems: Problems) -> tuple[Bucket, ...]:
    """The buckets, the smallest first. In a list of points, all must have the axes of the first, in its order."""
    written: Mapping[str, Sequence[Any]] | Sequence[Any] = fields.get("buckets", ())
    points: list[Mapping[str, int]] = []
    if isinstance(written, Mapping):
        axes = list(written)
        points += _combined(written, fields.get("cross", False), node, problems)
    else:
        axes = list(next((point for point in written if point is not INVALID), ()))
        for index, point in enumerate(written):
            if point is not INVALID and point.keys() != set(axes):
                keys: Keys = ("buckets", index)
                problems.add(
                    place_of(node, keys), keys, "has other axes than the first point", expected=" and ".join(axes)
                )
            elif point is not INVALID:
                points.append(point)
        if fields.get("cross"):
            expected = "lists of values to cross, as in buckets: {height: [320, 640], width: [320, 640]}"
            problems.add(place_of(node, ("cross",)), ("cross",), "points can't be crossed", expected=expected)
    for axis in fields.get("fixed", {}).keys() & axes:
        keys = ("fixed", axis)
        problems.add(place_of(node, keys), keys, "is fixed and has buckets too", expected="one of the two")
    for number, point in enumerate(points):
        if len(Bucket(point).name) > _LONGEST_NAME:
            keys = ("buckets",) if isinstance(written, Mapping) else ("buckets", number)
            what = f"the bucket's name in file names would have {len(Bucket(point).name)} characters"
            problems.add(place_of(node, keys), keys, what, expected="fewer axes; name those under 'fixed' that can be")
    # In this order the first bucket that holds an input is the smallest that does.
    found = (Bucket({axis: point[axis] for axis in axes if axis in point}) for point in points)
    return tuple(sorted(found, key=by_size)) or (Bucket({}),)


def by_size(bucket: Bucket) -> tuple[int, list[int]]:
    """The key that buckets are sorted by: the product of their lengths, then the lengths."""
    return math.prod(bucket.axes.values()), [*bucket.axes.values()]


def _combined(
    written: Mapping[str, Sequence[Any]], cross: bool, node: Node, problems: Problems
) -> list[dict[str, int]]:
    """The points from the values of several axes: values in the same place together, or with `cross` all combined."""
    keys: Keys = ("buckets",)
    place = place_of(node, keys)
    if any(value is INVALID for values in written.values() for value in values):
        return []
    points: list[tuple[int, ...]]
    if len(written) > 1 and not cross:
        if len({len(values) for values in written.values()}) > 1:
            what = "has " + " and ".join(f"{len(values)} of {axis}" for axis, values in written.items())
            expected = "as many of each, which go together place by place, or cross: true for every combination"
            problems.add(place, keys, what, expected=expected)
            return []
        points = list(zip(*written.values(), strict=True))
        for index, point in enumerate(points):
            if points.index(point) < index:
                what = f"bucket {index + 1} is the same as bucket {points.index(point) + 1}"
                problems.add(place, keys, what, expected="each once")
    else:
        for axis, values in written.items():
            for index, value in enumerate(values):
                if (first := values.index(value)) < index:
                    at: Keys = (*keys, axis, index)
                    problems.add(place_of(node, at), at, f"the same as entry [{first}]", expected="each once")
        if math.prod(map(len, written.values())) > MOST:
            problems.add(place, keys, "makes too many buckets", expected=f"{MOST} at most")
            return []
        points = list(itertools.product(*written.values()))
    return [dict(zip(written, point, strict=True)) for point in points]
