"""Integer outputs that an ArgMax, an ArgMin or a TopK makes: what it chose from tells whether another would do as well.

HTP gives the indices of equal values in another order than ONNX, and equal are those that a format can't tell apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.graph.accuracy.figures.accuracy import Outputs
from pipeline.graph.accuracy.figures.trace import TracedModel
from pipeline.graph.cpu import Arrays, run
from pipeline.graph.ir.attributes import integer
from pipeline.graph.ir.index import GraphIndex, is_op
from pipeline.graph.ir.ops import VIEWS


@dataclass(frozen=True)
class ChosenFrom:
    """The source of a choice: the `value`, and the axis; `places` of the k that come first, or the largest."""

    value: str
    axis: int
    places: bool = False


def chosen_outputs(index: GraphIndex) -> dict[str, ChosenFrom]:
    """The outputs that are the places of what is largest or smallest, and what they were chosen from."""
    found = {}
    for output in index.outputs:
        name = output
        while (node := index.makers.get(name)) is not None and is_op(node, "Cast", *VIEWS):
            name = node.input[0]
        if node is not None and is_op(node, "ArgMax") and not integer(node, "select_last_index"):
            found[output] = ChosenFrom(node.input[0], integer(node, "axis"))
        elif node is not None and is_op(node, "ArgMax", "ArgMin"):
            found[output] = ChosenFrom(node.input[0], integer(node, "axis"), places=True)
        elif node is not None and is_op(node, "TopK") and name == node.output[1]:
            found[output] = ChosenFrom(node.input[0], integer(node, "axis", -1), places=True)
    return found


def as_good(
    values: NDArray[Any], axis: int, tie: float, expected: NDArray[Any], actual: NDArray[Any]
) -> NDArray[np.bool_]:
    """Where the element of `values` at an actual place is as good as that at the expected one: nearer than `tie`.

    Places are int, of the shape of `values` but for `axis`, or another with the same elements in the same order. One
    that is there a second time is not as good.
    """
    apart = np.moveaxis(values, axis, -1)
    shape = (*apart.shape[:-1], -1)
    turned = [_along_last(places, values.shape, axis) for places in (expected, actual)]
    right, found = (places.reshape(shape).astype(np.int64) for places in turned)
    valid = (found >= 0) & (found < apart.shape[-1])
    taken = [np.take_along_axis(apart, np.where(valid, places, 0), -1) for places in (right, found)]
    with np.errstate(invalid="ignore"):  # of masked scores both are infinite
        near = (taken[0] == taken[1]) | (np.abs(taken[0].astype(np.float64) - taken[1]) < tie)
    good = near & valid & ~_again(found)
    return np.asarray(np.moveaxis(good, -1, axis).reshape(expected.shape))


def _again(places: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Where a place is in its row already."""
    order = np.argsort(places, -1, kind="stable")
    ordered = np.take_along_axis(places, order, -1)
    again = np.zeros(places.shape, np.bool_)
    repeats = np.concatenate([again[..., :1], ordered[..., 1:] == ordered[..., :-1]], -1)
    np.put_along_axis(again, order, repeats, -1)
    return again


def _along_last(places: NDArray[Any], shape: Sequence[int], axis: int) -> NDArray[Any]:
    """Places as an array whose last axis is the one along which they were found."""
    whole = list(shape)
    whole[axis] = -1
    return np.moveaxis(places.reshape(whole), axis, -1)


def values_of(path: Path, names: Sequence[str], feeds: Sequence[Arrays]) -> list[Outputs]:
    """These values of a model for each sample; nothing for no names."""
    if not names:
        return [{} for _ in feeds]
    session = TracedModel(path).session(names)
    return [run(session, feed) for feed in feeds]
