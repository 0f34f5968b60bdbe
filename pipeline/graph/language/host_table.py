"""A table of embeddings on the host: a graph takes rows of it in place of tokens.

    input_ids [1, AR] -> Gather(table) -> residual         inputs_embeds [1, AR, hidden] -> residual

The table is a file beside the graphs, uint16 [vocabulary, hidden], little-endian, row by row, in the encoding of the
graphs' input: whoever runs a graph copies a row for each token and computes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from onnx import helper

from pipeline.contracts.language import LanguageFacts
from pipeline.errors import StoreError
from pipeline.graph.ir.index import GraphIndex, is_op
from pipeline.graph.ir.tensor_chunks import Pieces
from pipeline.graph.language.loop import Arrays
from pipeline.graph.language.names import EMBEDDED, IDS, TABLE

DTYPE = "uint16"
"""Type of a row's elements, and of the graph's input."""
_STORED = np.dtype("<u2")


def take_out(index: GraphIndex) -> str:
    """Let a static float graph take rows where it looked them up; the name of the table that they are of.

    The index is out of date afterwards. What else reads the table, as a tied head does, still has it.
    """
    graph = index.model.graph
    (look_up,) = index.readers[IDS]
    assert is_op(look_up, "Gather"), "a language model looks its tokens up, and nothing else"
    table, rows = str(look_up.input[0]), look_up.output[0]
    for node in graph.node:
        node.input[:] = [EMBEDDED if name == rows else name for name in node.input]
    graph.node.remove(look_up)
    for value in graph.input:
        if value.name == IDS:
            value.CopyFrom(helper.make_value_info(EMBEDDED, index.types[rows]))
    kept = [value for value in graph.value_info if value.name != rows]
    del graph.value_info[:]
    graph.value_info.extend(kept)
    return table


def write_table(rows: Pieces, folder: Path) -> None:
    """Write a table as graphs take its rows, uint16 [vocabulary, hidden], into a folder."""
    with (folder / TABLE).open("wb") as file:
        for piece in rows:
            file.write(piece.astype(_STORED).tobytes())


def rows_of(folder: Path, facts: LanguageFacts) -> Callable[[Arrays], Arrays]:
    """What turns tokens in a graph's inputs into rows: of the table in `folder`, or nothing where there is none.

    Raises:
        StoreError: the table is of another size than the model's.
    """
    path, shape = folder / TABLE, (facts.vocabulary, facts.hidden)
    if not path.is_file():
        return lambda feed: feed
    wanted = shape[0] * shape[1] * _STORED.itemsize
    if path.stat().st_size != wanted:
        raise StoreError(
            f"{TABLE} has {path.stat().st_size} bytes",
            where=str(path),
            why=f"{shape[0]} tokens have {shape[1]} numbers of 16 bits each, {wanted} bytes",
            remedy="build again",
        )
    table: NDArray[np.uint16] = np.memmap(path, _STORED, "r", shape=shape)

    def looked_up(feed: Arrays) -> Arrays:
        rest = {name: array for name, array in feed.items() if name != IDS}
        return {EMBEDDED: np.ascontiguousarray(table[feed[IDS]], np.uint16), **rest}

    return looked_up
