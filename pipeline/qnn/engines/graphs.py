"""The graphs of a language model as their contexts have them: what every engine has to know of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pipeline.contracts.context import CompiledModel
from pipeline.contracts.language import Edge, LanguageFacts
from pipeline.errors import CompileError
from pipeline.graph.files.model_file import load_graph
from pipeline.graph.language.names import EMBEDDED, IDS
from pipeline.qnn.format.context_binary import GraphInfo, read_binary
from pipeline.qnn.format.context_model import partition_name, partitions
from pipeline.qnn.format.graph_io import EdgeTensor

MASK, LOGITS = "attention_mask", "logits"


@dataclass(frozen=True)
class SpokenGraph:
    """One graph: the file of its context model, those of its binaries, and what these say of its inputs and outputs.

    A graph in parts has a binary for each, and what parts hand to each other is left out.
    """

    context_model: str
    binaries: tuple[str, ...]
    soc_model: int
    htp_arch: int
    info: GraphInfo

    def input(self, name: str) -> EdgeTensor | None:
        """An input by its name; None if the graph has none such."""
        return next((tensor for tensor in self.info.inputs if tensor.name == name), None)

    def output(self, name: str) -> EdgeTensor | None:
        """An output by its name; None if the graph has none such."""
        return next((tensor for tensor in self.info.outputs if tensor.name == name), None)

    @property
    def sequence(self) -> int:
        """Tokens that a run takes."""
        given = self.input(IDS) or self.input(EMBEDDED)
        return given.shape[1] if given else 0

    @property
    def total(self) -> int:
        """Positions that attention sees."""
        mask = self.input(MASK)
        return mask.shape[-1] if mask else 0

    @property
    def edges(self) -> Mapping[str, Edge]:
        """Inputs and outputs that are integers in place of floats, by their names."""
        return {
            tensor.name: Edge(str(tensor.dtype), tensor.encoding.scale, tensor.encoding.zero_point)
            for tensor in (*self.info.inputs, *self.info.outputs)
            if tensor.encoding
        }


def read_graphs(made: Sequence[tuple[Path, CompiledModel]]) -> tuple[SpokenGraph, ...]:
    """The graphs of these contexts, each in its folder, that with the fewest tokens first.

    Raises:
        CompileError: a binary can't be read, or has no graph of the context's name.
    """
    found = [_read(folder, context) for folder, context in made]
    return tuple(sorted(found, key=lambda graph: graph.sequence))


def cache_names(facts: LanguageFacts) -> list[tuple[str, str]]:
    """The names of the cache's inputs and outputs, layer by layer."""
    kinds = [(kind, layer) for layer in range(facts.layers) for kind in ("key", "value")]
    return [(f"past_{kind}_{layer}_in", f"past_{kind}_{layer}_out") for kind, layer in kinds]


def longest_pair(graphs: Sequence[SpokenGraph]) -> tuple[SpokenGraph, SpokenGraph]:
    """Decode and the largest prefill, of the longest context."""
    longest = [graph for graph in graphs if graph.total == max(each.total for each in graphs)]
    return longest[0], longest[-1]


def shares_binaries(graphs: Sequence[SpokenGraph]) -> bool:
    """Whether a binary has more than one of the graphs."""
    named = [binary for graph in graphs for binary in graph.binaries]
    return len({*named}) < len(named)


def _read(folder: Path, context: CompiledModel) -> SpokenGraph:
    wanted = [partition_name(node) for node in partitions(load_graph(folder / context.context_model))]
    infos = [read_binary(folder / binary) for binary in context.binaries]
    found = {graph.name: graph for info in infos for graph in info.graphs if graph.name in wanted}
    if missing := [name for name in wanted if name not in found]:
        raise CompileError(
            f"no binary of {context.context_model} has the graph {missing[0]!r}",
            why=f"it names {', '.join(context.binaries)}",
            remedy="build the context again",
        )
    parts = [found[name] for name in wanted]
    taken = {tensor.name for part in parts for tensor in part.inputs}
    made = {tensor.name for part in parts for tensor in part.outputs}
    inputs = {tensor.name: tensor for part in parts for tensor in part.inputs if tensor.name not in made}
    outputs = {tensor.name: tensor for part in parts for tensor in part.outputs if tensor.name not in taken}
    whole = replace(parts[0], inputs=tuple(inputs.values()), outputs=tuple(outputs.values()))
    return SpokenGraph(context.context_model, context.binaries, infos[0].soc_model, infos[0].htp_arch, whole)
