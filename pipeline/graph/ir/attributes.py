"""What the attributes of a node say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnx import AttributeProto, NodeProto, helper


def settings(node: NodeProto) -> dict[str, Any]:
    """All of them by name, as values of Python; words are bytes."""
    return {each.name: helper.get_attribute_value(each) for each in node.attribute}


def integer(node: NodeProto, name: str, default: int = 0) -> int:
    """A whole number, or a flag."""
    found = _find(node, name)
    return default if found is None else int(found.i)


def integers(node: NodeProto, name: str, default: Sequence[int] = ()) -> list[int]:
    """Whole numbers: axes, pads, a permutation."""
    found = _find(node, name)
    return list(default) if found is None else list(found.ints)


def real(node: NodeProto, name: str, default: float) -> float:
    """A number."""
    found = _find(node, name)
    return default if found is None else float(found.f)


def text(node: NodeProto, name: str, default: str = "") -> str:
    """A word."""
    found = _find(node, name)
    return default if found is None else found.s.decode("utf-8", "replace")


def is_special_lstm(node: NodeProto) -> bool:
    """Whether an LSTM says more than its size and direction: activations, a clip, `layout` or `input_forget` of 1."""
    return any(
        entry.name not in ("hidden_size", "direction") and not (entry.type == AttributeProto.INT and entry.i == 0)
        for entry in node.attribute
    )


def _find(node: NodeProto, name: str) -> AttributeProto | None:
    attributes: list[AttributeProto] = node.attribute[:]  # a list is walked in half the time
    for each in attributes:
        if each.name == name:
            return each
    return None
