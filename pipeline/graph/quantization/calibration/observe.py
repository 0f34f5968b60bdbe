"""Watching every float value of a model while it runs, and how large its integers get."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, ValueInfoProto

from pipeline.graph.cpu import Arrays, run, unoptimized_session
from pipeline.graph.files.model_file import load_graph
from pipeline.graph.ir.index import FLOATS, GraphIndex
from pipeline.graph.ir.inference import shape_of
from pipeline.graph.ir.traverse import reads
from pipeline.graph.quantization.calibration.input_guards import input_guards
from pipeline.graph.quantization.calibration.ranges import Range

_INTEGERS = (TensorProto.INT32, TensorProto.INT64)
_BYTES_AT_ONCE = 3 << 28
"""Values fetched in one run; a model that makes more is run again for the rest, so that memory stays bounded."""


class Observer:
    """Runs one bucket's float model and reports the range of every float value, inputs included.

    `integers` has the range of every value of int32 and int64, inputs included, over all samples so far.
    """

    def __init__(self, path: Path) -> None:
        """`path` is a graph file with every dim fixed and a type for every value."""
        self.model = load_graph(path)
        self.folder = path.parent
        self.index = GraphIndex(self.model, self.folder)
        self.inputs = [value.name for value in self.model.graph.input if value.name in self.index.types]
        self._groups = list(_groups(self._computed()))
        self.names = [name for name in (*self.inputs, *chain(*self._groups)) if self._is_one_of(FLOATS, name)]
        """All values that are watched, inputs first, then in the graph's order."""
        self.with_nan = input_guards(self.index).unguarded
        """Inputs, and what is moved of them, in which a NaN is replaced by the model itself before it counts."""
        self._session: ort.InferenceSession | None = None
        self.integers: dict[str, Range] = {}

    def arrays(self, feeds: Arrays) -> Iterator[tuple[str, NDArray[Any]]]:
        """Every watched value that has elements, for one sample of the model's own shape; not all in memory at once."""
        if self._session is None:
            self._session = unoptimized_session(with_outputs(self.model, self._computed()), self.folder)
        watched = set(self.names)
        self._note_integers({name: np.asarray(feeds[name]) for name in self.inputs if name not in watched})
        yield from ((name, np.asarray(feeds[name])) for name in self.inputs if name in watched)
        for group in self._groups:
            computed = run(self._session, feeds, group)
            self._note_integers({name: array for name, array in computed.items() if name not in watched})
            while computed:
                name, array = computed.popitem()
                if array.size and name in watched:
                    yield name, array

    def without_nan(self, name: str, array: NDArray[Any]) -> NDArray[Any]:
        """The elements of a value that have a range: all but each NaN that the model replaces; 0 if none is left."""
        if name not in self.with_nan or not np.isnan(array).any():
            return array
        kept = array[~np.isnan(array)]
        return kept if kept.size else np.zeros(1, array.dtype)

    def _note_integers(self, arrays: Arrays) -> None:
        for name, array in arrays.items():
            if array.size and self._is_one_of(_INTEGERS, name):
                seen = Range.of(array)
                self.integers[name] = self.integers.get(name, seen) | seen

    def _is_one_of(self, kinds: Collection[int], name: str) -> bool:
        return self.index.types[name].tensor_type.elem_type in kinds

    def close(self) -> None:
        """Give the session's memory back."""
        self._session = None

    def sources(self) -> Mapping[str, frozenset[str]]:
        """For each value that nodes make, the inputs of the model that it depends on."""
        found: dict[str, frozenset[str]] = {name: frozenset([name]) for name in self.inputs}
        for node in self.model.graph.node:
            union = frozenset[str]().union(*(found.get(name, frozenset()) for name in reads(node)))
            found |= {name: union for name in node.output if name}
        return found

    def _computed(self) -> list[ValueInfoProto]:
        """Every float value, int32 and int64 that a node makes, in the graph's order."""
        names = [name for node in self.model.graph.node for name in node.output if name]
        types = self.index.types
        watched = [name for name in names if self._is_one_of((*FLOATS, *_INTEGERS), name)]
        return [ValueInfoProto(name=name, type=types[name]) for name in watched]


class Recorder(Observer):
    """An observer that keeps the graph's outputs of its last run, for what is to be run after it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.made: dict[str, NDArray[Any]] = {}

    def arrays(self, feeds: Arrays) -> Iterator[tuple[str, NDArray[Any]]]:
        """As an observer's."""
        for name, array in super().arrays(feeds):
            if name in self.index.outputs:
                self.made[name] = array
            yield name, array


def _groups(values: list[ValueInfoProto]) -> Iterator[list[str]]:
    """The values' names, in groups that take no more than :data:`_BYTES_AT_ONCE`."""
    group: list[str] = []
    size = 0
    for value in values:
        count = 1
        for dim in shape_of(value.type):
            count *= dim
        if group and size + 4 * count > _BYTES_AT_ONCE:
            yield group
            group, size = [], 0
        group.append(value.name)
        size += 4 * count
    if group:
        yield group


def with_outputs(model: ModelProto, values: list[ValueInfoProto]) -> ModelProto:
    """The model with these values as its outputs."""
    watched = ModelProto()
    watched.CopyFrom(model)
    del watched.graph.output[:]
    watched.graph.output.extend(values)
    return watched
