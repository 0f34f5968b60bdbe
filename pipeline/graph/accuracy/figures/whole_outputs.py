"""Integer outputs that are whole numbers in the float model already: labels, ids, counts that a last Cast hands out.

What a Cast or a Round makes of fractions, as the pixels of a picture, is right within a step, and judged as a number.
Where everything that is rounded on the way to an output is whole in all samples, nothing was to be rounded: 4 for 5 is
another label then, so those are compared for equality.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.graph.accuracy.figures.output_structure import Makeup
from pipeline.graph.accuracy.figures.trace import TracedModel
from pipeline.graph.cpu import Arrays, run
from pipeline.graph.ir.index import WHOLE, GraphIndex, element_type, is_float, is_op

_ROUNDS = ("Ceil", "Floor", "Round")


def without_whole(makeup: Mapping[str, Makeup], path: Path, feeds: Sequence[Arrays]) -> dict[str, Makeup]:
    """`makeup` of the outputs of a static model, in which what is whole in all these samples is no rounded number.

    Without samples nothing is known of any.
    """
    numbers = [name for name, known in makeup.items() if known.zero is not None]
    if not numbers or not feeds:
        return dict(makeup)
    traced = TracedModel(path)
    rounded = {name: _rounded(traced.index, name) for name in numbers}
    # An output with QuantizeLinear is made of fractions; the others are looked at until one shows.
    waiting = {name: values for name, values in rounded.items() if values}
    wanted = sorted({value for values in waiting.values() for value in values} - traced.inputs)
    session = traced.session(wanted) if wanted else None
    for feed in feeds:
        if not waiting:
            break
        found = {**feed, **(run(session, feed) if session is not None else {})}
        waiting = {name: values for name, values in waiting.items() if all(_is_whole(found[each]) for each in values)}
    return {name: replace(known, zero=None) if name in waiting else known for name, known in makeup.items()}


def _rounded(index: GraphIndex, output: str) -> frozenset[str]:
    """The floats that are rounded on the way to an output; none where a QuantizeLinear does it."""
    waiting, seen, found = [output], {output}, set[str]()
    while waiting:
        node = index.makers.get(waiting.pop())
        if node is None:
            continue
        if is_op(node, "QuantizeLinear", "DynamicQuantizeLinear"):
            return frozenset()
        given = str(node.input[0]) if node.input else ""
        casts = is_op(node, "Cast") and element_type(index, node.output[0]) in WHOLE
        if given not in index.initializers and is_float(index, given) and (casts or is_op(node, *_ROUNDS)):
            found.add(given)
        new = [name for name in node.input if name and name not in seen]
        waiting += new
        seen.update(new)
    return frozenset(found)


def _is_whole(array: NDArray[Any]) -> bool:
    return bool(np.isfinite(array).all() and (array == np.rint(array)).all())
