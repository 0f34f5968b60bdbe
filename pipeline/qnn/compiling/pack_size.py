"""Estimates the size of context binaries before anything is compiled.

A binary is the large constants and what the compiler makes of the graph, which grows with the number of nodes and of
the elements that they compute: by how much is measured, with QNN EP 2.7, on MiniLM and the demo (32 to 128 tokens) and
on a model of four nodes. Estimates were within 1 % for MiniLM and 4 % for the demo, in every form.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from pipeline.graph.files.model_file import byte_size, external_range, is_external, load_graph
from pipeline.graph.ir.inference import shape_of
from pipeline.graph.quantization.qdq.qdq_model import Q_OPS

_LEAST_BYTES = 45_000
_BYTES = 1.78
"""Of the compiled graph, by nodes to the power below and the square root of elements; the least is added."""
_NODES_POWER = 1.23
_SHARED_BY_BUCKETS = 0.65
"""The share of the compiled graphs of several buckets that remains when they are in one binary."""
_FURTHER_SOC = 0.27
"""The share of the compiled graph that each further SoC adds, and the least bytes that it adds."""


@dataclass(frozen=True)
class Graph:
    """The figures that decide the size of one bucket's context.

    `nodes` and `elements` are of the operators and of all they compute, Q and DQ nodes not counted; `blobs` has the
    bytes of the large constants in each blob.
    """

    nodes: int
    elements: int
    blobs: Mapping[str, int]

    @classmethod
    def of(cls, path: Path) -> Self:
        """The figures of a model file whose dims are all fixed."""
        model = load_graph(path)
        blobs: dict[str, int] = {}
        for tensor in filter(is_external, model.graph.initializer):
            location = external_range(tensor).location
            blobs[location] = blobs.get(location, 0) + byte_size(tensor)
        types = {value.name: value.type for value in (*model.graph.value_info, *model.graph.output)}
        nodes = [node for node in model.graph.node if node.op_type not in Q_OPS]
        made = (types[name] for node in nodes for name in node.output if name in types)
        return cls(len(nodes), sum(math.prod(shape_of(kind)) for kind in made), blobs)

    @property
    def constant_bytes(self) -> int:
        """Bytes of all large constants."""
        return sum(self.blobs.values())

    @property
    def compiled_bytes(self) -> float:
        """What the compiler makes of the graph itself."""
        return _LEAST_BYTES + _BYTES * math.pow(self.nodes, _NODES_POWER) * math.sqrt(self.elements)


def estimate(form: str, graphs: Sequence[Graph], targets: int) -> int:
    """The bytes of all binaries of a component in a form, for one graph a bucket and this number of targets."""
    if form == "buckets":
        blobs: dict[str, int] = {}
        for graph in graphs:  # what all buckets share is in a blob of the same name
            blobs |= {name: max(size, blobs.get(name, 0)) for name, size in graph.blobs.items()}
        compiled = _SHARED_BY_BUCKETS * sum(graph.compiled_bytes for graph in graphs)
        return round(targets * (sum(blobs.values()) + compiled))
    if form == "socs":
        one = sum(graph.constant_bytes + graph.compiled_bytes for graph in graphs)
        further = sum(_LEAST_BYTES + _FURTHER_SOC * graph.compiled_bytes for graph in graphs)
        return round(one + (targets - 1) * further)
    return round(targets * sum(graph.constant_bytes + graph.compiled_bytes for graph in graphs))
