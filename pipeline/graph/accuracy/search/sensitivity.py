"""What each choice of precision costs at the outputs of a model: measured, one choice at a time.

The reference is the model with activations of 16 bits and weights of 8. Every choice is one run of the samples with
that choice alone changed (:mod:`pipeline.graph.quantization.qdq.rounding`). The noise of choices that are made together
is about the sum of their noises, as long as it is small.

Groups of nodes that one precision is chosen for.

A node that only moves values takes the type of what it moves, and so does a bias or a scale that a product is followed
by: between such nodes a conversion would cost more than it could save. What passes between two nodes without an
encoding of its own, as a product that a Relu cuts off, keeps them together too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto

from pipeline.contracts.scheme import Scheme
from pipeline.graph.accuracy.figures.accuracy import valid_region
from pipeline.graph.cpu import Arrays
from pipeline.graph.files.model_file import load_graph
from pipeline.graph.ir.index import GraphIndex, is_float, is_op
from pipeline.graph.quantization.calibration.ranges import Range
from pipeline.graph.quantization.operand_rules import TABLES, moves_data
from pipeline.graph.quantization.qdq.packed_tables import PackedTable, pack, why_not_packed
from pipeline.graph.quantization.qdq.rounding import EXACT, Encoded, Grid, RoundingModel, Site, direct_readers, sites
from pipeline.graph.quantization.quantizer import quantize
from pipeline.graph.quantization.weights.correlations import Correlations
from pipeline.progress import counted

BLOCK = 32
REFERENCE = Scheme("uint16", "int8", per_channel=True, rounding="gptq", clip="hessian", block=BLOCK)
LOW = replace(REFERENCE, activations="uint8", block=None)
NARROW = replace(REFERENCE, weights="int4")
LOW_NARROW = replace(LOW, weights="int4")
"""The schemes that choices are mixed of: weights in blocks, as by default, where activations have 16 bits."""

_WORST = 1e9
"""The relative noise of an output that is no number."""


@dataclass(frozen=True)
class Choice:
    """A precision for everything: by default 16 bits for activations and 8 for weights."""

    low: frozenset[int] = frozenset()
    """Groups that compute in 8 bits."""
    narrow: frozenset[str] = frozenset()
    """Weights of 4 bits, and tables of 8."""
    packed: frozenset[str] = frozenset()
    """Those of the narrow tables that have 4 bits, in blocks."""
    exact: frozenset[int] = frozenset()
    """Groups that stay in float, with their weights."""


@dataclass(frozen=True)
class Point:
    """Sites and constants that take 8 bits together: once one of the groups `of` does and none of `unless`."""

    sites: tuple[Site, ...]
    constants: tuple[str, ...]
    of: frozenset[int]
    unless: frozenset[int] = frozenset()

    def low(self, groups: frozenset[int]) -> bool:
        """Whether it takes 8 bits if these groups do."""
        return bool(self.of & groups) and not self.unless & groups


@dataclass(frozen=True)
class Feed:
    """A sample: padded inputs, and the shapes of the outputs' valid parts, in the model's order of outputs."""

    inputs: Arrays
    shapes: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Encodings:
    """Those of QDQ models: w8a16, the same with activations of 8 bits, with weights of 4, and with both."""

    reference: Encoded
    low: Encoded
    narrow: Encoded
    low_narrow: Encoded


@dataclass(frozen=True)
class Sensitivity:
    """Noise over signal at the outputs, summed over them, of each choice alone, over that of the reference."""

    points: Mapping[Point, float]
    weights: Mapping[str, float]
    """Of a weight with 4 bits, or a table with 8."""
    packed: Mapping[str, float] = field(default_factory=dict[str, float])
    """Of a table with 4."""

    def noise(self, choice: Choice) -> float:
        """What a choice is expected to add to the noise of the reference."""
        low = sum(noise for point, noise in self.points.items() if point.low(choice.low))
        narrow = sum(self.weights[name] for name in choice.narrow - choice.packed)
        return low + narrow + sum(self.packed[name] for name in choice.packed)


class Trials:
    """Runs one bucket's model as any choice of precision would have it."""

    def __init__(
        self,
        index: GraphIndex,
        model: RoundingModel,
        sites: Sequence[Site],
        encodings: Encodings,
        *,
        wide_products: bool,
        block: int | None,
    ) -> None:
        """`index` is of the float model, `model` was made of a copy with all `sites`."""
        self.index = index
        self.outputs = model.outputs
        self.wide_products = wide_products
        """As in all schemes that choices stand for."""
        self.block = block
        """How many inputs share a scale in weights where they can; None for all of a channel."""
        self.values = encodings.reference.values
        self.groups = groups(index, self.values)
        self.group_of = {node: number for number, group in enumerate(self.groups) for node in group.nodes}
        self._model = model
        self._encodings = encodings
        reference, low, narrow = encodings.reference, encodings.low, encodings.narrow
        self.constants = {
            name: self.group_of[reader.name]
            for name in index.initializers
            if reference.bits(name) in (8, 16)
            for reader in index.readers[name][:1]
            if reader.name in self.group_of
        }
        """The group of each constant that is not a bias."""
        self.weights = [name for name in self.constants if narrow.bits(name) == 4]
        self.tables = [name for name in self.constants if (reference.bits(name), low.bits(name)) == (16, 8)]
        """Constants that are stored as activations are."""
        self.lookups = [
            name
            for name in self.tables
            if all(is_op(reader, *TABLES) and reader.input[0] == name for reader in index.readers[name])
        ]
        """Those of them that values are looked up in, and that may have fewer bits than their readers."""
        self.packable = [
            name
            for name in self.lookups
            if all(why_not_packed(index, reader, BLOCK) is None for reader in index.readers[name])
        ]
        """Tables that may have 4 bits."""
        self.in_blocks = frozenset(name for name in self.weights if narrow.in_blocks(name))
        """Weights that have scales in blocks where they are multiplied with 16 bits."""
        self.stored_bytes = reference.stored_bytes()
        """What each quantized constant takes in the reference."""
        self.shapes = {name: tuple(index.initializers[name].dims) for name in self.constants}
        self.points = list(self._points(sites))
        self._packed: dict[str, PackedTable] = {}
        self._made: dict[str, tuple[Encoded | None, NDArray[np.float32]]] = {}

    def run(self, choice: Choice, feed: Feed) -> list[NDArray[np.float64]]:
        """The valid part of each output."""
        return self._run([point for point in self.points if point.low(choice.low)], choice, feed)

    def sensitivity(self, feeds: Sequence[Feed]) -> Sensitivity:
        """Try each point at 8 bits, each weight at 4 and each table at both, on all of `feeds`."""
        noise = self._noise(feeds)
        points = {point: noise([point], Choice()) for point in counted(self.points, "8 bits: place", len(self.points))}
        names = counted(self.weights, "4 bits: weight", len(self.weights))
        weights = {name: noise([], Choice(narrow=frozenset([name]))) for name in names}
        weights |= {name: noise([], Choice(narrow=frozenset([name]))) for name in self.lookups}
        packed = {name: noise([], Choice(narrow=frozenset([name]), packed=frozenset([name]))) for name in self.packable}
        return Sensitivity(points, weights, packed)

    def exact_gains(self, feeds: Sequence[Feed]) -> list[float]:
        """By group, the noise that the reference loses when the group stays in float."""
        noise = self._noise(feeds)
        groups = counted(range(len(self.groups)), "in float: layer", len(self.groups))
        return [noise([], Choice(exact=frozenset([number]))) for number in groups]

    def _noise(self, feeds: Sequence[Feed]) -> Callable[[Collection[Point], Choice], float]:
        """A function for the noise over signal, summed over the outputs, that points of 8 bits and a choice add."""
        reference = [self._run([], Choice(), feed) for feed in feeds]
        signals = [sum(float((array**2).sum()) for array in arrays) for arrays in zip(*reference, strict=True)]

        def noise(low: Collection[Point], choice: Choice) -> float:
            energies = [0.0] * len(signals)
            for feed, expected in zip(feeds, reference, strict=True):
                for number, (actual, truth) in enumerate(zip(self._run(low, choice, feed), expected, strict=True)):
                    energies[number] += float(((actual - truth) ** 2).sum())
            found = sum(energy / signal for energy, signal in zip(energies, signals, strict=True) if signal)
            return min(found, _WORST) if np.isfinite(found) else _WORST

        return noise

    def _run(self, low: Collection[Point], choice: Choice, feed: Feed) -> list[NDArray[np.float64]]:
        grids: dict[Site, Grid] = {}
        for point in low:
            grids |= {site: self._encodings.low.grid(site) for site in point.sites}
        if choice.exact:
            grids |= {
                site: EXACT for point in self.points if point.of and point.of <= choice.exact for site in point.sites
            }
        of_points = {name for point in low for name in point.constants}
        constants = {
            name: self._as(name, self._encodings.low)
            if name in of_points
            else self._constant(name, choice, low=group in choice.low)
            for name, group in self.constants.items()
            if group not in choice.exact
        }
        outputs = self._model.run(feed.inputs, grids, constants)
        return [
            valid_region(output, shape).astype(np.float64) for output, shape in zip(outputs, feed.shapes, strict=True)
        ]

    def _constant(self, name: str, choice: Choice, *, low: bool) -> NDArray[np.float32]:
        """What a constant is after rounding, where its reader computes in 8 bits or not."""
        encodings = self._encodings
        if name in choice.packed:
            return self._as(name, None)
        if name in self.tables:
            return self._as(name, encodings.low if low or name in choice.narrow else encodings.reference)
        if name in choice.narrow:
            return self._as(name, encodings.low_narrow if low else encodings.narrow)
        return self._as(name, encodings.low if low else encodings.reference)

    def _as(self, name: str, encoded: Encoded | None) -> NDArray[np.float32]:
        """What a constant is in an encoding, or packed for None; kept until it is asked for in another.

        One trial differs from the next in few constants, and a table of 12 million numbers takes longer to make than a
        short sample to run.
        """
        kept = self._made.get(name)
        if kept is None or kept[0] is not encoded:
            kept = self._made[name] = encoded, (encoded.constant(name) if encoded else self._table(name).real())
        return kept[1]

    def _table(self, name: str) -> PackedTable:
        if name not in self._packed:
            pieces = self.index.pieces(name)
            self._packed[name] = pack(pieces, Range.of_pieces(pieces), BLOCK)
        return self._packed[name]

    def _points(self, sites: Sequence[Site]) -> Iterator[Point]:
        inside: list[list[Site]] = [[] for _ in self.groups]
        with_readers = {site.value for site in sites if site.reader is not None}
        for site in sites:
            made = self._groups_of([self.index.makers[site.value].name] if site.value in self.index.makers else [])
            read = self._groups_of(direct_readers(self.index, site.value) if site.reader is None else [site.reader])
            if made and read <= made:
                inside[min(made)].append(site)
            elif site.reader is not None:
                yield Point((site,), (), read, made)
            else:
                yield Point((site,), (), made if site.value in with_readers else made | read)
        for number, within in enumerate(inside):
            added = tuple(name for name in self.tables if self.constants[name] == number and name not in self.lookups)
            if within or added:
                yield Point(tuple(within), added, frozenset([number]))

    def _groups_of(self, nodes: Sequence[str]) -> frozenset[int]:
        return frozenset(self.group_of[name] for name in nodes if name in self.group_of)


def load_trials(
    path: Path,
    ranges: Mapping[str, Range],
    correlations: Correlations | None = None,
    *,
    wide_products: bool = False,
    blocks: bool = True,
) -> Trials:
    """Trials of the float model in a graph file, with encodings that the quantizer makes of `ranges`.

    Without `correlations` of the weights' inputs, weights are rounded to the nearest. `blocks`: they have scales in
    blocks.
    """
    index = GraphIndex(load_graph(path), path.parent)
    schemes = [
        replace(scheme, wide_products=wide_products, block=scheme.block if blocks else None)
        for scheme in (REFERENCE, LOW, NARROW, LOW_NARROW)
    ]
    encodings = Encodings(
        *(
            Encoded(quantize(load_graph(path), path.parent, ranges, scheme, correlations=correlations).model, index)
            for scheme in schemes
        )
    )
    places = sites(index, (encodings.reference, encodings.low))
    constants = frozenset(name for name in index.initializers if encodings.reference.bits(name) in (8, 16))
    grids = {site: encodings.reference.grid(site) for site in places}
    model = RoundingModel(load_graph(path), path.parent, grids, constants)
    return Trials(index, model, places, encodings, wide_products=wide_products, block=BLOCK if blocks else None)


_FOLLOWING = ("Add", "Sub", "Mul", "Div", "Relu", "Clip", "LeakyRelu", "PRelu")


@dataclass(frozen=True)
class Group:
    """Nodes of one precision, by name, in the graph's order."""

    nodes: tuple[str, ...]


def groups(index: GraphIndex, values: Collection[str]) -> list[Group]:
    """The nodes that make or read floats, in groups; `values` are those that have encodings."""
    members: dict[str, list[str]] = {}
    first: dict[str, str] = {}
    for node in index.model.graph.node:
        if not any(is_float(index, name) for name in (*node.input, *node.output)):
            continue
        joined = {first[maker.name]: None for maker in _joined(index, node, values) if maker.name in first}
        head, *others = [*joined, node.name]
        members.setdefault(head, [])
        for other in others:
            members[head] += members.pop(other, [other])
        members[head] += [node.name] if head == node.name else []
        first |= dict.fromkeys(members[head], head)
    place = {node.name: number for number, node in enumerate(index.model.graph.node)}
    ordered = [tuple(sorted(nodes, key=place.__getitem__)) for nodes in members.values()]
    return [Group(nodes) for nodes in sorted(ordered, key=lambda nodes: place[nodes[0]])]


def _joined(index: GraphIndex, node: NodeProto, values: Collection[str]) -> list[NodeProto]:
    """The nodes whose groups another one joins."""
    computed = [name for name in dict.fromkeys(node.input) if name not in index.initializers and is_float(index, name)]
    found = [index.makers[name] for name in computed if name not in values and name in index.makers]
    if len(computed) == 1 and computed[0] in index.makers:
        follows = is_op(node, *_FOLLOWING) and index.sole_reader(computed[0], node.op_type) is not None
        moves = moves_data(index, node) and computed[0] == node.input[0]
        found += [index.makers[computed[0]]] if follows or moves else []
    return found
