"""Gives graphs in a context binary names of ours, of the same length as those they have.

QNN's EP names a graph by a hash, and no option changes that. Genie knows the parts of a model by names that end in
`_<n>_of_<total>`, and the sizes of a graph by `ar<tokens>` and `cl<context>` in it. A name stands in a binary several
times, always in full; one of the same length takes its place without moving anything.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from pathlib import Path

from onnx import ModelProto

from pipeline.errors import CompileError
from pipeline.qnn.format.context_model import partition_name, partitions


def of_part(graph: str, tokens: int, context: int, number: int, total: int) -> str:
    """A name for a graph of part `number`, as long as the name `graph` that it has; zeros before the number fill it."""
    begins, ends = f"ar{tokens}_cl{context}_", f"_of_{total}"
    return f"{begins}{number:0{len(graph) - len(begins) - len(ends)}d}{ends}"


def rename_in_binary(binary: Path, names: Mapping[str, str]) -> None:
    """Give the graphs of a binary other names, each of the same length.

    Raises:
        CompileError: the binary has no such name.
    """
    with binary.open("r+b") as stream, mmap.mmap(stream.fileno(), 0) as data:
        for old, new in names.items():
            given, wanted = old.encode(), new.encode()
            assert len(given) == len(wanted), "the place of a name can't grow"
            at = data.find(given)
            if at < 0:
                raise CompileError(f"{binary.name} has no graph {old!r}", remedy="report it with the model")
            while at >= 0:
                data[at : at + len(given)] = wanted
                at = data.find(given, at + len(given))


def rename_in_model(model: ModelProto, names: Mapping[str, str]) -> None:
    """The same in the context model that refers to the graphs."""
    for node in partitions(model):
        for attribute in node.attribute:
            if attribute.name == "partition_name":
                attribute.s = names[partition_name(node)].encode()
