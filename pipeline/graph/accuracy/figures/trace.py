"""Looking into models: the values between their nodes, of several models side by side, as many as fit into memory.

A value that alone is larger than that, as the scores of an attention over 128 x 128 places, is there once for each
model whose elements are compared, and nothing of its size is kept from one run of a model to the next.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto

from pipeline.graph.cpu import Arrays, frugal_session, run
from pipeline.graph.files.model_file import load_graph
from pipeline.graph.ir.index import FLOATS, GraphIndex
from pipeline.graph.ir.inference import is_static, shape_of
from pipeline.graph.ir.traverse import live_nodes, reads
from pipeline.progress import counted

BYTES_AT_ONCE = 1 << 28
"""Values looked at in one run of each model; a model that makes more is run again for the rest."""


class TracedModel:
    """A model on disk, any of whose values can be made an output."""

    def __init__(self, path: Path) -> None:
        """`path` is a graph file, with its blobs beside it."""
        self.model = load_graph(path)
        self.folder = path.parent
        self.index = GraphIndex(self.model, self.folder)
        self.inputs = frozenset(value.name for value in self.model.graph.input) - set(self.index.initializers)

    def floats(self) -> list[str]:
        """Float values whose types the model tells, its inputs first, then in the graph's order."""
        made = (name for node in self.model.graph.node for name in node.output if name)
        given = (value.name for value in self.model.graph.input if value.name in self.inputs)
        return [name for name in (*given, *made) if self._is_float(name)]

    def has(self, name: str) -> bool:
        """Whether a node makes this value, or it is an input."""
        return name in self.index.makers or name in self.inputs

    def nbytes(self, name: str) -> int | None:
        """The size of a value, None if the model doesn't tell."""
        kind = self.index.types.get(name)
        return 4 * math.prod(shape_of(kind)) if kind is not None and is_static(kind) else None

    def session(self, values: Iterable[str], twins: Sequence[Twin] = ()) -> ort.InferenceSession:
        """A session that computes these values, and nodes put into the graph beside it."""
        graph = self.model.graph
        traced = ModelProto(opset_import=self.model.opset_import, ir_version=self.model.ir_version)
        traced.graph.name = graph.name
        traced.graph.input.extend(graph.input)
        for name in values:
            traced.graph.output.append(ValueInfoProto(name=name, type=self.index.types.get(name)))
        nodes = live_nodes([*graph.node, *(twin.node for twin in twins)], (value.name for value in traced.graph.output))
        read = {name for node in nodes for name in reads(node)}
        traced.graph.node.extend(nodes)
        traced.graph.initializer.extend(tensor for tensor in graph.initializer if tensor.name in read)
        for twin in twins:
            traced.graph.initializer.extend(twin.constants())
        return frugal_session(traced, self.folder)

    def _is_float(self, name: str) -> bool:
        kind = self.index.types.get(name)
        return kind is not None and kind.tensor_type.elem_type in FLOATS


@dataclass(frozen=True)
class Twin:
    """A node put beside one of a model's, to compute the same with other constants, which take `nbytes` when made."""

    node: NodeProto
    nbytes: int
    constants: Callable[[], Sequence[TensorProto]]


@dataclass(frozen=True)
class View:
    """A model with its inputs for each sample, and how it names what is looked at.

    `names` leads from the name that a value goes by to the one that it has in this model; what isn't in it has the
    same in both. `twins` are nodes, by the name that their value goes by, that the model gets for it. With `hollow`,
    values have their shapes and no elements.
    """

    traced: TracedModel
    feeds: Sequence[Arrays]
    names: Mapping[str, str] = field(default_factory=dict)
    twins: Mapping[str, Twin] = field(default_factory=dict)
    hollow: bool = False

    def name(self, value: str) -> str:
        """The name of a value in this model."""
        return self.names.get(value, value)

    def has(self, value: str) -> bool:
        """Whether the value can be looked at in this model."""
        return value in self.twins or self.traced.has(self.name(value))

    def nbytes(self, value: str) -> int | None:
        """About what looking at the value takes, 0 where it isn't there; None if the model doesn't tell."""
        if not self.has(value):
            return 0
        twin = self.twins.get(value)
        # A twin's value is no value of the model: it is as large as the one that it is a twin of.
        size = self.traced.nbytes(value if twin else self.name(value))
        return None if size is None else size + (twin.nbytes if twin else 0)

    def opened(self, values: Sequence[str]) -> OpenView:
        """The model loaded, to look at some of its values."""
        mine = [value for value in values if self.has(value)]
        computed = dict.fromkeys(name for name in map(self.name, mine) if name not in self.traced.inputs)
        twins = [self.twins[value] for value in mine if value in self.twins]
        return OpenView(self, mine, self.traced.session(computed, twins) if computed else None)


@dataclass(frozen=True)
class OpenView:
    """A view of some values, ready to run."""

    view: View
    values: Sequence[str]
    session: ort.InferenceSession | None

    def look(self, sample: int) -> dict[str, NDArray[Any]]:
        """The values for one sample, by the names they go by."""
        feeds = self.view.feeds[sample]
        found = dict(feeds) if self.session is None else {**feeds, **run(self.session, feeds)}
        looked = {value: found[self.view.name(value)] for value in self.values}
        return {value: _hollow(array) for value, array in looked.items()} if self.view.hollow else looked


def _hollow(array: NDArray[Any]) -> NDArray[Any]:
    """An array of the same shape, whose elements are one and the same zero."""
    return np.broadcast_to(np.zeros((), array.dtype), array.shape)


def side_by_side(
    views: Sequence[View], values: Sequence[str]
) -> Iterator[tuple[str, int, tuple[NDArray[Any] | None, ...]]]:
    """Each value, the number of the sample, and what each model has there: None where it has no such value.

    All samples of one value come before the next value's of another group, and no model is loaded twice at a time.
    """
    groups = list(_groups(views, values))
    for group in counted(groups, "part of the graph", len(groups)):
        opened = [view.opened(group) for view in views]
        for sample in range(len(views[0].feeds)):
            found = [each.look(sample) for each in opened]
            for value in group:
                yield value, sample, tuple(arrays.pop(value, None) for arrays in found)


def _groups(views: Sequence[View], values: Sequence[str]) -> Iterator[list[str]]:
    group: list[str] = []
    size = 0
    for value in values:
        sizes = [view.nbytes(value) for view in views]
        largest = max((size for size in sizes if size is not None), default=0)
        more = sum(largest if size is None else size for size in sizes)
        if group and size + more > BYTES_AT_ONCE:
            yield group
            group, size = [], 0
        group.append(value)
        size += more
    if group:
        yield group
