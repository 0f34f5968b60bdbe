"""The samples that an accuracy is measured on: those of one bucket, none of which calibration saw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from pipeline.contracts.measures import Measuring
from pipeline.contracts.values import TensorSpec
from pipeline.graph.shapes.buckets import Arrays, axis_lengths, pad, smallest_bucket
from pipeline.inputs.samples.sample_set import StoredCall, place, stored_calls


@dataclass(frozen=True)
class ScoredSample:
    """What a score function sees of a sample: its text and label where the reader has them, its unpadded inputs."""

    name: str
    text: str | None
    label: str | None
    inputs: Mapping[str, NDArray[Any]]


Lengths = Mapping[str, tuple[int, ...]]
"""Lengths by axis."""

ENOUGH = 16
"""A bucket with fewer samples of its own is measured on shorter ones too: a figure from a few says little."""


@dataclass(frozen=True)
class HeldOut:
    """The samples for one bucket, and each as the original takes it (`given`) and padded to the bucket.

    The last `shorter` of them belong to smaller buckets. `inexact` samples of its own were left out, as they would need
    padding where the truth is `exact`.
    """

    samples: tuple[ScoredSample, ...]
    given: tuple[Arrays, ...]
    padded: tuple[Arrays, ...]
    shorter: int = 0
    inexact: int = 0


def held_out(folder: Path, params: Measuring, inputs: Sequence[TensorSpec]) -> HeldOut:
    """The samples that a bucket is the smallest for, filled up to ENOUGH with the longest of those that fit into it.

    Not filled up where all of its own have exactly its lengths: then nothing is padded in use, and may not be here.
    With an `exact` truth, only those of exactly its lengths. With a `padded` one, the original takes them padded, too.

    `folder` is the output of a samples step.

    Raises:
        CalibrationError: a sample fits no bucket at all.
    """
    bucket, buckets = params.bucket, params.buckets
    calls = stored_calls(folder, params.component, params.part)
    placed = place(calls, inputs, buckets)
    own = [_loaded(call) for call in placed[bucket]]
    exact = [sample for sample in own if _is_exact(sample, inputs, buckets[bucket])]
    if params.truth == "exact" or (exact and len(exact) == len(own)):
        return fed(exact, params, inputs, inexact=len(own) - len(exact))
    fitting: list[tuple[int, int, ScoredSample]] = []
    for number, call in enumerate(calls):
        if call in placed[bucket]:
            continue
        sample = _loaded(call)
        lengths = axis_lengths(sample.inputs, inputs)
        if smallest_bucket(lengths, {bucket: buckets[bucket]}):
            length = sum(lengths[axis] for axis in buckets[bucket] if axis in lengths)
            fitting.append((-length, number, sample))
    fitting.sort(key=lambda entry: entry[:2])  # of equals, the first of the set
    added = [sample for *_, sample in fitting[: max(0, ENOUGH - len(own))]]
    return fed([*own, *added], params, inputs, shorter=len(added))


def lengths_of(folder: Path, params: Measuring, inputs: Sequence[TensorSpec]) -> Lengths:
    """The lengths of all samples of the set on the axes of the bucket, from the shortest, whichever bucket holds them.

    Those in one place of all axes are of one sample; each such combination is there once. Those that calibration takes
    of the set are among them: who builds exact lengths needs all that are used.
    """
    if not params.axes:
        return {}
    found = [axis_lengths(call.load(), inputs) for call in stored_calls(folder, params.component)]
    axes = [axis for axis in params.axes if all(axis in lengths for lengths in found)]
    seen = sorted({tuple(lengths[axis] for axis in axes) for lengths in found})
    return {axis: tuple(lengths[place] for lengths in seen) for place, axis in enumerate(axes) if seen}


def fed(
    samples: Sequence[ScoredSample],
    params: Measuring,
    inputs: Sequence[TensorSpec],
    *,
    shorter: int = 0,
    inexact: int = 0,
) -> HeldOut:
    """Samples that fit into a bucket, as the original takes them and as the bucket does."""
    padded = tuple(pad(sample.inputs, inputs, params.axes, params.padding) for sample in samples)
    given = padded if params.truth == "padded" else tuple(sample.inputs for sample in samples)
    return HeldOut(tuple(samples), given, padded, shorter, inexact)


def _is_exact(sample: ScoredSample, inputs: Sequence[TensorSpec], axes: Mapping[str, int]) -> bool:
    lengths = axis_lengths(sample.inputs, inputs)
    return bool(axes) and all(lengths.get(axis, size) == size for axis, size in axes.items())


def _loaded(call: StoredCall) -> ScoredSample:
    return ScoredSample(call.name, call.sample.text, call.sample.label, call.load())
