"""Ranges over a calibration set: every float value, merged over the samples and buckets of a component."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from onnx import TensorProto

from pipeline.errors import CalibrationError
from pipeline.graph.cpu import Arrays
from pipeline.graph.encodings import MIN_WIDTH, Range
from pipeline.graph.model_file import WEIGHTS, external_range, is_external
from pipeline.graph.observe import FLOATS, Observer
from pipeline.graph.traverse import label

FILLER_LIMIT = 1e30
"""A value this large was written into the model, not computed from data."""

_STILL = 1e-6
"""An input that moves by less, relative to its size, does not vary."""


class Calibration:
    """What has been measured so far. Add all samples and every bucket's constants, then ask for the ranges."""

    def __init__(self) -> None:
        self._ranges: dict[str, Range] = {}
        self._inputs: dict[str, Range] = {}
        self._constants: dict[str, dict[str, Range]] = {}
        self._samples = 0

    def add(self, observer: Observer, feeds: Arrays, *, where: str) -> None:
        """Measure one sample, padded to the observer's bucket.

        Raises:
            CalibrationError: a value is NaN, infinite, or as large as a mask's filler; `where` names sample and bucket.
        """
        observed = observer.observe(feeds)
        for name in observer.names:
            if name in observed:
                self._check(name, observed[name], observer, where)
        _merge(self._ranges, observed)
        _merge(self._inputs, {name: Range.of(feeds[name]) for name in observer.inputs})
        self._samples += 1

    def add_constants(self, observer: Observer) -> None:
        """Note a bucket's float constants that a stage computed, since they may differ from bucket to bucket."""
        for name, tensor in observer.index.initializers.items():
            if tensor.data_type in FLOATS and not _came_with_the_model(tensor):
                array = observer.index.constant(name)
                if array is not None and array.size:
                    digest = hashlib.sha256(repr(array.shape).encode() + array.tobytes()).hexdigest()
                    self._constants.setdefault(name, {})[digest] = Range.of(array)

    def ranges(self, observers: Mapping[str, Observer]) -> dict[str, Range]:
        """The merged range of every float value of all buckets, and of every constant that differs between buckets.

        Zero is in each. A constant that is the same everywhere has no entry: its own values give its encoding.

        Raises:
            CalibrationError: an input that never varied makes a value constant, or no sample reached a value.
        """
        found = dict(self._ranges)
        for name, variants in self._constants.items():
            if len(variants) > 1 or name in found:
                for variant in variants.values():
                    _merge(found, {name: variant})
        found = {name: measured.with_zero() for name, measured in found.items()}
        for bucket, observer in observers.items():
            missing = [name for name in observer.names if name not in found]
            if missing:
                raise _unreached(bucket, missing[0], observer)
            self._check_variation(observer, found)
        return found

    def _check(self, name: str, measured: Range, observer: Observer, where: str) -> None:
        if measured.finite and max(-measured.low, measured.high) < FILLER_LIMIT:
            return
        node = observer.index.makers.get(name)
        spelled = f"from {measured.low:.4g} to {measured.high:.4g}"
        raise CalibrationError(
            f"value {name!r} ranges {spelled} and can't be quantized",
            where=f"{f'node {label(node)}' if node is not None else 'an input of the model'}, {where}",
            why="it is the first in the graph to do so; next to a value this large all others round to nothing",
            remedy="if it is an attention mask, export the model with a filler such as -100;"
            " if not, look for a log or a division by zero, or quantize with {precision: fp16}",
        )

    def _check_variation(self, observer: Observer, ranges: Mapping[str, Range]) -> None:
        still = {name for name, measured in self._inputs.items() if _is_still(measured)}
        sources = observer.sources()
        for name in observer.names:
            depends = sources[name]
            if ranges[name].width < MIN_WIDTH and depends and depends <= still:
                raise self._never_varies(name, sorted(depends), observer)

    def _never_varies(self, name: str, inputs: list[str], observer: Observer) -> CalibrationError:
        values = ", ".join(f"{given!r} is {self._inputs[given].low:g}" for given in inputs)
        node = observer.index.makers.get(name)
        where = f"value {name!r}" + (f" of node {label(node)}" if node is not None else "")
        return CalibrationError(
            f"the calibration set never varies an input: {values} throughout",
            where=f"{where}, which is {self._ranges[name].low:g} in all {self._samples} samples",
            why="an encoding made from that holds no other value: on the device the input would have no effect",
            remedy="add samples in which it varies: every step of a loop; for a mask, a sample shorter than its bucket",
        )


def _merge(ranges: dict[str, Range], more: Mapping[str, Range]) -> None:
    for name, measured in more.items():
        ranges[name] = ranges[name] | measured if name in ranges else measured


def _came_with_the_model(tensor: TensorProto) -> bool:
    return is_external(tensor) and external_range(tensor).location == WEIGHTS


def _is_still(measured: Range) -> bool:
    return measured.width <= _STILL * max(abs(measured.low), abs(measured.high))


def _unreached(bucket: str, name: str, observer: Observer) -> CalibrationError:
    node = observer.index.makers.get(name)
    return CalibrationError(
        f"no sample measured value {name!r} of bucket {bucket}",
        where=f"node {label(node)}" if node is not None else "an input of the model",
        why="no sample is of a length that this bucket is the smallest for, and the other buckets don't have the value",
        remedy=f"add a sample of a length that belongs to bucket {bucket}, or take the bucket out",
    )
