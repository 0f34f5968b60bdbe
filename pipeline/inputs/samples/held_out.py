"""Picks the samples to measure a bucket's accuracy on: those that fit the bucket and that calibration did not see."""

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
    """A sample as a score function sees it: its text and label if the reader has them, and its unpadded inputs."""

    name: str
    text: str | None
    label: str | None
    inputs: Mapping[str, NDArray[Any]]


Lengths = Mapping[str, tuple[int, ...]]
"""Lengths by axis."""

ENOUGH = 16
"""A bucket with fewer samples of its own is measured on shorter ones, too: a figure from a few samples says little."""


@dataclass(frozen=True)
class HeldOut:
    """The samples for one bucket, each also as the original takes it (`given`), and padded to the bucket (`padded`).

    The last `shorter` of them belong to smaller buckets. `inexact` counts samples that were left out: the truth is
    `exact`, and they would need padding.
    """

    samples: tuple[ScoredSample, ...]
    given: tuple[Arrays, ...]
    padded: tuple[Arrays, ...]
    shorter: int = 0
    inexact: int = 0


def held_out(folder: Path, params: Measuring, inputs: Sequence[TensorSpec]) -> HeldOut:
    """The samples that a bucket is the smallest for, and if they are fewer than ENOUGH the longest of shorter ones.

    If all of its own have exactly its lengths, no shorter ones are added: then nothing is padded in use, and padding
    may be wrong. With an `exact` truth, there are only samples of exactly its lengths. With a `padded` truth, the
    original takes the padded samples, too. `folder` is the output of a samples step.

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
    """For each axis of the bucket, the lengths of all samples of the set, the shortest first, whatever bucket they fit.

    The same place of all axes is one combination of lengths, and each combination is there once. Samples of calibration
    are among them, as a user who builds exact lengths needs to know all that occur.
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
    """The held-out samples of a bucket, made from samples that fit into it."""
    padded = tuple(pad(sample.inputs, inputs, params.axes, params.padding) for sample in samples)
    given = padded if params.truth == "padded" else tuple(sample.inputs for sample in samples)
    return HeldOut(tuple(samples), given, padded, shorter, inexact)


def _is_exact(sample: ScoredSample, inputs: Sequence[TensorSpec], axes: Mapping[str, int]) -> bool:
    lengths = axis_lengths(sample.inputs, inputs)
    return bool(axes) and all(lengths.get(axis, size) == size for axis, size in axes.items())


def _loaded(call: StoredCall) -> ScoredSample:
    return ScoredSample(call.name, call.sample.text, call.sample.label, call.load())
