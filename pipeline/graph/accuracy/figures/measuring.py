"""The figures of one rung of the ladder: every subject, over all samples."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.contracts.measures import Figures, Subject
from pipeline.graph.accuracy.figures.accuracy import Accuracy, Outputs, Span
from pipeline.graph.accuracy.figures.choices import as_good
from pipeline.graph.accuracy.figures.decisions import Decisions, chosen_along
from pipeline.graph.accuracy.figures.edges import margins
from pipeline.graph.accuracy.figures.subjects import part_of

Subjects = Mapping[str, Subject]
"""The judged arrays, by label."""
Spans = Mapping[str, tuple[float, float]]
"""The least and the largest value of the truth, by label."""


def measure(
    subjects: Subjects,
    names: Sequence[str],
    truth: Sequence[Outputs],
    tested: Sequence[Outputs],
    *,
    spans: Spans | None = None,
    chosen_from: Sequence[Outputs] = (),
    read: bool = True,
) -> dict[str, Figures]:
    """The figures of each subject over all samples, which have these `names`.

    `spans` is what is known of the truth beyond these samples; `chosen_from` has, for each sample, the values of the
    original that its ArgMax outputs were chosen from.
    Not `read`: what an application reads off them is left out, which takes longest.
    """
    found = {}
    for label, subject in subjects.items():
        known = Span(*spans[label]) if spans and label in spans else Span(0.0, 1.0) if subject.bounded else None
        values, choices = Accuracy(known), Accuracy()
        is_read = read and (subject.reads is not None or subject.by == "choice")
        decisions = Decisions(subject) if is_read else None
        for number, name in enumerate(names):
            expected, actual = part_of(subject, truth[number]), part_of(subject, tested[number])
            if subject.by == "choice":
                values.add(expected, actual, name)
                choices.add(*_choices(subject, expected, actual), name, _ties(subject, expected))
            elif subject.chosen_from and chosen_from:
                of = chosen_from[number][subject.chosen_from]
                values.add(expected, actual, name, _chosen_alike(subject, of, expected, actual))
            else:
                values.add(expected, actual, name)
            if decisions is not None:
                decisions.add(expected, actual, name)
        figures = _joined(values.figures(), choices.figures()) if subject.by == "choice" else values.figures()
        found[label] = dataclasses.replace(figures, agreement=decisions.agreement()) if decisions else figures
    return found


def spans_of(subjects: Subjects, truth: Sequence[Outputs]) -> dict[str, tuple[float, float]]:
    """The range of the truth of each subject that has one."""
    found = {}
    for label, subject in subjects.items():
        span = Span(0.0, 1.0) if subject.bounded else Span()
        for sample in truth:
            span = span.over(part_of(subject, sample))
        if span.low <= span.high:
            found[label] = (span.low, span.high)
    return found


def _choices(subject: Subject, expected: NDArray[Any], actual: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """The choices along the axis."""
    assert subject.axis is not None
    return np.argmax(expected, subject.axis), chosen_along(subject.axis, expected, actual)


def _chosen_alike(
    subject: Subject, values: NDArray[Any], expected: NDArray[Any], actual: NDArray[Any]
) -> NDArray[np.bool_]:
    """Where the places of what was chosen from `values` need not be equal."""
    if not subject.places:
        return _ties(subject, values).reshape(expected.shape)
    assert subject.axis is not None
    assert subject.tie is not None
    return as_good(values, subject.axis, subject.tie, expected, actual)


def _ties(subject: Subject, values: NDArray[Any]) -> NDArray[np.bool_]:
    assert subject.axis is not None
    assert subject.tie is not None
    return np.asarray(margins(values, subject.axis) < subject.tie).squeeze(subject.axis)


def _joined(values: Figures, choices: Figures) -> Figures:
    """The figures of what is chosen, with what the values say of themselves."""
    return dataclasses.replace(
        choices, cosine=values.cosine, max_abs_error=values.max_abs_error, outlier=values.outlier
    )
