"""The subjects of the ladder: an output or a slice of one, judged by its values or by its decisions.

One figure over numbers of different units says nothing of the small ones: next to boxes in pixels, scores could be
noise. So what a Concat puts side by side is judged apart where magnitudes differ by more than 100, or where some of it
lies between 0 and 1 and the rest does not, unless a config says how. Magnitudes alone do not tell: a channel that is
quiet next to others of its kind is no unit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.contracts.measures import Declared, Subject
from pipeline.errors import ConfigError
from pipeline.graph.accuracy.figures.accuracy import Outputs
from pipeline.graph.accuracy.figures.choices import ChosenFrom
from pipeline.graph.accuracy.figures.decisions import CLEAR, choice_axis
from pipeline.graph.accuracy.figures.output_structure import NOTHING_KNOWN, Makeup, Part
from pipeline.graph.accuracy.figures.slices import parts_of, spelled
from pipeline.plain_text import did_you_mean

APART = 100.0
"""Parts whose magnitudes differ by more are of different units: 40 dB, twice what a build asks for by default."""
_CLEAR_SHARE = 0.2
"""Shares of a whole, of which none ever reaches this, are all small: an absolute error says nothing of them."""
TIE = 0.1
"""A choice is a tie if the runner-up is nearer than so much of the values' RMS: the error that 20 dB allow."""


def choose(
    truth: Sequence[Outputs],
    makeup: Mapping[str, Makeup],
    declared: Mapping[str, Declared],
    where: str,
    *,
    choices: Mapping[str, ChosenFrom] | None = None,
    chosen_from: Sequence[Outputs] = (),
) -> dict[str, Subject]:
    """The subjects by label: those that are `declared`, and each other output, in parts if its units differ.

    `truth` has the original's outputs for each sample, `chosen_from` the values that `choices` names; `where` says what
    a mistake in `declared` is in.

    Raises:
        ConfigError: `declared` names an output that is not there, or a slice that does not fit it.
    """
    found = {label: _declared(label, entry, truth, makeup, where) for label, entry in declared.items()}
    chosen = dict(found)
    for output in truth[0]:
        slices = [subject.slice for subject in found.values() if subject.output == output]
        if not slices and choices and output in choices:
            of = choices[output]
            tie = _tie(None, [sample[of.value] for sample in chosen_from])
            chosen[output] = Subject(
                output, by="equality", axis=of.axis, tie=tie, chosen_from=of.value, places=of.places or None
            )
        elif not slices:
            chosen |= _by_default(output, [sample[output] for sample in truth], makeup.get(output, NOTHING_KNOWN))
        elif "" not in slices and _leaves_something(slices, truth[0][output]):
            rest = Subject(output, without=tuple(slices))
            chosen[f"{output} (rest)"] = _by_kind(rest, truth[0][output], makeup.get(output, NOTHING_KNOWN))
    return chosen


def part_of(subject: Subject, outputs: Outputs) -> NDArray[Any]:
    """The part of one sample's outputs that a subject is about; integers that are numbers become float64."""
    array = outputs[subject.output]
    if subject.zero is not None:
        array = array.astype(np.float64) - subject.zero
    if subject.without:
        kept = np.ones(array.shape, np.bool_)
        for text in subject.without:
            kept[parts_of(text, array.shape)] = False
        return np.asarray(array[kept])
    return np.asarray(array[parts_of(subject.slice, array.shape)]) if subject.slice else array


def quiet_subjects(subjects: Mapping[str, Subject]) -> dict[str, Subject]:
    """The subjects on quieter samples: values alone, as silence has neither decisions nor states."""
    return {
        label: replace(subject, reads=None, state=False)
        for label, subject in subjects.items()
        if subject.by == "values"
    }


def rms(arrays: Sequence[NDArray[Any]]) -> float:
    """The root of the mean square of all finite numbers of these; 0 for none."""
    finite = [array[np.isfinite(array)].astype(np.float64) for array in arrays]
    count = sum(array.size for array in finite)
    return math.sqrt(math.fsum(float(array.ravel() @ array.ravel()) for array in finite) / count) if count else 0.0


def _declared(
    label: str, entry: Declared, truth: Sequence[Outputs], makeup: Mapping[str, Makeup], where: str
) -> Subject:
    there = list(truth[0])
    output = entry.output or (label if label in there or len(there) > 1 else there[0])
    if output not in there:
        raise ConfigError(
            f"there is no output {output!r}{did_you_mean(output, there)}",
            where=f"{where}.{label}",
            why=f"the component's outputs are {', '.join(map(repr, there))}",
            remedy="use the name of an output, or name it with 'output:' beside 'slice:'",
        )
    for sample in truth:
        shape = sample[output].shape
        try:
            parts = parts_of(entry.slice or "...", shape)
        except ValueError as error:
            raise ConfigError(str(error), where=f"{where}.{label}.slice", remedy="correct the slice") from None
    rank = len([part for part in parts if isinstance(part, slice)])
    if entry.choice is not None and not -rank <= entry.choice < rank:
        raise ConfigError(
            f"output {output!r} has no axis {entry.choice}",
            where=f"{where}.{label}.choice",
            why=f"what is judged of it has {rank} dims",
            remedy="give the axis along which the largest is chosen; -1 is the last",
        )
    array = truth[0][output]
    subject = Subject(
        output, entry.slice or "", bounded=_is_bounded(makeup.get(output, NOTHING_KNOWN), parts, array.shape)
    )
    if entry.choice is None:
        return _by_kind(subject, array, makeup.get(output, NOTHING_KNOWN))
    arrays = [part_of(subject, sample) for sample in truth]
    return Subject(output, entry.slice or "", by="choice", axis=entry.choice, tie=_tie(entry.tie, arrays))


def _by_kind(subject: Subject, array: NDArray[Any], makeup: Makeup) -> Subject:
    """A subject of values; of integers by their equality, unless they are rounded numbers."""
    if array.dtype.kind not in "biu":
        return subject
    return replace(subject, zero=makeup.zero) if makeup.zero is not None else replace(subject, by="equality")


def _tie(given: float | None, arrays: Sequence[NDArray[Any]]) -> float:
    return given if given is not None else float(format(TIE * rms(arrays), ".3g"))


def _is_bounded(makeup: Makeup, parts: Sequence[int | slice], shape: Sequence[int]) -> bool:
    if not makeup.parts:
        return makeup.bounded and not makeup.shares
    part, size = parts[makeup.axis], shape[makeup.axis]
    taken = {part % size} if isinstance(part, int) else {*range(*part.indices(size))}
    return taken <= {place for each in makeup.parts if each.bounded for place in range(each.start, each.stop)}


def _leaves_something(slices: Sequence[str], array: NDArray[Any]) -> bool:
    left = np.ones(array.shape, np.bool_)
    for text in slices:
        left[parts_of(text, array.shape)] = False
    return bool(left.any())


def _by_default(output: str, arrays: Sequence[NDArray[Any]], makeup: Makeup) -> Iterator[tuple[str, Subject]]:
    if arrays[0].dtype.kind in "biu":
        yield output, _by_kind(Subject(output), arrays[0], makeup)
    elif makeup.state:
        # h and c have units of their own.
        slices = [_slice(part, arrays, makeup.axis) for part in _fitting(arrays, makeup)]
        for text in slices if len(slices) > 1 else [""]:
            yield f"{output}[{text}]" if text else output, Subject(output, text, state=True)
    elif makeup.bounded:
        clear = max(float(array.max(initial=0.0)) for array in arrays) >= _CLEAR_SHARE
        yield output, _read(Subject(output, bounded=clear or not makeup.shares), makeup, arrays)
    else:
        units = _units(arrays, makeup)
        if len(units) < 2:
            yield output, _read(Subject(output), makeup, arrays)
        for unit in units if len(units) > 1 else ():
            text = _slice(unit, arrays, makeup.axis)
            yield (
                f"{output}[{text}]",
                Subject(output, text, bounded=unit.bounded, reads="level" if unit.bounded else None),
            )


def _read(subject: Subject, makeup: Makeup, arrays: Sequence[NDArray[Any]]) -> Subject:
    """A subject with what an application reads off it: the likeliest, a level, the largest of a classifier's scores."""
    axis = choice_axis(arrays)
    if axis is not None:
        return replace(subject, reads="likeliest", axis=axis, tie=CLEAR)
    if makeup.bounded and not makeup.shares:
        return replace(subject, reads="level")
    if makeup.classes:
        axes = [axis for axis, size in enumerate(arrays[0].shape) if size == makeup.classes]
        if len(axes) == 1 and makeup.classes > 1:
            return replace(subject, reads="largest", axis=axes[0], tie=_tie(None, arrays))
    return subject


def _slice(part: Part, arrays: Sequence[NDArray[Any]], axis: int) -> str:
    stop = part.stop if part.stop < arrays[0].shape[axis] else None
    return spelled([*[slice(None)] * axis, slice(part.start or None, stop)])


def _fitting(arrays: Sequence[NDArray[Any]], makeup: Makeup) -> Sequence[Part]:
    """The parts of an output; none where the output is longer than they are."""
    size = makeup.parts[-1].stop if makeup.parts else 0
    fits = all(array.ndim > makeup.axis and array.shape[makeup.axis] == size for array in arrays)
    return makeup.parts if fits else ()


def _units(arrays: Sequence[NDArray[Any]], makeup: Makeup) -> list[Part]:
    """The parts of an output, neighbours of one magnitude joined."""
    units: list[tuple[Part, float]] = []
    for part in _fitting(arrays, makeup):
        loud = rms([array[(*[slice(None)] * makeup.axis, slice(part.start, part.stop))] for array in arrays])
        if units and units[-1][0].bounded == part.bounded and not _apart(units[-1][1], loud):
            before, louder = units[-1]
            units[-1] = (Part(before.start, part.stop, part.bounded), max(louder, loud))
        else:
            units.append((part, loud))
    loudness = [loud for _, loud in units]
    kinds = {part.bounded for part, _ in units}
    return [part for part, _ in units] if len(kinds) > 1 or (units and _apart(min(loudness), max(loudness))) else []


def _apart(one: float, other: float) -> bool:
    """Whether two magnitudes are of different units; what is silent is of any."""
    low, high = sorted((one, other))
    return low > 0 and high > APART * low
