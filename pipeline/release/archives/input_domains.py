"""Finds the domain of an input: the numbers for which a context was shown to give what the model gives.

Of floats that is the range that calibration saw, or what float16 holds, and whether the model itself replaces a NaN.
Of ids it is the range in which a context looks up the rows that ONNX says.

As ONNX says, an id below 0 counts from the end of the table. HTP (2.51, emulated) does so only in float16, in a table
of floats, with ids of int64. In integers, an id below 0 or beyond the table gives a row of the encoding's lowest number
without an error. The run fails for such ids of int32, and in float16 for ids beyond either end of the table.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from pipeline.contracts.ingest import Table
from pipeline.contracts.values import TensorSpec
from pipeline.model import Json
from pipeline.release.archives.index import NAN, RANGE, SEEN

_FLOATS = ("float16", "float32")
_LARGEST = 65504.0
"""The largest number of float16."""


def with_domains(
    inputs: Sequence[TensorSpec],
    tables: Mapping[str, Table],
    in_float: Collection[str] | None,
    rewrites: Collection[str],
    seen: Mapping[str, tuple[float, float]],
    takes_nan: Collection[str],
) -> list[Json]:
    """The inputs as JSON, with the range `[least, most]` of those that hold ids, and the domain of floats.

    `tables` has the tables of these inputs, `in_float` the nodes that compute in float (None: all do), and `rewrites`
    the rewrites that were applied. `seen` has the ranges of calibration, none for an input that only stays in float.
    """
    found: list[Json] = []
    for given in inputs:
        table = tables.get(given.name)
        if given.dtype in _FLOATS:
            ends: list[Json] = [*seen.get(given.name, (-_LARGEST, _LARGEST))]
            found.append({**given.to_json(), SEEN: ends, NAN: given.name in takes_nan})
            continue
        if table is None:
            found.append(given.to_json())
            continue
        counted = (
            given.dtype == "int64"
            and table.floats  # in a table of integers no build counts from the end
            and (in_float is None or {*table.nodes} <= {*in_float})
            and "add_spare_rows" not in rewrites  # an id from the end would look up a spare row
        )
        found.append({**given.to_json(), RANGE: [-table.rows if counted else 0, table.rows - 1]})
    return found
