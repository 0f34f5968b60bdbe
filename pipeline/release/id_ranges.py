"""What an input that is ids may be, so that a context takes the row that ONNX says.

HTP (2.51, emulated) counts from the end of a table of floats in float16 alone, and of ids of int64 alone. In integers
it makes the lowest number of the encoding of all of a row, of negative ids and of those beyond the table, without an
error; of int32, and in float16 beyond either end, the run fails.
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
    """Inputs as JSON, those that are ids with their range: `[least, most]`.

    `in_float` are the nodes that compute in float, None if all do; `rewrites` were applied.
    """
    found: list[Json] = []
    for given in inputs:
        table = tables.get(given.name)
        if table is None:
            found.append(given.to_json())
            continue
        counted = (
            given.dtype == "int64"
            and table.floats  # of integers it counts from the end in no build
            and (in_float is None or {*table.nodes} <= {*in_float})
            and "add_spare_rows" not in rewrites  # they stand where an id from the end would look
        )
        found.append({**given.to_json(), RANGE: [-table.rows if counted else 0, table.rows - 1]})
    return found
