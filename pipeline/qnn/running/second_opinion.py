"""Compares the outputs of a context with ONNX Runtime and with QNN alone.

The context model says how floats become the binary's integers and back; so does the binary. Programs that load the
binary alone (Genie, ExecuTorch, an application of QNN's own) have only the latter. A context model is followed node by
node here: its QuantizeLinear and DequantizeLinear by the binary's encodings, the Cast of a float64 by numpy, each
EPContext by :mod:`pipeline.qnn.running.raw`, and outputs must be those of ONNX Runtime, bit for bit. As a program,
`python -m pipeline.qnn.running.second_opinion REQUEST`, it does so beside its caller; so does a fork of a worker.
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper

from pipeline.contracts.codec import Contract
from pipeline.contracts.emulate import SecondOpinion
from pipeline.contracts.target import HtpTarget
from pipeline.errors import VerificationError
from pipeline.graph.files.model_file import load_graph, tensor_array
from pipeline.graph.ir.attributes import integer
from pipeline.model import Json
from pipeline.qnn.child import answer_request, ask, died, run_raw_apart
from pipeline.qnn.format.context_binary import read_binaries
from pipeline.qnn.format.context_edges import contradictions, is_edge, paired
from pipeline.qnn.format.context_model import binary_names, partition_name, partitions
from pipeline.qnn.format.graph_io import EdgeTensor
from pipeline.shortage import shortage_behind

Arrays = Mapping[str, NDArray[Any]]

_EDGES = ("EPContext", "QuantizeLinear", "DequantizeLinear")
_FEED, _VALUES = "feed.npz", "values.npz"


def second_opinion(
    folder: Path, context_model: str, target: HtpTarget, feed: Arrays, outputs: Arrays, work: Path
) -> SecondOpinion:
    """Run `feed` again, without ONNX Runtime, and compare the result with the `outputs` that ONNX Runtime gave.

    Arrays travel in folders inside `work`.

    Raises:
        CompileError: a binary can't be read.
    """
    return read_alone(folder, context_model, target, feed, work).against(outputs)


@contextmanager
def beside(
    folder: Path, context_model: str, target: HtpTarget, feed: Arrays, work: Path
) -> Iterator[Callable[[], ReadAlone]]:
    """:func:`read_alone` in a child, while the block runs; what it came to, which the end of the block waits for.

    Raises:
        CompileError: a binary can't be read; when it is called.
        VerificationError: the child died; when it is called.
    """
    np.savez(work / _FEED, *feed.values(), allow_pickle=False)
    request: dict[str, Json] = {
        "folder": str(folder),
        "context_model": context_model,
        "target": target.to_json(),
        "names": [*feed],
    }
    asked = ask(request, work, "pipeline.qnn.running.second_opinion", forks=main)

    def came_to() -> ReadAlone:
        told = asked.answer()
        if isinstance(told, int):
            raise died(f"{context_model} could not be run without ONNX Runtime", told, VerificationError)
        found = _Told.from_json(told)
        with np.load(work / _VALUES, allow_pickle=False) as archive:
            values = dict(zip(found.outputs, archive.values(), strict=True))
        return ReadAlone(found.partitions, found.failures, values, found.not_asked)

    try:
        yield came_to
    finally:
        asked.wait()


def read_alone(folder: Path, context_model: str, target: HtpTarget, feed: Arrays, work: Path) -> ReadAlone:
    """Run one sample without ONNX Runtime, in folders inside `work`.

    Raises:
        CompileError: a binary can't be read.
    """
    model = load_graph(folder / context_model)
    nodes = partitions(model)
    inside = [node.op_type for node in model.graph.node if node.op_type not in _EDGES and not is_edge(node, model)]
    if inside:
        return ReadAlone(0, not_asked=f"{len(inside)} nodes run on the CPU, the first is {inside[0]}")
    reading = _Reading(folder, model, target, work)
    return ReadAlone(len(nodes), tuple(reading.failures(feed)), reading.values)


@dataclass(frozen=True)
class ReadAlone:
    """What QNN alone gave for a sample: the values by name, and what went wrong on the way."""

    partitions: int
    failures: tuple[str, ...] = ()
    values: Arrays = field(default_factory=dict[str, NDArray[Any]])
    not_asked: str = ""

    def against(self, outputs: Arrays) -> SecondOpinion:
        """The differences from the `outputs` that ONNX Runtime gave."""
        if self.not_asked:
            return SecondOpinion(0, not_asked=self.not_asked)
        told = [each for name, expected in outputs.items() for each in self._differences(name, expected)]
        return SecondOpinion(self.partitions, (*self.failures, *told))

    def _differences(self, name: str, expected: NDArray[Any]) -> Iterator[str]:
        if name in self.values:
            yield from _unequal(name, expected, self.values[name])
        else:
            yield f"output {name!r} can't be had from the binary alone"


@dataclass(frozen=True)
class _Told(Contract):
    """The answer of a child: a :class:`ReadAlone` whose values, of these `outputs`, are in a file."""

    partitions: int
    failures: tuple[str, ...]
    outputs: tuple[str, ...]
    not_asked: str


def main(request_path: str) -> None:
    """Do what the request file says, and leave the answer beside it."""
    answer_request(request_path, _answer)


def _answer(request: Mapping[str, Any], work: Path) -> Mapping[str, Json]:
    folder, name = Path(request["folder"]), request["context_model"]
    with np.load(work / _FEED, allow_pickle=False) as archive:
        feed = dict(zip(request["names"], archive.values(), strict=True))
    made = read_alone(folder, name, HtpTarget.from_json(request["target"]), feed, work)
    outputs = [value.name for value in load_graph(folder / name).graph.output if value.name in made.values]
    np.savez(work / _VALUES, *(made.values[output] for output in outputs), allow_pickle=False)
    return _Told(made.partitions, made.failures, tuple(outputs), made.not_asked).to_json()


class _Reading:
    """A context model, followed with the values of one sample."""

    def __init__(self, folder: Path, model: ModelProto, target: HtpTarget, work: Path) -> None:
        self._folder, self._model, self._target, self._work = folder, model, target, work
        self._graphs = {
            graph.name: (folder / name, graph)
            for name in binary_names(model)
            for info in read_binaries(folder / name)
            for graph in info.graphs
        }
        self._types = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
        self.values: dict[str, NDArray[Any]] = {}
        self._to_encode: dict[str, NodeProto] = {}
        self._tensors: dict[str, EdgeTensor] = {}

    def failures(self, feed: Arrays) -> Iterator[str]:
        """Run the model with a sample. Returns a sentence for each failure and each contradiction of its binary."""
        yield from contradictions(self._model, {name: graph for name, (_, graph) in self._graphs.items()})
        self.values.update(feed)
        # An output that is a constant is in the context model alone: programs that read it have it from there.
        outputs = {value.name for value in self._model.graph.output}
        constants = [tensor for tensor in self._model.graph.initializer if tensor.name in outputs]
        self.values.update({tensor.name: tensor_array(tensor, self._folder) for tensor in constants})
        for node in self._model.graph.node:
            if node.op_type == "QuantizeLinear":
                self._to_encode[node.output[0]] = node
            elif node.op_type == "DequantizeLinear":
                self._decode(node)
            elif node.op_type == "Cast":
                self._cast(node)
            else:
                yield from self._execute(node)

    def _execute(self, node: NodeProto) -> Iterator[str]:
        name = partition_name(node)
        if name not in self._graphs:
            return
        binary, graph = self._graphs[name]
        given: dict[str, NDArray[Any]] = {}
        for value, tensor in paired(node, node.input, graph.inputs):
            yield from self._encode(value, tensor, given)
        if len(given) < len(graph.inputs):
            return
        with tempfile.TemporaryDirectory(dir=self._work) as work:
            made = run_raw_apart(binary, name, self._target, given, Path(work))
        if isinstance(made, str):
            if lacking := shortage_behind(made, "a run without ONNX Runtime"):
                raise lacking  # it says nothing about the binary
            yield f"graph {name!r} does not run without ONNX Runtime: {made}"
            return
        by_name = {tensor.name: array for tensor, array in zip(graph.outputs, made, strict=True)}
        for value, tensor in paired(node, node.output, graph.outputs):
            self.values[value], self._tensors[value] = by_name[tensor.name], tensor

    def _encode(self, value: str, tensor: EdgeTensor, given: dict[str, NDArray[Any]]) -> Iterator[str]:
        """Put what `value` is for the binary into `given`."""
        node = self._to_encode.get(value)
        array = self.values[node.input[0] if node else value]
        if node and tensor.encoding:
            array = tensor.encoding.encoded(array, tensor.dtype)
        if array.dtype != tensor.dtype or array.size != math.prod(tensor.shape):
            yield f"input {value!r} is {array.dtype} {list(array.shape)} for the context model, {tensor} in the binary"
        else:
            given[tensor.name] = array.reshape(tensor.shape)

    def _cast(self, node: NodeProto) -> None:
        if node.input[0] in self.values:
            to = integer(node, "to")
            self.values[node.output[0]] = self.values[node.input[0]].astype(helper.tensor_dtype_to_np_dtype(to))

    def _decode(self, node: NodeProto) -> None:
        value = node.input[0]
        if value in self._tensors and (encoding := self._tensors[value].encoding):
            # Of a model in float16 the scale is in float16, too, and what it gives is rounded to that.
            kind = helper.tensor_dtype_to_np_dtype(self._types.get(node.input[1], TensorProto.FLOAT))
            self.values[node.output[0]] = encoding.decoded(self.values[value]).astype(kind)


def _unequal(name: str, expected: NDArray[Any], made: NDArray[Any]) -> Iterator[str]:
    if expected.dtype != made.dtype or expected.size != made.size:
        was = f"{expected.dtype} of {expected.size} by ONNX Runtime"
        yield f"output {name!r} is {made.dtype} of {made.size} values, {was}"
        return
    bits = np.dtype(f"u{expected.dtype.itemsize}")
    left, right = (np.ascontiguousarray(array).reshape(-1) for array in (expected, made))
    places = np.flatnonzero(left.view(bits) != right.view(bits))
    if places.size:
        first = places[0]
        yield (
            f"output {name!r} differs in {places.size} of {left.size} values,"
            f" the first is {right[first]:g}, {left[first]:g} by ONNX Runtime"
        )


if __name__ == "__main__":
    main(sys.argv[1])
