"""Give attention masks a finite, small filler.

Exporters write "ignore this key" as -inf, or as the smallest number of a float type, and add or select it in front of
a Softmax. Quantized, that constant stretches the range of the scores until the scores themselves are one step wide;
as fp16 it becomes an infinity, and infinity minus infinity NaN.

Before::

    Where(mask, scores, -3.4e38) ----------------> Softmax
    Add(scores, Mul(Sub(1, Cast(mask)), -10000)) -> Softmax

After: the same with -100. Softmax gives a key so masked e^-100 of the weight of the others, 0 in every type that HTP
computes in. A row in which every key is ignored has equal weights then, where onnxruntime's Attention makes 0 of it and
a Softmax of -inf NaN: nothing reads the answer to a question that has no keys.

Changed are constants of magnitude :data:`HUGE` or more, floats and integers, element by element and for the nodes
concerned only, where

- they are selected (Where), added (Add, Sub), a bound from below (Max), put around the scores (Pad, where neighbours of
  the first and the last one are looked up), looked up or moved (Gather, in a table of biases that has a row for what is
  out of reach), or multiplied by an indicator, a value made from a mask and 0, 1 or
  -1 throughout; and
- everything the result flows into, through nodes that select, add, scale or move elements, is a Softmax.

A float input of the graph is believed to be a mask only where one huge number is multiplied by it, key by key. Another
float input may be a temperature: what it scales has no filler that is known to be small enough or large enough.

A Clip that keeps such values within those of their float type has nothing to do then, and is dropped.

Left alone: huge constants that don't end in a Softmax; a mask that is compared or returned on its way, since somebody
else counts on its value; a Clip of less, which bounds scores rather than masks them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper

from pipeline.graph.ir.index import GraphIndex, is_op
from pipeline.graph.ir.ops import MOVES, SOFTMAXES
from pipeline.graph.ir.recursion import Recursive

HUGE = 1e4
"""BERT's own filler, the smallest in use (https://github.com/google-research/bert, attention_layer)."""

FILLER = 100.0
"""What reaches Softmax instead. On MiniLM, 16 bit activations: 20 to 1000 differ by 0.02 dB, 10000 costs 1.7 dB."""

_MOVERS = (*MOVES, "Cast", "Pad", "Trilu")
_SUMS = ("Add", "Max", "Min", "Sub")
_SCALES = ("Mul", "Div")
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)


def apply(model: ModelProto, folder: Path) -> int:
    """Replace huge fillers in front of Softmax; returns the number of node inputs changed."""
    index = GraphIndex(model, folder)
    flow = _Flow(index)
    replaced: dict[tuple[str, float], str] = {}
    changed = 0
    for node, position, array, scale in _huge_constants(index, flow):
        name = node.input[position]
        is_indicator = flow.may_be_indicator if array.size == 1 else flow.is_indicator
        if is_op(node, "Mul") and not is_indicator(node.input[1 - position]):
            continue
        filler = FILLER / scale if array.dtype.kind == "f" else math.ceil(FILLER / scale)
        if (name, filler) not in replaced:
            replaced[name, filler] = _new_name(name, index, replaced)
            finite = np.where(_magnitude(array) >= HUGE, np.sign(array) * array.dtype.type(filler), array)
            model.graph.initializer.append(numpy_helper.from_array(finite.astype(array.dtype), replaced[name, filler]))
        node.input[position] = replaced[name, filler]
        changed += 1
    return changed + (_drop_clips(index, flow) if changed else 0)


def _drop_clips(index: GraphIndex, flow: _Flow) -> int:
    """Let what reads a Clip of no effect in front of Softmax read what it clips."""
    dropped = {
        node.output[0]: node.input[0]
        for node in index.model.graph.node
        if is_op(node, "Clip") and flow.is_void(node) and flow.scale_to_softmax(node) is not None
    }
    for result, source in dropped.items():
        while source in dropped:
            source = dropped[source]
        for reader in index.readers[result]:
            for position, name in enumerate(reader.input):
                if name == result:
                    reader.input[position] = source
    return len(dropped)


def _huge_constants(index: GraphIndex, flow: _Flow) -> Iterator[tuple[NodeProto, int, NDArray[Any], float]]:
    """Node, input number and value of each constant that has huge elements where a filler would stand.

    With the factor by which it is scaled until a Softmax. Most tables of gigabytes end in none, and are not read.
    """
    for node in index.model.graph.node:
        constants = [(place, node.input[place]) for place in _places(node) if node.input[place] in index.initializers]
        scale = flow.scale_to_softmax(node) if constants else None
        if scale is None or FILLER / scale >= HUGE:
            continue
        for position, name in constants:
            pieces = index.pieces(name)
            if pieces.dtype.kind in "fi" and any((_magnitude(piece) >= HUGE).any() for piece in pieces):
                yield node, position, pieces.array(), scale


def _places(node: NodeProto) -> Sequence[int]:
    """The inputs of a node at which a filler may stand."""
    if is_op(node, "Pad"):
        return range(2, min(3, len(node.input)))
    if is_op(node, *MOVES) and not is_op(node, "Concat"):
        return (0,)
    return range(len(node.input)) if is_op(node, "Where", "Mul", "Add", "Sub", "Max", "Concat") else ()


def _moved(node: NodeProto) -> Sequence[str]:
    """Those inputs of a node that moves elements of which its result is made: of a Pad also what is put around."""
    if is_op(node, "Pad"):
        return [name for name in (node.input[0], *node.input[2:3]) if name]
    return list(node.input if is_op(node, "Concat") else node.input[:1])


def _magnitude(array: NDArray[Any]) -> NDArray[Any]:
    # As float64, since the least integer has no counterpart.
    return np.asarray(np.abs(array.astype(np.float64) if array.dtype.kind == "i" else array))


def _new_name(name: str, index: GraphIndex, replaced: dict[tuple[str, float], str]) -> str:
    taken = sum(source == name for source, _ in replaced)
    return index.unused(f"{name}_finite" + (f"_{taken}" if taken else ""))


class _Flow:
    """Where values come from and where they end, memoised over one graph."""

    def __init__(self, index: GraphIndex) -> None:
        self._index = index
        self._scale_of: Recursive[float | None] = Recursive(self._find_scale)
        self.is_indicator = Recursive(lambda name: self._is_indicator(name, self.is_indicator, floats=False))
        """Whether a value is made from a mask of integers or booleans, and 0, 1 or -1 throughout."""
        self.may_be_indicator = Recursive(lambda name: self._is_indicator(name, self.may_be_indicator, floats=True))
        """The same, or from a float input with a value for each key."""

    def scale_to_softmax(self, node: NodeProto) -> float | None:
        """The least factor by which a node's results are scaled until a Softmax; None if some don't end in one."""
        scales = [self._scale_of(name) for name in node.output if name]
        return min((scale for scale in scales if scale is not None), default=None) if None not in scales else None

    def _find_scale(self, name: str) -> float | None:
        steps = [self._through(node, name) for node in self._index.readers.get(name, [])]
        ends = not steps or None in steps or name in self._index.outputs
        return None if ends else min(step for step in steps if step is not None)

    def _through(self, node: NodeProto, name: str) -> float | None:
        if is_op(node, *SOFTMAXES):
            return 1.0
        factor = self._factor(node, name)
        onward = None if factor is None else self.scale_to_softmax(node)
        return None if factor is None or onward is None else factor * onward

    def _factor(self, node: NodeProto, name: str) -> float | None:
        """By how much a node scales this input of it; None if it does something else with it."""
        inputs = list(node.input)
        if is_op(node, *_SUMS, "Concat") or (is_op(node, *_MOVERS) and name == inputs[0]):
            return 1.0
        if is_op(node, "Where"):
            return 1.0 if name != inputs[0] else None
        if is_op(node, "Clip"):
            return 1.0 if self.is_void(node) else None
        if is_op(node, *_SCALES) and inputs.count(name) == 1:
            other = inputs[1 - inputs.index(name)]
            value = self._index.scalar(other)
            if value and np.isfinite(value) and (node.op_type == "Mul" or inputs[0] == name):
                return abs(value) if node.op_type == "Mul" else 1 / abs(value)
            return 1.0 if node.op_type == "Mul" and self.is_indicator(other) else None
        return None

    def is_void(self, clip: NodeProto) -> bool:
        """Whether a Clip bounds nothing but fillers."""
        bounds = [(sign, name) for sign, name in zip((-1, 1), clip.input[1:], strict=False) if name]
        values = [(sign, self._index.scalar(name)) for sign, name in bounds]
        return all(value is not None and sign * value >= HUGE for sign, value in values)

    def _is_indicator(self, name: str, is_indicator: Callable[[str], bool], *, floats: bool) -> bool:
        array = self._index.constant(name)
        if array is not None:
            return array.dtype.kind in "biuf" and bool(np.isin(array, (-1, 0, 1)).all())
        node = self._index.makers.get(name)
        if node is None:
            return self._varies_by_key(name) if self._is_float(name) and floats else not self._is_float(name)
        if is_op(node, "Cast") and not self._is_float(node.input[0]):
            return True
        if is_op(node, *_MOVERS):
            return all(is_indicator(given) for given in _moved(node))
        if is_op(node, "Sub", "Mul", "Min", "Max", "Where"):
            values = node.input[1:] if node.op_type == "Where" else node.input
            return all(is_indicator(given) for given in values)
        return False

    def _varies_by_key(self, name: str) -> bool:
        kind = self._index.types.get(name)
        return kind is not None and any(dim.dim_value > 1 for dim in kind.tensor_type.shape.dim[-1:])

    def _is_float(self, name: str) -> bool:
        kind = self._index.types.get(name)
        return kind is None or kind.tensor_type.elem_type in _FLOATS


AFTER = {
    "drop_idle_bounds": "an infinity that bounds nothing is no mask",
}
