"""What a bucket costs: the work of running a model at some lengths, and the bytes of its binaries."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from pipeline.contracts.packing import Form
from pipeline.graph.files.model_file import load_graph
from pipeline.graph.shapes.cost import macs
from pipeline.qnn.compiling.pack_size import Graph, estimate


@dataclass(frozen=True)
class ShapedBucket:
    """One bucket of a component as it was shaped: its axes, multiply-accumulates, and what decides its size."""

    axes: Mapping[str, int]
    work: int
    graph: Graph

    @classmethod
    def of(cls, axes: Mapping[str, int], path: Path) -> ShapedBucket:
        """The figures of a float model whose dims are all fixed."""
        return cls(dict(axes), macs(load_graph(path)), Graph.of(path))


@dataclass(frozen=True)
class ComponentCost:
    """What is known of a component, by buckets of the config; `weight_bits` of each constant of 32 there.

    Where it was quantized they are a mean: tables that are looked up may have more bits than other weights.
    """

    buckets: Sequence[ShapedBucket]
    weight_bits: float = 8

    def work(self, axes: Mapping[str, int]) -> int:
        """Multiply-accumulates of one run at these lengths.

        On one axis the parabola through the smallest, the middle and the largest bucket of the config, or the line
        through two; else in proportion to the product of lengths.
        """
        return _at([(each.axes, each.work) for each in self.buckets], axes)

    def graph(self, axes: Mapping[str, int]) -> Graph:
        """What decides the size of a binary at these lengths."""
        last = self.buckets[-1].graph
        elements = _at([(each.axes, each.graph.elements) for each in self.buckets], axes)
        blobs = {name: round(size * self.weight_bits / 32) for name, size in last.blobs.items()}
        return Graph(last.nodes, elements, blobs)


def binary_bytes(costs: Mapping[str, ComponentCost], points: Sequence[Mapping[str, int]], form: Form) -> int:
    """Bytes of all binaries of a model for one target, in a form; buckets that a component has in common count once."""
    total = 0
    for cost in costs.values():
        own = cost.buckets[-1].axes
        distinct = {tuple(point[axis] for axis in own if axis in point): point for point in points}
        total += estimate(form, [cost.graph(point) for point in distinct.values()], 1)
    return total


def _at(known: Sequence[tuple[Mapping[str, int], int]], axes: Mapping[str, int]) -> int:
    """A figure at some lengths, from what it is at others; it never falls below what the smallest is in proportion."""
    own = [axis for axis in known[-1][0] if axis in axes]
    if not own:
        return known[-1][1]
    at = math.prod(axes[axis] for axis in own)
    points = sorted({math.prod(point[axis] for axis in own): figure for point, figure in known}.items())
    if len(own) > 1 or len(points) == 1:
        size, figure = points[-1]
        return max(1, figure * at // size)
    if len(points) > 3:
        points = [points[0], points[len(points) // 2], points[-1]]
    low = Fraction(points[0][1], points[0][0])  # below the smallest, as if all of it grew with the length
    if at <= points[0][0]:
        return max(1, math.ceil(low * at))
    value = sum(
        (
            figure
            * math.prod((Fraction(at - other, size - other) for other, _ in points if other != size), start=Fraction(1))
            for size, figure in points
        ),
        start=Fraction(0),
    )
    return max(1, math.ceil(value), math.ceil(low * points[0][0]))
