"""What a context model says: its partitions, the binaries they are in, and the devices that can load it.

A context model is a small ONNX graph. Each EPContext node in it stands for one partition
(https://onnxruntime.ai/docs/execution-providers/EP-Context-Design.html), and an entry of its metadata is the string by
which ONNX Runtime decides whether a device can load it. No part of QNN is needed to read either.
"""

from __future__ import annotations

from onnx import AttributeProto, ModelProto, NodeProto

from pipeline.errors import CompileError
from pipeline.qnn.compatibility import Compatibility

COMPATIBILITY = "ep_compatibility_info.QNNExecutionProvider"
"""The entry of the metadata that has the compatibility string."""


def partitions(model: ModelProto) -> list[NodeProto]:
    """The EPContext nodes of a context model."""
    return [node for node in model.graph.node if node.op_type == "EPContext"]


def partition_name(node: NodeProto) -> str:
    """The name of the graph, in the binary, that an EPContext node stands for."""
    return _text(node, "partition_name")


def tensor_name(node: NodeProto, value: str) -> str:
    """The name, in the binary, of an input or output of an EPContext node."""
    renamed = dict(pair.rsplit("=", 1) for pair in _text(node, "io_name_overrides").split(";") if "=" in pair)
    return renamed.get(value, value)


def binary_names(model: ModelProto) -> tuple[str, ...]:
    """File names of the binaries that a context model refers to.

    One partition of a binary, its main one, names it; the others are found in it by their names.
    """
    return tuple(_text(node, "ep_cache_context") for node in partitions(model) if _number(node, "main_context") == 1)


def is_plain(name: str) -> bool:
    """Whether a name is that of a file in the folder at hand."""
    return name not in ("", ".", "..") and not set(name) & set("/\\:\0")


def rename_binary(model: ModelProto, name: str) -> None:
    """Make all of a context model refer to the binary `name`."""
    for node in partitions(model):
        attribute = _attribute(node, "ep_cache_context")
        if attribute is not None and attribute.s:
            attribute.s = name.encode()


def is_flexible(model: ModelProto) -> bool:
    """Whether a context model is for several SoCs, or was before it was pruned."""
    return any(_number(node, "is_multi_soc_ep_context") for node in partitions(model))


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


def _attribute(node: NodeProto, name: str) -> AttributeProto | None:
    return next((attribute for attribute in node.attribute if attribute.name == name), None)


def _text(node: NodeProto, name: str) -> str:
    attribute = _attribute(node, name)
    return "" if attribute is None else str(attribute.s.decode("utf-8", "replace"))


def _number(node: NodeProto, name: str) -> int:
    attribute = _attribute(node, name)
    return 0 if attribute is None else int(attribute.i)
