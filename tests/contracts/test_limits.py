"""By which figure an output is judged that lies between 0 and 1."""

from __future__ import annotations

import pytest

from pipeline.config.thresholds import Thresholds
from pipeline.contracts.limits import OutputLimits
from pipeline.contracts.measures import Figures, Subject
from pipeline.graph.accuracy.verdict import shortfalls

QUIET = Figures(8.8, 8.8, 8.8, "s", 1.0, 0.0004)
"""Of a probability that is near 0 on all samples: far off in dB, off by nothing."""


@pytest.mark.parametrize(
    ("own", "missed"),
    [
        (OutputLimits(), []),
        (OutputLimits(max_abs_error=0.0001), ["error"]),
        (OutputLimits(total_db=30), ["db", "worst"]),
        (OutputLimits(total_db=8, worst_db=0), []),
        (OutputLimits(compile_db=30), []),
    ],
)
def test_a_figure_in_db_that_is_given_to_an_output_counts(own: OutputLimits, missed: list[str]) -> None:
    limits = Thresholds(outputs={"y": own})
    found = shortfalls("total", {"y": QUIET}, {"y": Subject("y", bounded=True)}, limits)
    assert [each.kind for each in found] == missed
    of_rung = shortfalls("compile", {"y": QUIET}, {"y": Subject("y", bounded=True)}, limits)
    assert [each.kind for each in of_rung] == (["db"] if own.compile_db else ["error"] if own.max_abs_error else [])
