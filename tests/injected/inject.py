"""Faults of a QDQ model: an encoding, a weight or a connection that is not what the quantizer made."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper

_CONVERSIONS = ("QuantizeLinear", "DequantizeLinear")
KINDS = ("encoding", "weight", "wiring")


@dataclass(frozen=True)
class Fault:
    """What was changed in which bucket of which model, as fault `number` of a seed; why the compiler `refused` it."""

    model: str
    seed: int
    number: int
    kind: str
    bucket: str
    change: str
    refused: str = ""

    @property
    def name(self) -> str:
        """A name of its own."""
        return f"{self.model}-{self.seed}-{self.number}"


def inject(model: ModelProto, kind: str, rng: random.Random) -> str:
    """Put one fault into a QDQ model with its weights inside; what was changed."""
    return {"encoding": _encoding, "weight": _weight, "wiring": _wiring}[kind](model, rng)


def _encoding(model: ModelProto, rng: random.Random) -> str:
    """Another scale or zero point: of a value in both directions, of one channel of a weight, or of one direction."""
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    nodes = [node for node in model.graph.node if node.op_type in _CONVERSIONS and node.input[1] in constants]
    node = rng.choice(nodes)
    what = rng.choice([1, 1, 2] if len(node.input) > 2 else [1])
    tensor = TensorProto()
    tensor.CopyFrom(constants[node.input[what]])
    array = numpy_helper.to_array(tensor).copy()
    places = array.reshape(-1)
    place = rng.randrange(places.size)
    if what == 1:
        factor = rng.choice([0.25, 0.5, 0.8, 1.25, 2.0, 4.0, 8.0])
        places[place] *= factor
        told = f"scale x {factor}"
    else:
        span = np.iinfo(array.dtype)
        step = rng.choice([span.max // 64, span.max // 16, span.max // 4])
        places[place] = places[place] - step if int(places[place]) > span.max // 2 else places[place] + step
        told = f"zero point by {step}"
    tensor.CopyFrom(numpy_helper.from_array(array, f"{tensor.name}_fault"))
    model.graph.initializer.append(tensor)
    alike = [other for other in model.graph.node if other.op_type in _CONVERSIONS and node.input[what] in other.input]
    both = rng.random() < 0.75
    for other in alike if both else [node]:
        other.input[what] = tensor.name
    return f"{told} of {node.input[0]}, place {place}{'' if both else ', one direction'}"


def _weight(model: ModelProto, rng: random.Random) -> str:
    """Other integers in a weight: bits, rows, columns, or rows that changed places."""
    stored = {node.input[0] for node in model.graph.node if node.op_type == "DequantizeLinear"}
    weights = [tensor for tensor in model.graph.initializer if tensor.name in stored and len(tensor.dims) > 1]
    tensor = rng.choice(weights)
    array = numpy_helper.to_array(tensor).copy()
    rows = array.reshape(array.shape[0], -1)
    how = rng.choice(["bits", "bits", "row", "column", "rows"])
    share = rng.choice([0.02, 0.05, 0.1, 0.3])
    some = [rng.sample(range(size), max(2, int(size * share)) if size > 1 else 1) for size in rows.shape]
    if how == "bits":
        for _ in range(max(1, int(rows.size * share))):
            rows[rng.randrange(len(rows)), rng.randrange(rows.shape[1])] ^= 1 << rng.randrange(8)
    elif how == "row":
        rows[some[0]] = rows[some[0], :1]
    elif how == "column":
        rows[:, some[1]] = rows[:1, some[1]]
    else:
        rows[some[0]] = rows[some[0][::-1]]
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return f"{how} of {tensor.name}, {share:.0%}"


def _wiring(model: ModelProto, rng: random.Random) -> str:
    """A node reads another value of the same shape and type, which is made before the one that it should read."""
    graph = model.graph
    forms = {
        value.name: (value.type.tensor_type.elem_type, [dim.dim_value for dim in value.type.tensor_type.shape.dim])
        for value in (*graph.input, *graph.value_info)
    }
    stored = {name for node in graph.node if node.op_type == "QuantizeLinear" for name in node.output}
    for node in graph.node:  # a float that is read as integers, and as a float again
        if node.op_type == "DequantizeLinear" and node.input[0] in stored:
            forms.setdefault(node.output[0], forms.get(node.input[0].removesuffix("_QuantizeLinear_Output"), (0, [])))
    unread = {*stored, *(node.input[0] for node in graph.node if node.op_type == "QuantizeLinear")}  # but by these
    order = {name: place for place, node in enumerate(graph.node) for name in node.output if name not in unread}
    faults = list[tuple[NodeProto, int, list[str]]]()
    for node in graph.node:
        for place, name in enumerate(node.input):
            if node.op_type not in _CONVERSIONS and name in order and forms.get(name, (0, []))[1]:
                alike = [other for other in order if forms.get(other) == forms[name] and order[other] < order[name]]
                faults += [(node, place, alike)] if alike else []
    node, place, alike = rng.choice(faults)
    name, node.input[place] = node.input[place], rng.choice(alike)
    return f"{node.name} reads {node.input[place]} for {name}"
