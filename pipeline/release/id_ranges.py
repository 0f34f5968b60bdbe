"""Finds the range of an input that holds ids, in which a context looks up the rows that ONNX says.

As ONNX says, an id below 0 counts from the end of the table. HTP (2.51, emulated) does so only in float16, in a table
of floats, with ids of int64. In integers, an id below 0 or beyond the table gives a row of the encoding's lowest number
without an error. The run fails for such ids of int32, and in float16 for ids beyond either end of the table.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from pipeline.contracts.ingest import Table
from pipeline.contracts.values import TensorSpec
from pipeline.model import Json
from pipeline.release.index import RANGE


def with_ranges(
    inputs: Sequence[TensorSpec],
    tables: Mapping[str, Table],
    in_float: Collection[str] | None,
    rewrites: Collection[str],
) -> list[Json]:
    """The inputs as JSON, with the range `[least, most]` of those that hold ids.

    `tables` has the tables of these inputs, `in_float` the nodes that compute in float (None: all do), and `rewrites`
    the rewrites that were applied.
    """
    found: list[Json] = []
    for given in inputs:
        table = tables.get(given.name)
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
