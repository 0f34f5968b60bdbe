"""Ranges over a calibration set: every float value, merged over the samples and buckets of a component."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Mapping

import numpy as np
from onnx import NodeProto, TensorProto

from pipeline.errors import CalibrationError
from pipeline.graph.cpu import Arrays
from pipeline.graph.files.model_file import CONSTANTS, REWRITTEN, external_range, is_external
from pipeline.graph.ir.index import FLOATS, is_op
from pipeline.graph.ir.traverse import label
from pipeline.graph.quantization.calibration.histogram import Histogram
from pipeline.graph.quantization.calibration.observe import Observer
from pipeline.graph.quantization.calibration.range_choice import MINMAX, OF_STATES, Method
from pipeline.graph.quantization.calibration.ranges import MIN_WIDTH, Range, Ranges
from pipeline.graph.quantization.chip_limits import COUNTED_IN_FLOAT
from pipeline.graph.shapes.cut_points import ends_before
from pipeline.plain_text import cutting

FILLER_LIMIT = 1e30
"""A value this large was written into the model, not computed from data."""

_STILL = 1e-6
"""An input that moves by less, relative to its size, does not vary."""


_NOTHING = 1e-4
"""A range this narrow, zero in it, is that of a value that is always zero."""

_BITS = (8, 16)


class Calibration:
    """What has been measured so far. Add all samples and every bucket's constants, then ask for the ranges.

    Its memory depends on how many values the model has, not on how many samples are added.
    """

    def __init__(self, method: Method = MINMAX, states: Collection[str] = ()) -> None:
        """`states` are values that get the range of the least squared error, whatever the method of all others is."""
        self._method = method
        self._states = frozenset(states)
        self._histograms: dict[str, Histogram] = {}
        self._ranges: dict[str, Range] = {}
        self._inputs: dict[str, Range] = {}
        self._constants: dict[str, dict[str, Range]] = {}
        self._samples = 0

    def add(self, observer: Observer, feeds: Arrays, *, where: str, valid: float = 1.0) -> None:
        """Measure one sample, padded to the observer's bucket; `valid` is the share of it that is no padding.

        Raises:
            CalibrationError: a value is NaN, infinite, or as large as a mask's filler; `where` names sample and bucket.
        """
        observed = {}
        for name, values in observer.arrays(feeds):
            array = observer.without_nan(name, values)
            observed[name] = Range.of(array)
            if self._method_of(name) != MINMAX and observed[name].finite:
                self._histograms.setdefault(name, Histogram()).add(array, valid)
        for name in observer.names:
            if name in observed:
                self._check(name, observed[name], observer, where)
        _merge(self._ranges, observed)
        _merge(self._inputs, {name: Range.of(observer.without_nan(name, feeds[name])) for name in observer.inputs})
        self._samples += 1

    def join(self, other: Calibration) -> None:
        """Take in all that another one has measured, with the same method and states."""
        _merge(self._ranges, other._ranges)
        _merge(self._inputs, other._inputs)
        for name, counts in other._histograms.items():
            self._histograms.setdefault(name, Histogram()).join(counts)
        for name, variants in other._constants.items():
            self._constants.setdefault(name, {}).update(variants)
        self._samples += other._samples

    def takes(self, observer: Observer, feeds: Arrays) -> bool:
        """Whether :meth:`add` would take a sample: whether no value of it is NaN, infinite or as large as a filler."""
        return all(_is_plain(Range.of(observer.without_nan(*each))) for each in observer.arrays(feeds))

    def integers(self, observers: Mapping[str, Observer]) -> dict[str, Range]:
        """The range of every integer value of all buckets that is negative or beyond what float32 counts exactly."""
        found: dict[str, Range] = {}
        for observer in observers.values():
            _merge(found, observer.integers)
        return {name: seen for name, seen in found.items() if seen.low < 0 or seen.high > COUNTED_IN_FLOAT}

    def add_constants(self, observer: Observer) -> None:
        """Note a bucket's float constants that a stage computed, since they may differ from bucket to bucket."""
        for name, tensor in observer.index.initializers.items():
            if tensor.data_type in FLOATS and not _came_with_the_model(tensor):
                array = observer.index.constant(name)
                if array is not None and array.size:
                    digest = hashlib.sha256(repr(array.shape).encode() + array.tobytes()).hexdigest()
                    self._constants.setdefault(name, {})[digest] = Range.of(array)

    def ranges(self, observers: Mapping[str, Observer]) -> Ranges:
        """The merged range of every float value of all buckets, and of every constant that differs between buckets.

        Zero is in each. What was measured is rounded, so that it is the same on every host; constants are the same
        anyway. A constant that is the same everywhere has no entry: its own values give its encoding.

        Raises:
            CalibrationError: an input that never varied makes a value constant, a value varies by less than any
                encoding holds, or no sample reached a value.
        """
        found = {name: measured.rounded() for name, measured in self._ranges.items()}
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
            self._check_width(observer, found)
        return Ranges(found, self._chosen(found))

    def _chosen(self, found: Mapping[str, Range]) -> dict[int, dict[str, Range]]:
        counted = self._histograms.items()
        chosen = {
            bits: {name: self._method_of(name).choose(counts, found[name], bits) for name, counts in counted}
            for bits in _BITS
        }
        # What the method leaves as it was measured need not be said twice.
        return {
            bits: {name: narrowed for name, narrowed in each.items() if narrowed != found[name]}
            for bits, each in chosen.items()
            if any(narrowed != found[name] for name, narrowed in each.items())
        }

    def _method_of(self, name: str) -> Method:
        return OF_STATES if name in self._states else self._method

    def _check_width(self, observer: Observer, ranges: Mapping[str, Range]) -> None:
        for name in observer.names:
            measured = self._ranges.get(name)
            if measured is not None and measured.width > 0 and ranges[name].width < MIN_WIDTH:
                raise _too_narrow(name, measured, observer)

    def _check(self, name: str, measured: Range, observer: Observer, where: str) -> None:
        if _is_plain(measured):
            return
        node = observer.index.makers.get(name)
        spelled = f"from {measured.low:.4g} to {measured.high:.4g}"
        if node is not None and _marks_with_nan(node, observer):
            ends = ends_before(observer.index.model.graph, node, observer.index.initializers)
            raise CalibrationError(
                f"value {name!r} is NaN in places and can't be quantized",
                where=f"node {label(node)}, {where}",
                why="the graph marks with NaN what is not there, and integers have none",
                remedy=cutting(ends) + "export the model with a number such as 0 in its place",
            )
        if node is None and not measured.finite:
            raise CalibrationError(
                f"input {name!r} holds {'NaN' if math.isnan(measured.low) else 'an infinity'}",
                where=where,
                why="an encoding holds numbers alone, and the model does not replace it before it computes with it",
                remedy="give the number that is meant, here and in the application, or export the model with a guard on"
                " the input itself, such as Where(IsNaN(x), 0, x); of infinities HTP can't tell",
            )
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
            if ranges[name].width < _NOTHING and depends and depends <= still:
                raise self._never_varies(name, sorted(depends), observer)

    def _never_varies(self, name: str, inputs: list[str], observer: Observer) -> CalibrationError:
        values = ", ".join(f"{given!r} is {self._inputs[given].low:g}" for given in inputs)
        fixed = ", ".join(f"{given}: {self._inputs[given].low:.9g}" for given in inputs)
        node = observer.index.makers.get(name)
        where = f"value {name!r}" + (f" of node {label(node)}" if node is not None else "")
        among = f"all {self._samples} samples" if self._samples > 1 else "the one sample that there is"
        return CalibrationError(
            f"the calibration set never varies an input: {values} throughout",
            where=f"{where}, which is {self._ranges[name].low:g} in {among}",
            why="an encoding made from that holds no other value: on the device the input would have no effect",
            remedy="add samples in which it varies: every step of a loop; for a mask, a sample shorter than its bucket;"
            f" if it never varies where the model is used, say so in the config: constants: {{{fixed}}}, in lists"
            " where its dims are axes, which then are for 'fixed' and not for 'buckets'",
        )


def _marks_with_nan(node: NodeProto, observer: Observer) -> bool:
    """Whether a node puts a NaN that is a constant where a condition says so."""
    known = [observer.index.constant(name) for name in node.input[1:]] if is_op(node, "Where") else []
    return any(values is not None and np.isnan(values).any() for values in known)


def _is_plain(measured: Range) -> bool:
    return measured.finite and max(-measured.low, measured.high) < FILLER_LIMIT


def _merge(ranges: dict[str, Range], more: Mapping[str, Range]) -> None:
    for name, measured in more.items():
        ranges[name] = ranges[name] | measured if name in ranges else measured


def _came_with_the_model(tensor: TensorProto) -> bool:
    return is_external(tensor) and external_range(tensor).location not in (CONSTANTS, REWRITTEN)


def _is_still(measured: Range) -> bool:
    return measured.width <= _STILL * max(abs(measured.low), abs(measured.high))


def _too_narrow(name: str, measured: Range, observer: Observer) -> CalibrationError:
    node = observer.index.makers.get(name)
    return CalibrationError(
        f"value {name!r} ranges from {measured.low:.4g} to {measured.high:.4g} and would be rounded to nothing",
        where=f"node {label(node)}" if node is not None else "an input of the model",
        why=f"the narrowest range an encoding holds is {MIN_WIDTH:g} wide, and float16 holds no such numbers either",
        remedy="scale the model's inputs up, or export it with its units changed; if the samples are silence or zeros"
        " throughout, add real ones",
    )


def _unreached(bucket: str, name: str, observer: Observer) -> CalibrationError:
    node = observer.index.makers.get(name)
    return CalibrationError(
        f"no sample measured value {name!r} of bucket {bucket}",
        where=f"node {label(node)}" if node is not None else "an input of the model",
        why="no sample is of a length that this bucket is the smallest for, and the other buckets don't have the value",
        remedy=f"add a sample of a length that belongs to bucket {bucket}, or take the bucket out",
    )
