"""What the weights of one bucket's float model are multiplied with, sample by sample."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnxruntime as ort
from numpy.typing import NDArray
from onnx import NodeProto, ValueInfoProto

from pipeline.graph.cpu import Arrays, run, unoptimized_session
from pipeline.graph.files.model_file import load_graph
from pipeline.graph.ir.index import FLOATS, GraphIndex
from pipeline.graph.quantization.observe import with_outputs
from pipeline.graph.quantization.weight_layout import layout_of, rows_of


@dataclass(frozen=True)
class Matrix:
    """Weights that are multiplied with the same rows, [rows, inputs]."""

    weights: tuple[str, ...]
    inputs: int


class WeightInputs:
    """Runs one bucket's float model and gives the rows that its weights are multiplied with."""

    def __init__(self, path: Path) -> None:
        """`path` is a graph file with every dim fixed and a type for every value."""
        self._model = load_graph(path)
        self._folder = path.parent
        self._index = GraphIndex(self._model, self._folder)
        self._readers: dict[str, list[NodeProto]] = {}
        for node in self._model.graph.node:
            if layout_of(self._index, node) is not None and self._index.initializers[node.input[1]].data_type in FLOATS:
                self._readers.setdefault(node.input[1], []).append(node)
        self._session: ort.InferenceSession | None = None
        self._watched: list[str] = []
        self.made: Arrays = {}
        """What the last run made of the values that :meth:`watch` was told to keep."""
        self._kept: list[str] = []

    def matrices(self) -> list[Matrix]:
        """The weights in the graph's order, those together that all read the same values."""
        alike: dict[tuple[str, ...], list[str]] = {}
        for weight, nodes in self._readers.items():
            alike.setdefault(tuple(node.input[0] for node in nodes), []).append(weight)
        return [Matrix(tuple(weights), self._inputs(weights[0])) for weights in alike.values()]

    def watch(self, weights: Collection[str], kept: Collection[str] = ()) -> None:
        """Get ready to give the rows of those of the weights that the model has, and to keep outputs of the model."""
        values = {node.input[0] for weight in weights for node in self._readers.get(weight, [])}
        given = {value.name for value in self._model.graph.input}
        self._watched = sorted(values - given)
        types = self._index.types
        self._kept = sorted({*kept} & self._index.outputs)
        outputs = [ValueInfoProto(name=name, type=types[name]) for name in sorted({*self._watched, *self._kept})]
        self._session = unoptimized_session(with_outputs(self._model, outputs), self._folder) if outputs else None

    def rows(self, feeds: Arrays, weights: Sequence[str]) -> Iterator[tuple[str, NDArray[Any]]]:
        """For one sample, each of the weights with rows that one of its readers multiplies it with."""
        values: Mapping[str, NDArray[Any]] = run(self._session, feeds) if self._session else {}
        self.made = {name: values[name] for name in self._kept}
        for weight in weights:
            for node in self._readers.get(weight, []):
                name = node.input[0]
                yield weight, rows_of(node, values[name] if name in values else feeds[name])

    def close(self) -> None:
        """Give the session's memory back."""
        self._session = None

    def _inputs(self, weight: str) -> int:
        layout = layout_of(self._index, self._readers[weight][0])
        assert layout is not None
        return int(self._index.initializers[weight].dims[layout.inputs])
