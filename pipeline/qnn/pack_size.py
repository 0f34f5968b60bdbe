"""How large context binaries will be, estimated before anything is compiled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from pipeline.graph.model_file import byte_size, external_range, is_external, load_graph
from pipeline.graph.qdq import Q_OPS

BINARY_BYTES = 190_000
"""What a binary takes whatever it holds."""
NODE_BYTES = 4_000
"""What a node takes in each context."""


@dataclass(frozen=True)
class Graph:
    """What decides the size of one bucket's context: nodes, and bytes of the large constants in each of its blobs."""

    nodes: int
    blobs: dict[str, int]

    @classmethod
    def of(cls, path: Path) -> Self:
        """The figures of a model file."""
        model = load_graph(path)
        blobs: dict[str, int] = {}
        for tensor in filter(is_external, model.graph.initializer):
            location = external_range(tensor).location
            blobs[location] = blobs.get(location, 0) + byte_size(tensor)
        return cls(sum(node.op_type not in Q_OPS for node in model.graph.node), blobs)

    @property
    def constant_bytes(self) -> int:
        """Bytes of all large constants."""
        return sum(self.blobs.values())

    @property
    def own_bytes(self) -> int:
        """What the compiler adds to them."""
        return self.nodes * NODE_BYTES


def estimate(form: str, graphs: Sequence[Graph], targets: int) -> int:
    """Bytes of all binaries of a component in a form, for one graph a bucket and this number of targets."""
    if form == "buckets":
        blobs: dict[str, int] = {}
        for graph in graphs:  # what all buckets share is in a blob of the same name
            blobs |= {name: max(size, blobs.get(name, 0)) for name, size in graph.blobs.items()}
        return targets * (BINARY_BYTES + sum(blobs.values()) + sum(graph.own_bytes for graph in graphs))
    caches = {"separate": 1, "socs": targets}[form]
    binaries = {"separate": targets, "socs": 1}[form]
    return binaries * sum(BINARY_BYTES + graph.constant_bytes + caches * graph.own_bytes for graph in graphs)
