"""The samples that an accuracy is measured on: those of one bucket, none of which calibration saw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from numpy.typing import NDArray

from pipeline.graph.buckets import ModelInput, axis_lengths, fits_no_bucket, smallest_bucket
from pipeline.model import Json
from pipeline.readers.sample_set import StoredCall, stored_calls


@dataclass(frozen=True)
class ScoredSample:
    """What a score function sees of a sample: its text and label where the reader has them, its unpadded inputs."""

    name: str
    text: str | None
    label: str | None
    inputs: Mapping[str, NDArray[Any]]


ENOUGH = 16
"""A bucket with fewer samples of its own is measured on shorter ones too: a figure from a few says little."""


@dataclass(frozen=True)
class HeldOut:
    """The samples for one bucket. The last `shorter` of them belong to smaller buckets."""

    samples: tuple[ScoredSample, ...]
    shorter: int


def held_out(folder: Path, params: Mapping[str, Json], inputs: Sequence[ModelInput]) -> HeldOut:
    """The samples that a bucket is the smallest for, filled up to ENOUGH with the longest of those that fit into it.

    Not filled up where all of its own have exactly its lengths: then nothing is padded in use, and may not be here.

    `folder` is the output of a samples step; `params` has `component`, `part`, `bucket` and `buckets`.

    Raises:
        CalibrationError: a sample fits no bucket at all.
    """
    buckets = cast("Mapping[str, Mapping[str, int]]", params["buckets"])
    bucket = str(params["bucket"])
    own: list[ScoredSample] = []
    fitting: list[tuple[int, ScoredSample]] = []
    for call in stored_calls(folder, str(params["component"]), str(params["part"])):
        sample = _loaded(call)
        lengths = axis_lengths(sample.inputs, inputs)
        smallest = smallest_bucket(lengths, buckets)
        if smallest is None:
            raise fits_no_bucket(call.name, lengths, buckets)
        if smallest == bucket:
            own.append(sample)
        elif smallest_bucket(lengths, {bucket: buckets[bucket]}):
            fitting.append((sum(lengths[axis] for axis in buckets[bucket] if axis in lengths), sample))
    if own and all(_is_exact(sample, inputs, buckets[bucket]) for sample in own):
        return HeldOut(tuple(own), 0)
    fitting.sort(key=lambda entry: -entry[0])
    added = [sample for _, sample in fitting[: max(0, ENOUGH - len(own))]]
    return HeldOut((*own, *added), len(added))


def _is_exact(sample: ScoredSample, inputs: Sequence[ModelInput], axes: Mapping[str, int]) -> bool:
    lengths = axis_lengths(sample.inputs, inputs)
    return bool(axes) and all(lengths.get(axis, size) == size for axis, size in axes.items())


def _loaded(call: StoredCall) -> ScoredSample:
    return ScoredSample(call.name, call.sample.text, call.sample.label, call.load())
