"""Takes a QDQ model apart for quantizers of others: the float model, and the encodings of its values and weights.

The encodings are in the form that AIMET writes as version 1.0.0 and Qualcomm's converter reads as overrides
(https://quic.github.io/aimet-pages/releases/latest/userguide/encoding_spec.html): `offset` is what the integer 0 of an
unsigned type stands for in steps, so signed types are counted from their least integer.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, helper, numpy_helper

from pipeline.errors import QuantizationError
from pipeline.graph.files.model_file import tensor_dtype
from pipeline.graph.ir.index import GraphIndex
from pipeline.graph.ir.traverse import input_at
from pipeline.graph.quantization.qdq.qdq_model import Q_OPS, dequantized_constant
from pipeline.model import Json

VERSION = "1.0.0"
_LEAST_TO_SAY = ("int32",)
"""What biases are stored in: their encodings follow from those of the product they are added to."""


def take_apart(model: ModelProto, folder: Path) -> tuple[ModelProto, dict[str, Json]]:
    """The float model, its weights as their integers stand for, and the overrides by the names of its values.

    A value that is quantized twice in a row has the first encoding. Of outputs that are one value, or one that is an
    input, the first gives the value its name, and the others are copies. `folder` holds the model's blobs; the float
    model has its weights inside.

    Raises:
        QuantizationError: the model takes or gives integers that are encoded floats.
    """
    index = GraphIndex(model, folder)
    activations: dict[str, Json] = {}
    parameters: dict[str, Json] = {}
    instead: dict[str, str] = {}
    weights: dict[str, NDArray[Any]] = {}
    for node in (each for each in model.graph.node if each.op_type in Q_OPS):
        given, made = node.input[0], node.output[0]
        if node.op_type == "DequantizeLinear" and given in index.initializers:
            weights[made] = dequantized_constant(index, made)
            if (told := _encoding(index, node, made)) is not None:
                parameters[made] = told
            continue
        if made in index.outputs if node.op_type == "QuantizeLinear" else given not in index.makers:
            raise QuantizationError(
                f"the model takes or gives {made if made in index.outputs else given!r} as integers",
                where=f"node {node.name!r}",
                why="Qualcomm's converter gets the float model, which takes and gives floats",
                remedy="leave 'compiler' out",
            )
        source = instead.get(given, given)
        if node.op_type == "QuantizeLinear":
            activations.setdefault(source, _encoding(index, node, source))
        instead[made] = source
    outputs: dict[str, str] = {}
    copies: dict[str, str] = {}
    for name in (value.name for value in model.graph.output if value.name in instead):
        source = instead[name]
        if source in outputs or source in index.outputs or source not in index.makers:
            copies[name] = source
        else:
            outputs[source] = name
    told_of = [_named(each, outputs) for each in activations.values()]
    told_of += [_named(activations[source], {source: name}) for name, source in copies.items() if source in activations]
    return _float_model(index, instead, outputs, copies, weights), {
        "version": VERSION,
        "activation_encodings": told_of,
        "param_encodings": list(parameters.values()),
    }


def _encoding(index: GraphIndex, node: NodeProto, name: str) -> dict[str, Json] | None:
    scale = index.constant(node.input[1])
    zero_point = index.constant(input_at(node, 2))
    assert scale is not None
    assert zero_point is not None, "what quantizes here writes zero points"
    dtype = tensor_dtype(index.initializers[node.input[2]])
    if dtype.name in _LEAST_TO_SAY:
        return None
    bits = 4 if dtype.name in ("int4", "uint4") else 8 * dtype.itemsize
    least = -(1 << (bits - 1)) if dtype.name.startswith("int") else 0
    offsets = [least - int(each) for each in zero_point.astype(np.int64).reshape(-1)]
    return {
        "name": name,
        "enc_type": "PER_TENSOR" if scale.size == 1 else "PER_CHANNEL",
        "dtype": "INT",
        "bw": bits,
        "is_sym": all(offset == -(1 << (bits - 1)) for offset in offsets),
        "scale": [float(each) for each in scale.astype(np.float64).reshape(-1)],
        "offset": [*offsets],
    }


def _named(encoding: Json, outputs: Mapping[str, str]) -> Json:
    assert isinstance(encoding, dict)
    name = encoding["name"]
    return {**encoding, "name": outputs.get(str(name), name)}


def _float_model(
    index: GraphIndex,
    instead: Mapping[str, str],
    outputs: Mapping[str, str],
    copies: Mapping[str, str],
    weights: Mapping[str, NDArray[Any]],
) -> ModelProto:
    made = ModelProto()
    made.CopyFrom(index.model)
    graph = made.graph
    del graph.node[:], graph.initializer[:], graph.value_info[:]
    for node in index.model.graph.node:
        if node.op_type in Q_OPS:
            continue
        kept = graph.node.add()
        kept.CopyFrom(node)
        for names in (kept.input, kept.output):
            for place, name in enumerate(names):
                source = instead.get(name, name)
                names[place] = outputs.get(source, source)
    for name, source in copies.items():
        given = outputs.get(source, source)
        graph.node.append(helper.make_node("Identity", [given], [name], name=f"copy of {given} to {name}"))
    used = {name for node in graph.node for name in node.input} | {*index.outputs}
    for name, array in weights.items():
        if name in used:
            graph.initializer.append(numpy_helper.from_array(array, name))
    for name in index.initializers:
        if name in used and (constant := index.constant(name)) is not None:
            graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(constant), name))
    return made
