"""Which architectures can be built, by the names that sources give them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from pipeline.errors import ModelError
from pipeline.graph.language import gemma3, llama, phi3, qwen2, qwen3
from pipeline.graph.language.builder import GraphBuilder

BUILDERS: Mapping[str, Callable[[GraphBuilder], None]] = {
    name: module.build for module in (llama, qwen2, qwen3, gemma3, phi3) for name in module.NAMES
}


def check_architecture(name: str, where: str, known: Collection[str]) -> None:
    """Refuse an architecture that is not one of those `known` by the names of the source's kind.

    Raises:
        ModelError: with the names of those that can be built.
    """
    if name not in known:
        raise ModelError(
            f"language models of architecture {name!r} can't be built",
            where=where,
            why=f"those that can are {', '.join(sorted(known))}",
            remedy="take a model of one of these; of another, bring an ONNX export and describe its axes as usual",
        )
