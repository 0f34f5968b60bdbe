"""Where in a graph two models begin to differ, value by value, and why."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.contracts.blame import RowFacts
from pipeline.contracts.measures import Reason
from pipeline.graph.accuracy.blame.reasons import COMPILE, PADDING
from pipeline.graph.accuracy.figures.accuracy import valid_region
from pipeline.graph.accuracy.figures.trace import View, side_by_side
from pipeline.graph.accuracy.figures.value_errors import ValueSums
from pipeline.graph.ir.index import GraphIndex
from pipeline.graph.ir.traverse import label, reads
from pipeline.graph.quantization.calibration.ranges import Range
from pipeline.graph.quantization.qdq.qdq_model import Encoding
from pipeline.ladder import EXACT_DB

MOST_NAMED = 5
"""How many of the first wrong values are named."""


@dataclass(frozen=True)
class Row:
    """The measurement of one value; `value` and `inputs` are names in the float model.

    SQNR in dB, None for what is no number: `sqnr_db` with all errors up to here, `own_db` what the value's encoding
    loses of the exact value, `weights_db` what the node's quantized constants do to it (both None if there are none).
    `inputs` are the nearest values before it that were measured too. `observed` is the range of the exact value on
    these samples, `calibrated` that of the calibration set. `reason` explains `sqnr_db`, `local` the worse of `own_db`
    and `weights_db`.
    """

    value: str
    node: str
    op: str
    inputs: tuple[str, ...]
    sqnr_db: float | None
    observed: Range
    own_db: float | None = None
    weights_db: float | None = None
    encoding: Encoding | None = None
    calibrated: Range | None = None
    reason: Reason | None = None
    local: Reason | None = None

    @property
    def local_db(self) -> float:
        """The loss at this value alone, by its encoding and the node's constants; infinite if there is none."""
        if self.sqnr_db is None:
            return -math.inf
        noises = [10 ** (-db / 10) for db in (self.own_db, self.weights_db) if db is not None]
        return -10 * math.log10(sum(noises)) if sum(noises) else math.inf

    def line(self) -> str:
        """One line for a message: ``'h' 12.3 dB, node 'Add_17' (Add): outlier range: ...``."""
        found = "no number" if self.sqnr_db is None else f"{self.sqnr_db:.1f} dB"
        why = f": {self.reason.name}: {self.reason.text}" if self.reason else ""
        return f"{self.value!r} {found}, {self.node}{why}"

    def facts(self) -> RowFacts:
        """The same as a step tells it, rounded."""
        return RowFacts(
            value=self.value,
            node=self.node,
            op=self.op,
            sqnr_db=_rounded(self.sqnr_db),
            own_db=_rounded(self.own_db),
            weights_db=_rounded(self.weights_db),
            encoding=self.encoding.facts() if self.encoding else None,
            observed=_pair(self.observed),
            calibrated=_pair(self.calibrated) if self.calibrated else None,
            reason=self.reason,
            local=self.local,
        )


def compare_values(rung: str, above: View, below: View, shapes: View | None = None) -> list[Row]:
    """The values that two float models both have, in the order of the one below.

    Only what all models have of a value is compared, from the first element of each dim: the model above, or that of
    `shapes`, runs unpadded samples. Values of another rank are left out. `rung` says which reasons may apply.
    """
    graph = below.traced
    values = [value for value in graph.floats() if above.has(value) and value in graph.index.makers]
    sums = measured(values, {}, above, below, shapes, None)
    before = nearest(graph.index, sums)
    told: Mapping[str, str] = {"padding": PADDING, "compile": COMPILE}.get(rung, {})
    rows = []
    for value, found in sums.items():
        node = graph.index.makers[value]
        exact = found.total_db is not None and found.total_db >= EXACT_DB
        text = None if exact else told.get(node.op_type)
        reason = Reason(rung, text.format(given=node.input[0])) if text else None
        rows.append(Row(value, label(node), node.op_type, before[value], found.total_db, found.observed, reason=reason))
    return rows


def ranked(rows: Iterable[Row]) -> list[Row]:
    """Rows by what is lost at the value itself, the worst first."""
    return sorted(rows, key=lambda row: row.local_db)


def first_wrong(rows: Sequence[Row], threshold_db: float) -> list[Row]:
    """The first values that went wrong, in the graph's order: under the threshold, and no input of the node was.

    Left out is a value whose error goes no further: all that is made from it is right, as with masked elements, or
    with elements that lie elsewhere in a padded model. Where errors of several values add up, the reason names the
    one that adds most.
    """
    wrong = {row.value for row in rows if row.sqnr_db is None or row.sqnr_db < threshold_db}
    readers: dict[str, list[str]] = {}
    for row in rows:
        for name in row.inputs:
            readers.setdefault(name, []).append(row.value)
    found = []
    for row in rows:
        spreads = row.value not in readers or any(reader in wrong for reader in readers[row.value])
        if row.value in wrong and spreads and wrong.isdisjoint(row.inputs):
            found.append(row)
    by_value = {row.value: row for row in rows}
    return [_with_origin(row, by_value) for row in found[:MOST_NAMED]]


def _with_origin(row: Row, rows: Mapping[str, Row]) -> Row:
    """The row; if its errors came from before, with where most of them did."""
    if row.reason is None or row.reason.name != "inherited":
        return row
    before: dict[str, None] = {}
    waiting = list(row.inputs)
    while waiting:
        name = waiting.pop()
        if name not in before:
            before[name] = None
            waiting += rows[name].inputs
    origin = min((rows[name] for name in before), key=lambda each: each.local_db, default=None)
    if origin is None or origin.reason is None or math.isinf(origin.local_db):
        return row
    most = f"errors before it add up; the most, {origin.local_db:.1f} dB, is from {origin.value!r}, {origin.node}"
    return replace(row, reason=Reason("inherited", most))


def measured(
    values: Sequence[str],
    encodings: Mapping[str, Encoding | None],
    above: View,
    below: View,
    shapes: View | None,
    twins: View | None,
) -> dict[str, ValueSums]:
    """Sums over all samples of each value that can be compared."""
    sums = {value: ValueSums(encodings.get(value)) for value in values}
    # Shapes come first: what is kept of them is nothing, and a model takes most memory while it runs.
    views = [*([replace(shapes, hollow=True)] if shapes else []), above, below, *([twins] if twins else [])]
    for value, _, arrays in side_by_side(views, values):
        valid = arrays[0] if shapes else None
        expected, actual = arrays[1:3] if shapes else arrays[:2]
        _add(sums[value], expected, actual, arrays[-1] if twins else None, valid)
        del arrays, expected, actual  # the next value is made while these would still be there
    return {value: found for value, found in sums.items() if not found.empty}


def _add(
    sums: ValueSums,
    expected: NDArray[Any] | None,
    actual: NDArray[Any] | None,
    weighted: NDArray[Any] | None,
    valid: NDArray[Any] | None,
) -> None:
    if expected is None or actual is None or expected.ndim != actual.ndim:
        return
    region = np.minimum(expected.shape, actual.shape)
    if valid is not None and valid.ndim == expected.ndim:
        region = np.minimum(region, valid.shape)
    shape = tuple(int(size) for size in region)
    sums.add(
        valid_region(expected, shape),
        valid_region(actual, shape),
        None if weighted is None else valid_region(weighted, shape),
    )


def nearest(index: GraphIndex, values: Collection[str]) -> dict[str, tuple[str, ...]]:
    """For each measured value, the measured ones that it is made from with none between."""
    known: dict[str, dict[str, None]] = {}
    for node in index.model.graph.node:
        found: dict[str, None] = {}
        for name in reads(node):
            found |= {name: None} if name in values else known.get(name, {})
        known |= {name: found for name in node.output if name}
    return {value: tuple(known.get(value, {})) for value in values}


def _pair(values: Range) -> tuple[float, float]:
    return float(f"{values.low:.6g}"), float(f"{values.high:.6g}")


def _rounded(db: float | None) -> float | None:
    return None if db is None else round(db, 2)
