"""A language model's static graph in parts: cut behind layers, where nothing but the residual stream goes on.

    ids, cache 0..k -> [embedding, layers 0..k] -> /layers.k/gated_residual -> [layers k+1.., head] -> logits

A part takes the inputs of the whole that it reads, and the value that it was cut at, and makes the outputs of its
layers. What follows from the inputs alone and is read in several parts is computed in each. Bytes are counted as HTP
holds them: integers as they are stored, floats in 16 bits.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence
from pathlib import Path

from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from pipeline.errors import ModelError
from pipeline.graph.files.model_file import byte_size
from pipeline.graph.ir.index import FLOATS, GraphIndex
from pipeline.graph.ir.traverse import reads

MOST_BYTES = 1 << 30
"""Weights of a part, at most, where their number is not given.

QNN's compiler refuses a graph of more than 2 GiB, weights and the rest together
(https://github.com/pytorch/executorch/issues/17782), and mapping 1.07 GiB of weights failed on a phone
(https://github.com/pytorch/executorch/pull/4923).
"""
_END_OF_LAYER = re.compile(r"/layers\.(\d+)/gated_residual")
_HALF_BYTES = 2


def cuts(model: ModelProto, parts: int | None) -> tuple[str, ...]:
    """The values to cut a graph at, in order: one less than there are `parts`; None is as few as hold the weights.

    Parts are as even as layers allow.

    Raises:
        ModelError: there are fewer layers than parts, or one alone has more weights than a part holds.
    """
    index = GraphIndex(model, Path())
    places = _places(index)
    held = [sum(sizes.values()) for sizes in _weights(index, places)]
    if parts is None:
        largest = max(held)
        if largest > MOST_BYTES:
            raise ModelError(
                f"a layer of the model, or its embedding or head, has {largest >> 20} MiB of weights",
                why=f"a context holds {MOST_BYTES >> 20} MiB, and layers are not split",
                remedy="quantize to fewer bits, or write the number of parts if the chip is known to hold more:"
                " language_model: {parts: 2}",
            )
        parts = len(_cut_by(_weights(index, places), MOST_BYTES)) + 1
    if parts > len(held):
        raise ModelError(
            f"{parts} parts were asked for",
            why=f"the model has {len(held) - 1} layers and a head to split",
            remedy=f"write language_model: {{parts: {len(held)}}} or less",
        )
    return tuple(places[at] for at in _even(_weights(index, places), parts))


def split(model: ModelProto, at: Sequence[str]) -> list[ModelProto]:
    """The parts of a graph that is cut at these values, in order."""
    if not at:
        return [model]
    index = GraphIndex(model, Path())
    levels = _levels(model, at)
    wanted: list[list[str]] = [[] for _ in range(len(at) + 1)]
    for value in model.graph.output:
        wanted[levels.get(value.name, 0)].append(value.name)
    for number, name in enumerate(at):
        wanted[number].append(name)
    return [_part(index, names, at, number) for number, names in enumerate(wanted)]


def _places(index: GraphIndex) -> list[str]:
    """What goes on behind each layer, in order: where it is stored as integers, these."""
    found: dict[int, str] = {}
    for node in index.model.graph.node:
        matched = _END_OF_LAYER.fullmatch(node.name)
        if matched:
            value = node.output[0]
            stored = index.sole_reader(value, "QuantizeLinear")
            found[int(matched[1])] = stored.output[0] if stored is not None else value
    return [found[layer] for layer in sorted(found)]


def _levels(model: ModelProto, at: Sequence[str]) -> dict[str, int]:
    """How many cuts lie before each value."""
    order = {name: number for number, name in enumerate(at)}
    found: dict[str, int] = {}
    for node in model.graph.node:
        before = (order[name] + 1 if name in order else found.get(name, 0) for name in reads(node))
        level = max(before, default=0)
        found.update(dict.fromkeys(node.output, level))
    return found


def _part(index: GraphIndex, wanted: Sequence[str], at: Sequence[str], number: int) -> ModelProto:
    """The nodes that lead to `wanted` from the inputs and the cuts before."""
    model, before = index.model, {*at} - {*wanted}
    kept, read = _leading_to(index, wanted, before)
    graph = model.graph
    given = [value for value in graph.input if value.name in read and value.name not in index.initializers]
    given += [_described(index, name) for name in at if name in read and name in before]
    outputs = [value for value in graph.output if value.name in wanted]
    outputs += [_described(index, name) for name in at if name in wanted]
    made = {name for node in kept for name in node.output}
    part = helper.make_graph(
        kept,
        f"{graph.name}_{number + 1}_of_{len(at) + 1}",
        given,
        outputs,
        [tensor for tensor in graph.initializer if tensor.name in read],
        value_info=[value for value in graph.value_info if value.name in made and value.name not in wanted],
    )
    result = helper.make_model(part, opset_imports=list(model.opset_import), ir_version=model.ir_version)
    result.functions.extend(model.functions)
    result.metadata_props.extend(model.metadata_props)
    return result


def _leading_to(index: GraphIndex, wanted: Sequence[str], before: Collection[str]) -> tuple[list[NodeProto], set[str]]:
    """The nodes from which `wanted` follow, up to `before`, in their order, and all values that they read."""
    pending, needed, read = [*wanted], set[int](), set[str]()
    while pending:
        maker = index.makers.get(pending.pop())
        if maker is None or id(maker) in needed:
            continue
        needed.add(id(maker))
        own = reads(maker)
        read.update(own)
        pending += [name for name in own if name not in before]
    return [node for node in index.model.graph.node if id(node) in needed], read


def _described(index: GraphIndex, name: str) -> ValueInfoProto:
    kind = index.types.get(name)
    assert kind is not None, "shapes of static graphs are known"
    return helper.make_value_info(name, kind)


def _weights(index: GraphIndex, places: Sequence[str]) -> list[dict[str, int]]:
    """The constants that are read before the first place, between each two, and behind the last: name -> bytes."""
    found: list[dict[str, int]] = [{} for _ in range(len(places) + 1)]
    levels = _levels(index.model, places)
    for node in index.model.graph.node:
        own = found[max((levels[name] for name in node.output if name), default=0)]
        for name in reads(node):
            if name in index.initializers:
                own[name] = _bytes(index.initializers[name])
    return found


def _bytes(tensor: TensorProto) -> int:
    return math.prod(tensor.dims) * _HALF_BYTES if tensor.data_type in FLOATS else byte_size(tensor)


def _cut_by(weights: Sequence[dict[str, int]], most: int) -> list[int]:
    """Where to cut so that no part has more than `most` bytes, as late as can be; a constant counts once in a part."""
    found: list[int] = []
    own: dict[str, int] = {}
    for number, each in enumerate(weights):
        joined = {**own, **each}
        if own and sum(joined.values()) > most:
            found.append(number - 1)
            joined = dict(each)
        own = joined
    return found


def _even(weights: Sequence[dict[str, int]], parts: int) -> list[int]:
    """Where to cut into so many parts that the largest is as small as can be."""
    low, high = max(sum(each.values()) for each in weights), sum(sum(each.values()) for each in weights)
    while low < high:
        middle = (low + high) // 2
        if len(_cut_by(weights, middle)) < parts:
            high = middle
        else:
            low = middle + 1
    found = _cut_by(weights, low)
    # Where fewer parts would do as well, the number that was asked for is had by cutting the first of several layers.
    spare = [number for number in range(len(weights) - 1) if number not in found]
    return sorted([*found, *spare[: parts - 1 - len(found)]])
