"""QDQ models that are as right as the one that was compiled: what rounding leaves open, and nothing else.

What one operator may be off by, the next one reads. A Tanh whose result has steps a fifth of those of its argument
turns one step of a convolution, which is right, into five of its own: so each value between two operators is moved by
what is allowed of an operator that stands alone, and the right results are all that come of that.

A Cast cuts off what is behind the point. onnxruntime rounds the product of an integer and its scale to float32: 21845
steps of 0.00091554131 are 19.999999995, which is 19, and in float32 20. So scales are moved by a rounding of float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

Arrays = Mapping[str, NDArray[Any]]

_SEEDS = 4
_FLOAT32 = 2.0**-23
_CONVERSIONS = ("QuantizeLinear", "DequantizeLinear")


def between(model: ModelProto) -> list[NodeProto]:
    """The nodes that give a value back as a float that one operator made and another reads."""
    makers = {name: node for node in model.graph.node for name in node.output}
    outputs = {value.name for value in model.graph.output}
    found = []
    for node in model.graph.node:
        stored = makers.get(node.input[0]) if node.op_type == "DequantizeLinear" else None
        made = makers.get(stored.input[0]) if stored is not None and stored.op_type == "QuantizeLinear" else None
        if made is not None and made.op_type not in _CONVERSIONS and node.output[0] not in outputs:
            found.append(node)
    return found


def exposed(model: ModelProto, names: list[str]) -> ModelProto:
    """The model with these floats as its outputs."""
    copy = ModelProto()
    copy.CopyFrom(model)
    del copy.graph.output[:]
    copy.graph.output.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names)
    return copy


def moved(model: ModelProto, values: Arrays, steps: int) -> Iterator[ModelProto]:
    """The model with each of `values`, moved by `steps` of its encoding, and not beyond its ends.

    Of any two elements of a value, each goes up in some model where the other goes down: random directions alone leave
    a third of all pairs out, and a Softmax whose two largest scores are a step nearer to each other passed for wrong.
    """
    ways: list[Callable[[NDArray[Any]], NDArray[Any]]] = [
        np.ones_like,
        lambda value: -np.ones_like(value),
        *(partial(_signs, seed) for seed in range(_SEEDS)),
        *(
            partial(_by_digit, digit, up)
            for digit in range(max(value.size - 1 for value in values.values()).bit_length())
            for up in (1.0, -1.0)
        ),
    ]
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    for directions in ways:
        copy = ModelProto()
        copy.CopyFrom(model)
        nodes = []
        for node in copy.graph.node:
            nodes.append(node)
            name = node.output[0]
            if node.op_type != "DequantizeLinear" or name not in values:
                continue
            scale, zero = (numpy_helper.to_array(constants[each]).astype(np.float64) for each in node.input[1:])
            kind = np.iinfo(numpy_helper.to_array(constants[node.input[2]]).dtype)
            shift = scale * steps * directions(values[name])
            given = {"shift": shift, "low": (kind.min - zero) * scale, "high": (kind.max - zero) * scale}
            for end, array in given.items():
                copy.graph.initializer.append(numpy_helper.from_array(np.asarray(array, np.float32), f"{name}_{end}"))
            node.output[0] = f"{name}_exact"
            nodes.append(helper.make_node("Add", [f"{name}_exact", f"{name}_shift"], [f"{name}_far"], f"{name}_moved"))
            nodes.append(
                helper.make_node("Clip", [f"{name}_far", f"{name}_low", f"{name}_high"], [name], f"{name}_held")
            )
        kept = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
        del copy.graph.node[:]
        copy.graph.node.extend(kept)
        yield copy


def _signs(seed: int, value: NDArray[Any]) -> NDArray[Any]:
    """1 and -1 in the shape of a value."""
    return np.random.default_rng(seed).choice(np.array([-1.0, 1.0]), value.shape)


def _by_digit(digit: int, up: float, value: NDArray[Any]) -> NDArray[Any]:
    """`up` where an element's place has this binary digit, -`up` elsewhere: any two places differ in one of them."""
    return np.where(np.arange(value.size) >> digit & 1, up, -up).reshape(value.shape)


def computed_between(model: ModelProto) -> list[str]:
    """The floats of a model without encodings that one operator makes and another reads."""
    outputs = {value.name for value in model.graph.output}
    types = {value.name: value.type.tensor_type.elem_type for value in model.graph.value_info}
    made = [name for node in model.graph.node for name in node.output]
    return [name for name in made if name not in outputs and types.get(name) == TensorProto.FLOAT]


def scaled(model: ModelProto, values: Arrays, share: float) -> Iterator[ModelProto]:
    """The model with each of `values` moved by this share of itself."""
    for seed in range(_SEEDS):
        copy = ModelProto()
        copy.CopyFrom(model)
        nodes = []
        for node in copy.graph.node:
            nodes.append(node)
            for position, name in enumerate(node.output):
                if name in values:
                    factor = np.asarray(1 + share * _signs(seed, values[name]), np.float32)
                    copy.graph.initializer.append(numpy_helper.from_array(factor, f"{name}_factor"))
                    node.output[position] = f"{name}_exact"
                    nodes.append(helper.make_node("Mul", [f"{name}_exact", f"{name}_factor"], [name], f"{name}_moved"))
        kept = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
        del copy.graph.node[:]
        copy.graph.node.extend(kept)
        yield copy


def nudged(model: ModelProto) -> Iterator[ModelProto]:
    """The model with its scales a rounding of float32 larger, and smaller, where a Cast reads what they make."""
    if not any(node.op_type == "Cast" for node in model.graph.node):
        return
    scales = {node.input[1] for node in model.graph.node if node.op_type == "DequantizeLinear"}
    for factor in (1 + _FLOAT32, 1 - _FLOAT32):
        copy = ModelProto()
        copy.CopyFrom(model)
        for tensor in copy.graph.initializer:
            if tensor.name in scales:
                array = (numpy_helper.to_array(tensor).astype(np.float64) * factor).astype(np.float32)
                tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
        yield copy
