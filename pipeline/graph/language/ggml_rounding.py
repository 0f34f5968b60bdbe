"""Makes a graph round the inputs of its products as ggml does on a CPU, which multiplies integers by integers.

ggml rounds each row of an input to the form that goes with the weights (`vec_dot_type` in
https://github.com/ggml-org/llama.cpp/blob/master/ggml/src/ggml-cpu/ggml-cpu.c, `quantize_row_*_ref` in
https://github.com/ggml-org/llama.cpp/blob/master/ggml/src/ggml-quants.c)::

    weights            input             a block
    Q4_0, Q5_0, Q8_0   Q8_0: blocks 32   q = round(x / d), d = max|x| / 127, then d as float16
    Q4_1, Q5_1         Q8_1: blocks 32   the same; the weights' minimum takes d * sum(q) as float16
    Q4_K, Q5_K, Q6_K   Q8_K: blocks 256  q = round(x / d), d = the x of the largest |x| / -127, as float32
    F16, BF16          F16, BF16         an element at a time

GELU is looked up in a table of float16. Products of float32 weights, norms, softmax, and attention over a float32 cache
are computed in float32.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from pipeline.graph.files.blocks import BLOCK, FORMATS, MINIMA
from pipeline.graph.files.model_file import external_bytes
from pipeline.graph.files.stored_form import StoredForm, form_of

_LARGE = 256
_HALVES = {"F16": TensorProto.FLOAT16, "BF16": TensorProto.BFLOAT16}
_CONSTANTS: Mapping[str, NDArray[Any]] = {
    "ggml/32": np.array([-1, BLOCK], np.int64),
    "ggml/256": np.array([-1, _LARGE], np.int64),
    "ggml/127": np.array(127, np.float32),
    "ggml/-127": np.array(-127, np.float32),
    "ggml/0": np.array(0, np.float32),
    "ggml/1": np.array(1, np.float32),
    "ggml/first": np.array([0], np.int64),
    "ggml/last": np.array([-1], np.int64),
}


def rounded_as_ggml(model: ModelProto, folder: Path) -> ModelProto | None:
    """A copy of a graph of :mod:`pipeline.graph.language` that rounds as ggml does; None if ggml rounds nothing of it.

    `folder` holds the weights.
    """
    copy = ModelProto()
    copy.CopyFrom(model)
    stored = {tensor.name: tensor for tensor in copy.graph.initializer}
    nodes: list[NodeProto] = []
    for node in copy.graph.node:
        weight = stored.get(node.input[1]) if node.op_type in ("MatMul", "Gemm") else None
        form = form_of(weight) if weight is not None else None
        if node.op_type == "Gelu":
            value, made = node.input[0], node.output[0]
            nodes += _half(value, TensorProto.FLOAT16, f"{made}/rounded")
            node.input[0], node.output[0] = f"{made}/rounded", f"{made}/exact"
            nodes += [node, *_half(f"{made}/exact", TensorProto.FLOAT16, made)]
        elif weight is None or form is None or form.blocks == FORMATS[0]:
            nodes.append(node)
        else:
            value, made = node.input[0], node.output[0]
            node.input[0] = f"{made}/rounded"
            if form.blocks.name in _HALVES:
                nodes += [*_half(value, _HALVES[form.blocks.name], f"{made}/rounded"), node]
            elif form.blocks.elements == _LARGE:
                nodes += [*_by_256(value, made), node]
            elif form.blocks.name not in MINIMA:
                nodes += [*_by_32(value, made), node]
            else:
                copy.graph.initializer.append(_minima(weight, form, folder))
                node.output[0] = f"{made}/product"
                nodes += [*_by_32(value, made), node, *_sums(value, made, form.columns // BLOCK, weight.name)]
    if len(nodes) == len(model.graph.node):
        return None
    del copy.graph.node[:]
    copy.graph.node.extend(nodes)
    copy.graph.initializer.extend(numpy_helper.from_array(values, name) for name, values in _CONSTANTS.items())
    return copy


def _half(value: str, kind: int, name: str) -> Iterator[NodeProto]:
    yield helper.make_node("Cast", [value], [f"{name}/half"], to=kind)
    yield helper.make_node("Cast", [f"{name}/half"], [name], to=TensorProto.FLOAT)


def _by_32(value: str, made: str) -> Iterator[NodeProto]:
    """Nodes that make `<made>/rounded` of a value; `/step` and `/whole` are its steps, rounded or not, and numbers."""
    yield helper.make_node("Reshape", [value, "ggml/32"], [f"{made}/blocks"])
    yield helper.make_node("Abs", [f"{made}/blocks"], [f"{made}/abs"])
    yield helper.make_node("ReduceMax", [f"{made}/abs", "ggml/last"], [f"{made}/most"])
    yield helper.make_node("Div", [f"{made}/most", "ggml/127"], [f"{made}/exact_step"])
    yield from _half(f"{made}/exact_step", TensorProto.FLOAT16, f"{made}/step")
    yield helper.make_node("Equal", [f"{made}/most", "ggml/0"], [f"{made}/silent"])
    yield helper.make_node("Where", [f"{made}/silent", "ggml/1", f"{made}/most"], [f"{made}/divisor"])
    yield helper.make_node("Div", ["ggml/127", f"{made}/divisor"], [f"{made}/inverse"])
    yield from _numbers(value, made)


def _by_256(value: str, made: str) -> Iterator[NodeProto]:
    """The same in blocks of 256."""
    yield helper.make_node("Reshape", [value, "ggml/256"], [f"{made}/blocks"])
    yield helper.make_node("Abs", [f"{made}/blocks"], [f"{made}/abs"])
    yield helper.make_node("ArgMax", [f"{made}/abs"], [f"{made}/place"], axis=-1)
    yield helper.make_node("GatherElements", [f"{made}/blocks", f"{made}/place"], [f"{made}/most"], axis=-1)
    yield helper.make_node("Equal", [f"{made}/most", "ggml/0"], [f"{made}/silent"])
    yield helper.make_node("Where", [f"{made}/silent", "ggml/1", f"{made}/most"], [f"{made}/divisor"])
    yield helper.make_node("Div", ["ggml/-127", f"{made}/divisor"], [f"{made}/inverse"])
    yield helper.make_node("Div", ["ggml/1", f"{made}/inverse"], [f"{made}/step"])
    yield from _numbers(value, made)


def _numbers(value: str, made: str) -> Iterator[NodeProto]:
    yield helper.make_node("Mul", [f"{made}/blocks", f"{made}/inverse"], [f"{made}/steps"])
    yield helper.make_node("Round", [f"{made}/steps"], [f"{made}/near"])
    yield helper.make_node("Min", [f"{made}/near", "ggml/127"], [f"{made}/whole"])
    yield helper.make_node("Mul", [f"{made}/whole", f"{made}/step"], [f"{made}/rows"])
    yield helper.make_node("Shape", [value], [f"{made}/shape"])
    yield helper.make_node("Reshape", [f"{made}/rows", f"{made}/shape"], [f"{made}/rounded"])


def _sums(value: str, made: str, blocks: int, weight: str) -> Iterator[NodeProto]:
    """Nodes that add to `<made>/product` what rounding the sum of each block changes of the product with minima."""
    yield helper.make_node("ReduceSum", [f"{made}/whole", "ggml/last"], [f"{made}/sum"])
    yield helper.make_node("Mul", [f"{made}/sum", f"{made}/step"], [f"{made}/own_sum"])
    yield helper.make_node("Mul", [f"{made}/sum", f"{made}/exact_step"], [f"{made}/exact_sum"])
    yield from _half(f"{made}/exact_sum", TensorProto.FLOAT16, f"{made}/rounded_sum")
    yield helper.make_node("Sub", [f"{made}/rounded_sum", f"{made}/own_sum"], [f"{made}/off"])
    yield helper.make_node("Slice", [f"{made}/shape", "ggml/first", "ggml/last"], [f"{made}/lead"])
    yield helper.make_node("Constant", [], [f"{made}/count"], value_ints=[blocks])
    yield helper.make_node("Concat", [f"{made}/lead", f"{made}/count"], [f"{made}/by_row"], axis=0)
    yield helper.make_node("Reshape", [f"{made}/off", f"{made}/by_row"], [f"{made}/off_by_row"])
    yield helper.make_node("MatMul", [f"{made}/off_by_row", f"{weight}/minima"], [f"{made}/correction"])
    yield helper.make_node("Add", [f"{made}/product", f"{made}/correction"], [made])


def _minima(weight: TensorProto, form: StoredForm, folder: Path) -> TensorProto:
    """The minimum of each block of a matrix, [inputs / 32, outputs]."""
    path, offset, _ = external_bytes(weight, folder)
    narrow = replace(form, blocks=MINIMA[form.blocks.name], columns=form.columns // BLOCK, transposed=True)
    values = narrow.array(path, offset, (narrow.columns, narrow.rows))
    return numpy_helper.from_array(values, f"{weight.name}/minima")
