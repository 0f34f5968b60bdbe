"""A float model that rounds what it is told to, anew in every run: what encodings cost, without a model for each trial.

Behind every value, and before each of its readers where there are several, stands a rounding to a grid: the multiples
of a scale from a lowest to a highest value, which is what a Q and a DQ node do to a value. Grids and constants are
inputs of one session. A run with the grids and constants of a QDQ model gives what that model gives, bar the rounding
of biases to 32 bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from pipeline.graph.cpu import Arrays, unoptimized_session
from pipeline.graph.files.model_file import byte_size
from pipeline.graph.ir.index import GraphIndex
from pipeline.graph.quantization.qdq.qdq_model import dequantized_constant, encoding_of, standing_for

_FOUR_BITS = (TensorProto.INT4, TensorProto.UINT4)


@dataclass(frozen=True)
class Grid:
    """Multiples of `scale` from `low` to `high`."""

    scale: float
    low: float
    high: float


EXACT = Grid(2.0**-60, -float(np.finfo(np.float32).max), float(np.finfo(np.float32).max))
"""A grid so fine that a float32 above 1e-11 stays what it is."""


@dataclass(frozen=True)
class Site:
    """A place where a value is rounded: where it is made, or on its way into the node named `reader`."""

    value: str
    reader: str | None = None


class Encoded:
    """The encodings of a QDQ model: the grids of its values, and what its constants are after rounding."""

    def __init__(self, model: ModelProto, source: GraphIndex) -> None:
        """`model` was made of `source`'s by a scheme without rules, and carries its tensors."""
        self._index = GraphIndex(model, Path())
        self._grids: dict[Site, Grid] = {}
        self._constants: dict[str, str] = {}
        for name in source.types:
            standing = standing_for(self._index, name)
            if standing is not None:
                self._add(Site(name), standing)
        nodes = {node.name: node for node in model.graph.node}
        for node in source.model.graph.node:
            for before, after in zip(node.input, nodes[node.name].input if node.name in nodes else (), strict=False):
                maker = self._index.makers.get(after)
                if before not in source.initializers:
                    self._add(Site(before, node.name), after)
                elif maker is not None and maker.input[0] in self._index.initializers:
                    self._constants.setdefault(before, after)
        self.values = frozenset(site.value for site in self._grids if site.reader is None)
        """The values that have encodings."""

    def grid(self, site: Site) -> Grid:
        """What a value is rounded to where it is made, or for a reader."""
        return self._grids.get(site) or self._grids[Site(site.value)]

    def stored_bytes(self) -> dict[str, int]:
        """What each quantized constant takes."""
        return {name: byte_size(self._tensor(name)) for name in self._constants}

    def bits(self, name: str) -> int | None:
        """How many bits each element of a constant takes; None for one that isn't quantized."""
        if name not in self._constants:
            return None
        kind = self._tensor(name).data_type
        return 4 if kind in _FOUR_BITS else 8 * helper.tensor_dtype_to_np_dtype(kind).itemsize

    def in_blocks(self, name: str) -> bool:
        """Whether a constant's scales are in blocks."""
        return any(attribute.name == "block_size" for attribute in self._index.makers[self._constants[name]].attribute)

    def constant(self, name: str) -> NDArray[np.float32]:
        """A quantized constant's values after rounding."""
        return dequantized_constant(self._index, self._constants[name])

    def _add(self, site: Site, name: str) -> None:
        encoding = encoding_of(self._index, name)
        if encoding is not None:
            self._grids[site] = Grid(encoding.scale, encoding.covers.low, encoding.covers.high)

    def _tensor(self, name: str) -> TensorProto:
        stored: TensorProto = self._index.initializers[self._index.makers[self._constants[name]].input[0]]
        return stored


def sites(index: GraphIndex, encodings: Sequence[Encoded]) -> list[Site]:
    """Where a model rounds values by one of several encodings.

    A value has a site of its own for each reader if it has several, or if one reads it otherwise than it is made.
    """
    found = []
    for name in index.types:
        if all(name in each.values for each in encodings):
            readers = [Site(name, reader) for reader in direct_readers(index, name)]
            apart = len(readers) > 1 or name in index.outputs
            differ = any(each.grid(site) != each.grid(Site(name)) for each in encodings for site in readers)
            found += [Site(name), *(readers if apart or differ else [])]
    return found


class RoundingModel:
    """One session of a float model in which values are rounded at sites, to grids that each run may give."""

    def __init__(self, model: ModelProto, folder: Path, grids: Mapping[Site, Grid], constants: frozenset[str]) -> None:
        """`grids` are those where a run names none; `constants` may be given for a run. Uses `model` up."""
        self._index = GraphIndex(model, folder)
        self._readers = {site.value: direct_readers(self._index, site.value) for site in grids}
        self.outputs = [value.name for value in model.graph.output]
        self._build(model, grids, constants)
        self._session = unoptimized_session(model, folder)

    def run(self, feeds: Arrays, grids: Mapping[Site, Grid], constants: Arrays) -> list[NDArray[Any]]:
        """All outputs in order, with some sites on other grids than the model's own and some constants replaced."""
        given = {value.name: np.ascontiguousarray(feeds[value.name]) for value in self._session.get_inputs()}
        for site, grid in grids.items():
            given |= {name: np.array(value, np.float32) for name, value in _parameters(site, grid).items()}
        return list(self._session.run(self.outputs, {**given, **constants}))

    def _build(self, model: ModelProto, grids: Mapping[Site, Grid], constants: frozenset[str]) -> None:
        graph = model.graph
        given = {value.name for value in graph.input}
        nodes = {node.name: node for node in graph.node}
        after: dict[str, list[NodeProto]] = {}
        before: dict[str, list[NodeProto]] = {}
        first: list[NodeProto] = []
        for site, grid in grids.items():
            half = self._index.types[site.value].tensor_type.elem_type == TensorProto.FLOAT16
            for name, value in _parameters(site, grid).items():
                graph.initializer.append(numpy_helper.from_array(np.array(value, np.float32), name))
                graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, []))
            if site.reader is not None:
                source = f"{site.value}::rounded" if site.value in given else site.value
                before.setdefault(site.reader, []).extend(_round(site, source, f"{_key(site)}::rounded", half))
                _rename(nodes[site.reader].input, site.value, f"{_key(site)}::rounded")
            elif site.value in given:
                first += _round(site, site.value, f"{site.value}::rounded", half)
                for reader in self._readers[site.value]:
                    if Site(site.value, reader) not in grids:
                        _rename(nodes[reader].input, site.value, f"{site.value}::rounded")
            else:
                maker = self._index.makers[site.value]
                _rename(maker.output, site.value, f"{site.value}::exact")
                after.setdefault(maker.name, []).extend(_round(site, f"{site.value}::exact", site.value, half))
        ordered = list(first)
        for node in graph.node:
            ordered += [*before.get(node.name, []), node, *after.get(node.name, [])]
        copies = [NodeProto.FromString(node.SerializeToString()) for node in ordered]
        del graph.node[:]
        graph.node.extend(copies)
        for name in sorted(constants):
            tensor = self._index.initializers[name]
            graph.input.append(helper.make_tensor_value_info(name, tensor.data_type, tensor.dims))


def direct_readers(index: GraphIndex, name: str) -> list[str]:
    """The names of the nodes that have a value as an input, not counting those whose subgraphs read it."""
    return [node.name for node in index.readers.get(name, []) if name in node.input]


def _key(site: Site) -> str:
    return site.value if site.reader is None else f"{site.value}::{site.reader}"


def _parameters(site: Site, grid: Grid) -> dict[str, float]:
    key = _key(site)
    return {f"{key}::scale": grid.scale, f"{key}::low": grid.low, f"{key}::high": grid.high}


def _round(site: Site, source: str, result: str, half: bool) -> list[NodeProto]:
    """The nodes that round `source` to the grid of a site; float16 is rounded in float32, which has the digits."""
    key = _key(site)
    scale, low, high = _parameters(site, EXACT)
    steps = [("Div", [scale]), ("Round", []), ("Mul", [scale]), ("Clip", [low, high])]
    last = f"{key}::wide" if half else result
    names = [f"{key}::steps", f"{key}::whole", f"{key}::near", last]
    nodes = []
    if half:
        nodes.append(helper.make_node("Cast", [source], [f"{key}::float"], to=TensorProto.FLOAT))
        source = f"{key}::float"
    for (op, operands), name in zip(steps, names, strict=True):
        nodes.append(helper.make_node(op, [source, *operands], [name]))
        source = name
    if half:
        nodes.append(helper.make_node("Cast", [last], [result], to=TensorProto.FLOAT16))
    return nodes


def _rename(names: Any, old: str, new: str) -> None:
    for position, name in enumerate(names):
        if name == old:
            names[position] = new
