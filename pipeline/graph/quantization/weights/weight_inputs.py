"""What the weights of one bucket's float model are multiplied with, sample by sample.

Products with constant matrices that are made of some rows alone, which each run chooses.

Before, of a value [a, b, m, k] and a constant matrix [k, n]::

    MatMul(x, w)

After, with `take` the rows that are wanted, and `spread` for each row its place among those::

    Reshape(Gather(MatMul(Gather(Reshape(x, [-1, k]), take), w), spread), [a, b, m, n])

Rows of padding bear on nothing, and most of a short sample is padding. They get the result of the first row that is
wanted, which is as harmless as any: what reads it leaves the rows that are wanted what they are, as was seen.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from pipeline.graph.cpu import Arrays, frugal_session, run
from pipeline.graph.files.model_file import load_graph
from pipeline.graph.ir.index import FLOATS, GraphIndex, is_op
from pipeline.graph.ir.inference import shape_of
from pipeline.graph.quantization.calibration.double_pass import in_double, widened_once
from pipeline.graph.quantization.weights.block_minima import is_exact
from pipeline.graph.quantization.weights.valid_rows import OwnRows, Shapes
from pipeline.graph.quantization.weights.weight_layout import layout_of, row_dims, rows_of
from pipeline.graph.shapes.cost import macs

_SAME = 1e-9
"""Of the largest: a difference that float64 makes, and the contents of padding do not."""
_ALL_ROWS: Mapping[str, NDArray[np.bool_]] = {}
_WIDENED_BYTES = 256 << 20
"""What weights may take in float64 that are widened once and not in every run."""


@dataclass(frozen=True)
class Matrix:
    """Weights that are multiplied with the same rows of a sample, [rows, inputs]."""

    weights: tuple[str, ...]
    inputs: int
    rows: int

    @property
    def bytes(self) -> int:
        """What the rows take in float64."""
        return 8 * self.rows * self.inputs


class WeightInputs:
    """Runs one bucket's float model in float64 and gives the rows that its weights are multiplied with.

    `doubtful` are weights whose rows may differ between processors by more than float64 does, and are not given.
    `products` are the multiply-accumulates of one sample.
    """

    def __init__(self, path: Path) -> None:
        """`path` is a graph file with every dim fixed and a type for every value."""
        self._model = load_graph(path)
        self._folder = path.parent
        self._index = GraphIndex(self._model, self._folder)
        self._readers: dict[str, list[NodeProto]] = {}
        for node in self._model.graph.node:
            if layout_of(self._index, node) is None or is_exact(self._index, node):
                continue
            if self._index.initializers[node.input[1]].data_type in FLOATS:
                self._readers.setdefault(node.input[1], []).append(node)
        doubtful = in_double(
            self._index, {node.input[0] for nodes in self._readers.values() for node in nodes}
        ).doubtful
        self.doubtful = frozenset(
            weight for weight, nodes in self._readers.items() if any(node.input[0] in doubtful for node in nodes)
        )
        for weight in self.doubtful:
            del self._readers[weight]
        self.products = macs(self._model)
        outputs = [value for value in self._model.graph.output if value.type.tensor_type.elem_type in FLOATS]
        self._results = {value.name for value in outputs if shape_of(value.type)}
        self._contents: frozenset[str] | None = None
        self._kept: dict[Shapes, Mapping[str, NDArray[np.bool_]]] = {}
        self._own = OwnRows()
        self._widened: Arrays = {}
        self._products = RowProducts({})
        self._session: ort.InferenceSession | None = None
        self._watched: Mapping[str, str] = {}
        self.made: Arrays = {}
        """The outputs of the last run that are floats, in float64."""

    def matrices(self) -> list[Matrix]:
        """The weights in the graph's order, those together that all multiply the same rows of the same values.

        A Conv and a MatMul that read one value multiply other rows: channels, and what lies along the last axis.
        """
        alike: dict[tuple[tuple[str, bool], ...], list[str]] = {}
        for weight, nodes in self._readers.items():
            alike.setdefault(tuple((node.input[0], is_op(node, "Conv")) for node in nodes), []).append(weight)
        return [self._matrix({value for value, _ in read}, tuple(weights)) for read, weights in alike.items()]

    def watch(self, weights: Collection[str]) -> None:
        """Get ready to give the rows of some weights, those of which the model has."""
        values = {node.input[0] for weight in weights for node in self._readers.get(weight, [])}
        wide = in_double(self._index, values | self._results)
        self._watched = wide.outputs
        self._kept, self._own = {}, OwnRows()
        self._widened = widened_once(self._index, wide.model, _WIDENED_BYTES)
        self._products = choose_rows(wide.model, self._matrices_read())
        self._session = frugal_session(wide.model, self._folder) if values else None

    def rows(
        self, feeds: Arrays, weights: Sequence[str], refilled: Arrays, shapes: Shapes
    ) -> Iterator[tuple[str, NDArray[Any]]]:
        """For one sample, each of the weights with rows that one of its readers multiplies it with.

        `refilled` has inputs with other contents where they are padded. Rows that change with them are the padding's
        own and are left out: the same of all samples of the same `shapes`. An input with which all of a result changes,
        such as a mask, says nothing.
        """
        if self._session is None:
            return
        if refilled and shapes not in self._kept and (told := self._own.told(shapes)) is not None:
            self._kept[shapes] = told
        values = self._run(feeds, self._kept.get(shapes, {}) if refilled else {})
        self.made = {name: values[name] for name in self._results}
        if refilled and shapes not in self._kept:
            self._kept[shapes] = self._own_rows(values, feeds, refilled, shapes)
        kept = self._kept[shapes] if refilled else {}
        for weight in weights:
            for node in self._readers.get(weight, []):
                rows = rows_of(node, values[node.input[0]])
                yield weight, rows[kept[node.name]] if node.name in kept else rows

    def _own_rows(
        self, values: Arrays, feeds: Arrays, refilled: Arrays, shapes: Shapes
    ) -> Mapping[str, NDArray[np.bool_]]:
        """By reader, which rows are not of padding alone; nothing where all are to be taken."""
        alone: dict[str, Arrays] = {}
        if self._contents is None:
            alone = {name: self._run({**feeds, name: array}) for name, array in refilled.items()}
            self._contents = frozenset(name for name, changed in alone.items() if self._leaves_some(values, changed))
        contents = {name: array for name, array in refilled.items() if name in self._contents}
        if not contents:
            return {}
        (first, *more) = contents
        others = alone[first] if first in alone and not more else self._run({**feeds, **contents})
        watched = [node for nodes in self._readers.values() for node in nodes if node.input[0] in values]
        found = {
            node.name: _unchanged(*(rows_of(node, each[node.input[0]]) for each in (values, others)))
            for node in watched
        }
        self._own.learn(
            shapes, {node.name: (row_dims(node, values[node.input[0]]), found[node.name]) for node in watched}
        )
        return found

    def _run(self, feeds: Arrays, own: Mapping[str, NDArray[np.bool_]] = _ALL_ROWS) -> Mapping[str, NDArray[Any]]:
        """The watched values; of products that read `own` rows and others, by reader, the own rows alone are right."""
        assert self._session is not None
        given = {**feeds, **self._widened, **self._products.feeds(own)}
        made = run(self._session, given, [*self._watched.values()])
        return {name: made[wide] for name, wide in self._watched.items()}

    def _matrices_read(self) -> dict[str, tuple[int, ...]]:
        """By reader that multiplies rows, the dims of what it reads."""
        readers = (node for nodes in self._readers.values() for node in nodes)
        return {node.name: shape_of(self._index.types[node.input[0]]) for node in readers if not is_op(node, "Conv")}

    def _leaves_some(self, values: Arrays, changed: Arrays) -> bool:
        """Whether of each result some rows stay what they are."""
        both = [[each[name].reshape(-1, each[name].shape[-1]) for each in (values, changed)] for name in self._results]
        return all(_unchanged(*each).any() for each in both)

    def close(self) -> None:
        """Give the session's memory back."""
        self._session = None
        self._widened = {}

    def _matrix(self, values: Collection[str], weights: tuple[str, ...]) -> Matrix:
        layout = layout_of(self._index, self._readers[weights[0]][0])
        assert layout is not None
        inputs = int(self._index.initializers[weights[0]].dims[layout.inputs])
        elements = sum(math.prod(shape_of(self._index.types[name])) for name in values)
        return Matrix(weights, inputs, elements // inputs)


def _unchanged(rows: NDArray[Any], others: NDArray[Any]) -> NDArray[np.bool_]:
    """Which rows are the same but for what the order of sums does to float64."""
    off = np.abs(rows - others).max(axis=1, initial=0.0)
    return np.asarray(off <= _SAME * np.abs(rows).max(initial=0.0))


Dims = tuple[int, ...]


@dataclass(frozen=True)
class RowProducts:
    """Which nodes of a model can be told what rows to multiply, by name with how many they have."""

    rows: Mapping[str, int]

    def feeds(self, wanted: Mapping[str, NDArray[np.bool_]]) -> dict[str, NDArray[Any]]:
        """What a run is given, for it to multiply the rows that are `wanted` alone, by node; of other nodes all."""
        found: dict[str, NDArray[Any]] = {}
        for name, count in self.rows.items():
            taken = np.flatnonzero(wanted[name]) if name in wanted else np.arange(count)
            taken = taken if len(taken) else np.arange(count)
            spread = np.zeros(count, np.int64)
            spread[taken] = np.arange(len(taken))
            found |= {_take(name): taken.astype(np.int64), _spread(name): spread}
        return found


def choose_rows(model: ModelProto, inputs: Mapping[str, Dims]) -> RowProducts:
    """Let every MatMul of `model` that is in `inputs`, by name with the dims of what it multiplies a constant matrix
    with, be told which rows to multiply.
    """
    rows: dict[str, int] = {}
    nodes = list[NodeProto]()
    for node in model.graph.node:
        dims = inputs.get(node.name, ())
        if not is_op(node, "MatMul") or prod(dims[:-1]) < 2:
            nodes.append(node)
            continue
        rows[node.name] = prod(dims[:-1])
        nodes += _of_some_rows(model, node, dims)
    copies = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del model.graph.node[:]
    model.graph.node.extend(copies)
    return RowProducts(rows)


def _of_some_rows(model: ModelProto, node: NodeProto, dims: Dims) -> list[NodeProto]:
    name, (source, weight), result = node.name, node.input, node.output[0]
    to, back = f"{name}/flat", f"{name}/deep"
    model.graph.initializer.extend(
        numpy_helper.from_array(np.array(values, np.int64), constant)
        for constant, values in ((to, [-1, dims[-1]]), (back, [*dims[:-1], -1]))
    )
    model.graph.input.extend(
        helper.make_tensor_value_info(given, TensorProto.INT64, [size])
        for given, size in ((_take(name), None), (_spread(name), prod(dims[:-1])))
    )
    steps = [
        ("Reshape", source, to),
        ("Gather", "", _take(name)),
        ("MatMul", "", weight),
        ("Gather", "", _spread(name)),
    ]
    made = [f"{name}/rows", f"{name}/some", f"{name}/made", f"{name}/spread"]
    nodes, last = list[NodeProto](), ""
    for (op, first, second), output in zip(steps, made, strict=True):
        nodes.append(helper.make_node(op, [first or last, second], [output], output))
        last = output
    return [*nodes, helper.make_node("Reshape", [last, back], [result], name)]


def _take(name: str) -> str:
    return f"{name}/take"


def _spread(name: str) -> str:
    return f"{name}/spread_by"
