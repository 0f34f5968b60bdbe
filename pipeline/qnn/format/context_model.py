"""What a context model says: its partitions, the binaries they are in, and the devices that can load it.

A context model is a small ONNX graph. Each EPContext node in it stands for one partition
(https://onnxruntime.ai/docs/execution-providers/EP-Context-Design.html), and an entry of its metadata is the string by
which ONNX Runtime decides whether a device can load it. No part of QNN is needed to read either.
"""

from __future__ import annotations

from onnx import ModelProto, NodeProto

from pipeline.errors import CompileError
from pipeline.graph.ir.attributes import integer, text
from pipeline.qnn.compatibility import Compatibility

COMPATIBILITY = "ep_compatibility_info.QNNExecutionProvider"
"""The entry of the metadata that has the compatibility string."""


def partitions(model: ModelProto) -> list[NodeProto]:
    """The EPContext nodes of a context model."""
    return [node for node in model.graph.node if node.op_type == "EPContext"]


def partition_name(node: NodeProto) -> str:
    """The name of the graph, in the binary, that an EPContext node stands for."""
    return text(node, "partition_name")


def tensor_name(node: NodeProto, value: str) -> str:
    """The name, in the binary, of an input or output of an EPContext node."""
    renamed = dict(pair.rsplit("=", 1) for pair in text(node, "io_name_overrides").split(";") if "=" in pair)
    return renamed.get(value, value)


def binary_names(model: ModelProto) -> tuple[str, ...]:
    """File names of the binaries that a context model refers to.

    One partition of a binary, its main one, names it; the others are found in it by their names.
    """
    return tuple(text(node, "ep_cache_context") for node in partitions(model) if integer(node, "main_context") == 1)


def is_plain(name: str) -> bool:
    """Whether a name is that of a file in the folder at hand."""
    return name not in ("", ".", "..") and not set(name) & set("/\\:\0")


def rename_binary(model: ModelProto, name: str) -> None:
    """Make all of a context model refer to the binary `name`."""
    for node in partitions(model):
        for attribute in node.attribute:
            if attribute.name == "ep_cache_context" and attribute.s:
                attribute.s = name.encode()


def is_flexible(model: ModelProto) -> bool:
    """Whether a context model is for several SoCs, or was before it was pruned."""
    return any(integer(node, "is_multi_soc_ep_context") for node in partitions(model))


def compatibility(model: ModelProto) -> str:
    """The string by which ONNX Runtime decides whether a device can load the context; empty if it has none."""
    return next((str(entry.value) for entry in model.metadata_props if entry.key == COMPATIBILITY), "")


def set_compatibility(model: ModelProto, value: Compatibility) -> None:
    """Replace the compatibility string."""
    for entry in model.metadata_props:
        if entry.key == COMPATIBILITY:
            entry.value = str(value)


def parsed_compatibility(model: ModelProto, file: str) -> Compatibility:
    """The fields of the compatibility string.

    Raises:
        CompileError: it is missing, or of another form.
    """
    text = compatibility(model)
    parsed = Compatibility.parse(text)
    if parsed is None:
        raise CompileError(
            "the context model does not say which devices it is for",
            where=file,
            why=f"its compatibility string is {text!r}",
            remedy="build it again; if that gives the same, onnxruntime-qnn has changed the string's form",
        )
    return parsed
