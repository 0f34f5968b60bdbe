"""Write an LSTM over a sequence as one node after another, where it is computed in float16.

Before, with constant weights::

    Y, , Y_c = LSTM(x, W, R, B, , h, c)

After, each direction by itself::

    all = Gemm(x, W, B)                         of all places at once
    gates = Add(all[t], Gemm(h, R))             of each place t, and so on
    i, o, f = Sigmoid(gates[:3])                g = Tanh(gates[3])
    c = f * c + i * g                           h = o * Tanh(c)
    Y = Concat(every h)

HTP (2.51, emulated) computes an LSTM in float16 whatever the encodings around it say, and its gates by coarse tables:
Sigmoid is off by up to 3e-3 and Tanh by 5e-3, as single nodes by 8e-4 and 3e-4. Layers over a sequence have 31 to 41 dB
as one operator, and 48 to 62 written out. The context is about as large, and takes about as long to compile.

Not applied to every model, as in integers each place would want ranges of its own, which no other bucket has.
:func:`apply` is called with the layers of a model that are in float: of a QDQ model, or of one that is in float16.

Peepholes are factors of c that are added to the gates. Values that are replaced keep their names; new nodes have that
of the layer with more behind it. Left alone: lengths, as replace_lengths_by_gates leaves them; other activations,
`clip`, `input_forget` and `layout`; weights that are computed; types other than float32; what would make the layers of
a model more than 10,000 nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from pipeline.graph.files.model_file import external_range, inline_tensor, is_external, set_external
from pipeline.graph.files.stored_form import form_of
from pipeline.graph.ir.attributes import is_special_lstm, text
from pipeline.graph.ir.index import GraphIndex, is_op, prune, substitute
from pipeline.graph.ir.inference import shape_of
from pipeline.graph.ir.traverse import input_at

_MOST_NODES = 10_000
"""What all layers of a model may become: six both ways over 50 places.

3200 nodes took 25 s to compile and run, where operators took 8, 9400 took 80 s of CPU to compile.
"""
_NODES_OF_A_PLACE, _NODES_OF_PEEPHOLES = 16, 10
_FLOAT_BYTES = 4
_LEAST = -128.0
"""Tanh of less than -10 is -1. HTP makes one coarse operator of a sum and its Tanh, but for a bound between them."""


def apply(model: ModelProto, folder: Path, *, is_wanted: Callable[[GraphIndex, NodeProto], bool]) -> int:
    """Write out the layers of a model, QDQ or float, that are wanted; returns their number."""
    layers = [node for node in model.graph.node if is_op(node, "LSTM")]
    if not layers:
        return 0
    index = GraphIndex(model, folder)
    added, nodes = _Additions(index), 0
    found: list[NodeProto] = []
    for node in layers:
        layer = _read(index, node) if is_wanted(index, node) else None
        if layer is None or nodes + layer.nodes > _MOST_NODES:
            continue
        nodes += layer.nodes
        found.append(node)
        _Writer(index, added, layer).write()
    if found:
        substitute(model, found, added.finish())
        prune(model)
    return len(found)


@dataclass(frozen=True)
class _Layer:
    """A layer and its sizes."""

    node: NodeProto
    directions: int
    places: int
    batch: int
    inner: int
    size: int

    @property
    def nodes(self) -> int:
        """What it becomes."""
        one = _NODES_OF_A_PLACE + (_NODES_OF_PEEPHOLES if self.given(_PEEPHOLES) else 0)
        return self.directions * self.places * one

    def given(self, position: int) -> str:
        """The name of an input; empty if there is none."""
        return input_at(self.node, position)

    def goes_back(self, direction: int) -> bool:
        """Whether a direction begins with the last place."""
        return text(self.node, "direction") == "reverse" or direction == 1

    @property
    def stem(self) -> str:
        """What names of new nodes and values begin with."""
        return self.node.name or next(name for name in self.node.output if name)


_X, _W, _R, _B, _LENGTHS, _H, _C, _PEEPHOLES = range(8)


def _read(index: GraphIndex, node: NodeProto) -> _Layer | None:
    """A layer that can be written out."""
    given = (*node.input, *[""] * 8)[:8]
    if is_special_lstm(node) or given[_LENGTHS]:
        return None
    constants = [index.initializers.get(name) for name in (*given[_W : _B + 1], given[_PEEPHOLES]) if name]
    if any(tensor is None or tensor.data_type != TensorProto.FLOAT for tensor in constants):
        return None
    dims = _dims(index, given[_X])
    if dims is None or not all(_dims(index, name) for name in (given[_H], given[_C]) if name):
        return None
    places, batch, inner = dims
    directions, _, size = index.initializers[given[_R]].dims
    return _Layer(node, directions, places, batch, inner, size)


def _dims(index: GraphIndex, name: str) -> tuple[int, ...] | None:
    """The dims of a value in float32; between it and the value that has a type there are Q, DQ and Cast nodes."""
    while name not in index.types and name not in index.initializers:
        maker = index.maker(name, "DequantizeLinear", "QuantizeLinear", "Cast")
        if maker is None:
            return None
        name = maker.input[0]
    tensor = index.initializers.get(name)
    kind = tensor.data_type if tensor is not None else index.types[name].tensor_type.elem_type
    if kind != TensorProto.FLOAT:
        return None
    return tuple(tensor.dims) if tensor is not None else shape_of(index.types[name])


class _Additions:
    """Nodes, constants and types that are to join a model. All values are of float32."""

    def __init__(self, index: GraphIndex) -> None:
        self._index = index
        self._taken: set[str] = set()
        self._constants: list[TensorProto] = []
        self._values: list[ValueInfoProto] = []
        self.nodes: list[NodeProto] = []

    def op(self, kind: str, *inputs: str, out: str, dims: Sequence[int], **attributes: Any) -> str:
        """Add an operator whose result is to be called `out`; returns the name it got."""
        made = self._unused(out)
        self.nodes.append(helper.make_node(kind, list(inputs), [made], made, **attributes))
        self._values.append(helper.make_tensor_value_info(made, TensorProto.FLOAT, dims))
        return made

    def constant(self, name: str, array: NDArray[Any]) -> str:
        """Add an initializer with these values."""
        return self.initializer(inline_tensor(self._unused(name), array))

    def initializer(self, tensor: TensorProto) -> str:
        """Add an initializer; returns the name it got."""
        if tensor.name not in self._taken:
            tensor.name = self._unused(tensor.name)
        self._constants.append(tensor)
        return tensor.name

    def finish(self) -> list[NodeProto]:
        """Add constants and types to the model; returns the nodes, for the caller to put in their place."""
        self._index.model.graph.initializer.extend(self._constants)
        self._index.model.graph.value_info.extend(self._values)
        return self.nodes

    def _unused(self, stem: str) -> str:
        name, count = stem, 1
        while name in self._taken or self._index.unused(name) != name:
            count += 1
            name = f"{stem}_{count}"
        self._taken.add(name)
        return name


class _Writer:
    """Writes out one layer."""

    def __init__(self, index: GraphIndex, added: _Additions, layer: _Layer) -> None:
        self._index = index
        self._added = added
        self._layer = layer

    def write(self) -> None:
        """Add its nodes; the last of them make its outputs."""
        layer, added = self._layer, self._added
        runs = [self._run(direction) for direction in range(layer.directions)]
        state = (1, layer.batch, layer.size)
        shapes = [(layer.places, 1, layer.batch, layer.size), state, state]
        for output, parts, shape, axis in zip(
            (*layer.node.output, "", "")[:3], zip(*runs, strict=True), shapes, (1, 0, 0), strict=True
        ):
            if output:
                whole = [self._reshaped(part, shape, f"{output}_of_one") for part in parts]
                added.nodes.append(helper.make_node("Concat", whole, [output], f"{output}_made", axis=axis))

    def _run(self, direction: int) -> tuple[str, str, str]:
        """All hidden states [places * batch, size] in the sequence's order, and the last hidden and cell state."""
        layer, added, stem = self._layer, self._added, f"{self._layer.stem}/{direction}"
        rows, batch, gates = layer.places * layer.batch, layer.batch, 4 * layer.size
        source = self._reshaped(layer.given(_X), (rows, layer.inner), f"{stem}/source")
        weights = self._matrix(layer.given(_W), direction, f"{stem}/weights")
        recurrent = self._matrix(layer.given(_R), direction, f"{stem}/recurrent")
        bias = added.constant(f"{stem}/bias", self._bias(direction))
        given = added.op("Gemm", source, weights, bias, out=f"{stem}/given", dims=(rows, gates), transB=1)
        hidden, cell = self._first(_H, direction), self._first(_C, direction)
        peepholes = self._peepholes(direction, stem)
        found: dict[int, str] = {}
        for place in reversed(range(layer.places)) if layer.goes_back(direction) else range(layer.places):
            at = f"{stem}/{place}"
            own = self._slice(given, place * batch, 0, f"{at}/given", (batch, gates))
            carried = added.op("Gemm", hidden, recurrent, out=f"{at}/carried", dims=(batch, gates), transB=1)
            both = added.op("Add", own, carried, out=f"{at}/gates", dims=(batch, gates))
            hidden, cell = self._step(both, cell, at, peepholes)
            found[place] = hidden
        every = [found[place] for place in range(layer.places)]
        return added.op("Concat", *every, out=f"{stem}/places", dims=(rows, layer.size), axis=0), hidden, cell

    def _step(self, gates: str, cell: str, at: str, peepholes: Sequence[str]) -> tuple[str, str]:
        """The hidden and cell state behind one place."""
        added, size = self._added, self._layer.size
        one = (self._layer.batch, size)
        new = added.op("Tanh", self._slice(gates, 3 * size, 1, f"{at}/entering", one), out=f"{at}/new", dims=one)
        if peepholes:
            of_enter, of_leave, of_keep = peepholes
            enter = self._opened(self._seeing(gates, 0, cell, of_enter, f"{at}/enter"), f"{at}/enter")
            keep = self._opened(self._seeing(gates, 2, cell, of_keep, f"{at}/keep"), f"{at}/keep")
            leave = ""
        else:
            three = (self._layer.batch, 3 * size)
            closed = self._slice(gates, 0, 1, f"{at}/closed", three)
            opened = added.op("Sigmoid", closed, out=f"{at}/opened", dims=three)
            enter, leave, keep = (
                self._slice(opened, number * size, 1, f"{at}/{name}", one)
                for number, name in enumerate(("enter", "leave", "keep"))
            )
        kept = added.op("Mul", keep, cell, out=f"{at}/kept", dims=one)
        gained = added.op("Mul", enter, new, out=f"{at}/gained", dims=one)
        cell = added.op("Add", kept, gained, out=f"{at}/cell", dims=one)
        if peepholes:
            leave = self._opened(self._seeing(gates, 1, cell, of_leave, f"{at}/leave"), f"{at}/leave")
        bent = added.op("Tanh", self._bounded(cell, at), out=f"{at}/bent", dims=one)
        return added.op("Mul", leave, bent, out=f"{at}/hidden", dims=one), cell

    def _seeing(self, gates: str, number: int, cell: str, weight: str, out: str) -> str:
        """What goes into a gate that sees the cell state."""
        one = (self._layer.batch, self._layer.size)
        own = self._slice(gates, number * self._layer.size, 1, f"{out}_blind", one)
        seen = self._added.op("Mul", cell, weight, out=f"{out}_seen", dims=one)
        return self._added.op("Add", own, seen, out=f"{out}_closed", dims=one)

    def _opened(self, closed: str, out: str) -> str:
        one = (self._layer.batch, self._layer.size)
        return self._added.op("Sigmoid", self._bounded(closed, out), out=out, dims=one)

    def _bounded(self, value: str, at: str) -> str:
        """A sum, apart from the activation that is taken of it."""
        least = self._added.constant(f"{at}/least", np.array(_LEAST, np.float32))
        return self._added.op("Clip", value, least, out=f"{at}/bounded", dims=(self._layer.batch, self._layer.size))

    def _matrix(self, name: str, direction: int, out: str) -> str:
        """The weights of one direction as a matrix: the same bytes, where they are in a blob."""
        tensor = self._index.initializers[name]
        dims = tuple(tensor.dims)[1:]
        if is_external(tensor) and form_of(tensor) is None:
            place, length = external_range(tensor), prod(dims) * _FLOAT_BYTES
            made = TensorProto(name=out, data_type=TensorProto.FLOAT, dims=dims)
            set_external(made, place.location, place.offset + direction * length, length)
            return self._added.initializer(made)
        array = self._index.constant(name)
        assert array is not None
        return self._added.constant(out, array[direction])

    def _bias(self, direction: int) -> NDArray[np.float32]:
        layer = self._layer
        array = self._index.constant(layer.given(_B)) if layer.given(_B) else None
        if array is None:
            return np.zeros(4 * layer.size, np.float32)
        both: NDArray[np.float32] = array[direction].reshape(2, -1).sum(axis=0, dtype=np.float32)
        return both

    def _peepholes(self, direction: int, stem: str) -> Sequence[str]:
        """What a gate multiplies the cell state with: the input's, the output's, the forget gate's; none mostly."""
        name = self._layer.given(_PEEPHOLES)
        array = self._index.constant(name) if name else None
        if array is None or not array.any():
            return ()
        return [
            self._added.constant(f"{stem}/peephole", np.ascontiguousarray(part))
            for part in array[direction].reshape(3, -1)
        ]

    def _first(self, position: int, direction: int) -> str:
        """A state that a direction begins with, [batch, size]."""
        layer, stem = self._layer, f"{self._layer.stem}/{direction}/first"
        name = layer.given(position)
        if not name:
            return self._added.constant(stem, np.zeros((layer.batch, layer.size), np.float32))
        if layer.directions > 1:
            name = self._slice(name, direction, 0, f"{stem}_own", (1, layer.batch, layer.size))
        return self._reshaped(name, (layer.batch, layer.size), stem)

    def _reshaped(self, name: str, shape: Sequence[int], out: str) -> str:
        to = self._added.constant(f"{out}_shape", np.array(shape, np.int64))
        return self._added.op("Reshape", name, to, out=out, dims=shape)

    def _slice(self, name: str, start: int, axis: int, out: str, dims: Sequence[int]) -> str:
        """What of a value begins at `start` along an axis, of these dims."""
        bounds = [np.array([number], np.int64) for number in (start, start + dims[axis], axis)]
        return self._added.op(
            "Slice", name, *(self._added.constant(f"{out}_at", bound) for bound in bounds), out=out, dims=dims
        )
