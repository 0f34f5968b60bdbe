"""States: outputs that an application hands to the model again, as inputs of its next run."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from onnx import NodeProto

from pipeline.graph.ir.index import GraphIndex, is_float, is_op
from pipeline.graph.ir.inference import shape_of
from pipeline.graph.ir.loudness import inputs_heard
from pipeline.graph.ir.ops import KEEPING, MOVES

_RECURRENT = ("LSTM", "GRU", "RNN")
_MOVING = (*KEEPING, *MOVES)
_INITIAL = (5, 6)
"""The inputs of a recurrent layer for the states that it begins with: initial_h and, of an LSTM, initial_c.

https://onnx.ai/onnx/operators/onnx__LSTM.html
"""

_STATE = re.compile(r"state|cache|hidden|memory|past|prev|buffer|(^|[^a-z])(h|c|mem|hx|cx)\d*($|[^a-z])")
"""Parts of the names of states."""


def state_outputs(index: GraphIndex) -> frozenset[str]:
    """The outputs that are states of a recurrent layer whose initial states are inputs of the graph.

    Such an output is an input of the next run, so its error is met again in every run that follows. Where there is no
    such layer, as in a model whose cells are written out, they are told by their types: see :func:`_handed_on`.
    """
    fed = [node for node in index.model.graph.node if is_op(node, *_RECURRENT) and _is_fed(index, node)]
    held = frozenset(name for name in index.outputs if any(_holds_states(index, name, node) for node in fed))
    return held or frozenset(_handed_on(index).values())


def _handed_on(index: GraphIndex) -> dict[str, str]:
    """The inputs that hold a state, each with the output that becomes it.

    Input and output are floats of one type, no other input or output has it but such a pair in the same order, and the
    output is computed from the input and from others. A model with one output has no state beside it. Where all inputs
    but scalars have such an output, as of a model that cleans a frame of sound, one of them is what the model is run
    on: the first whose name is not that of a state. Where all have such names, all are states.
    """
    graph = index.model.graph
    given = [value.name for value in graph.input if value.name not in index.initializers]
    kinds = {name: _kind(index, name) for name in [*given, *index.outputs]}
    pairs: dict[str, str] = {}
    outputs = [value.name for value in graph.output]
    for kind in dict.fromkeys(kinds[name] for name in given if kinds[name] is not None):
        ins = [name for name in given if kinds[name] == kind]
        outs = [name for name in outputs if kinds[name] == kind]
        if len(ins) == len(outs) < min(len(given), len(outputs)):
            pairs |= dict(zip(ins, outs, strict=True))
    needs = {made: _all_behind(index, made) & {*given} for made in pairs.values()}
    found = {held: made for held, made in pairs.items() if held in needs[made] and len(needs[made]) > 1}
    run_on = [name for name in given if name not in found and (name not in index.types or shape_of(index.types[name]))]
    if found and not run_on:
        signal = next((name for name in given if name in found and not _STATE.search(name.lower())), None)
        found = {held: made for held, made in found.items() if held != signal}
    return found


def _kind(index: GraphIndex, name: str) -> tuple[int, ...] | None:
    """The dims of a float value of more than one number."""
    if name not in index.types or not is_float(index, name):
        return None
    dims = shape_of(index.types[name])
    return dims if math.prod(dims) > 1 else None


def _all_behind(index: GraphIndex, name: str) -> set[str]:
    """The values that one is computed from."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            maker = index.makers.get(name)
            waiting += [given for given in maker.input if given] if maker is not None else []
    return found


def _is_fed(index: GraphIndex, node: NodeProto) -> bool:
    """Whether a layer begins with states that come from outside."""
    inputs = {value.name for value in index.model.graph.input} - {*index.initializers}
    return not inputs.isdisjoint(_behind(index, [node.input[at] for at in _INITIAL if at < len(node.input)]))


def _holds_states(index: GraphIndex, output: str, node: NodeProto) -> bool:
    """Whether an output consists of values that a layer makes, none of which is its whole sequence alone.

    The last state of a layer is often taken from the sequence of all, which for one step is the same.
    """
    made = {name for name in node.output if name}
    types = index.types
    behind = _behind(index, [output])
    same = any(
        name in types and output in types and _size(index, name) == _size(index, output)
        for name in _behind(index, [node.input[at] for at in _INITIAL if at < len(node.input)])
    )
    return same and not made.isdisjoint(behind)


def _size(index: GraphIndex, name: str) -> int:
    size = 1
    for dim in index.types[name].tensor_type.shape.dim:
        size *= dim.dim_value
    return size


def _behind(index: GraphIndex, names: Iterable[str]) -> set[str]:
    """The values that these are copies or parts of, themselves included."""
    found: set[str] = set()
    waiting = [name for name in names if name]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        maker = index.makers.get(name)
        if maker is not None and is_op(maker, *_MOVING):
            waiting += [given for given in maker.input if given]
    return found


def heard_without_states(index: GraphIndex) -> tuple[str, ...]:
    """The inputs of whose scale a logarithm is taken; none where states are handed on, which quiet says nothing of."""
    return () if state_outputs(index) else inputs_heard(index)
