"""Take the bounds out of a Clip that HTP does not keep to.

Before, with bounds that leave no zero, or are computed::

    Clip(x, 0.5, 4)    Clip(x, -4, -1)    Clip(x, 0.5)    Clip(x, Sub(largest, 80))

After::

    Clip(Max(x, 0.5), "", 4)    Clip(Min(x, -1), -4)    Max(x, 0.5)    Max(x, Sub(largest, 80))

HTP (2.51, emulated, 8 and 16 bits) lets the encoding of the node in front do what a Clip does. Every encoding holds
zero, so a bound beyond it is lost: Sqrt(Clip(x * x, 0.5)) comes to 22.9 dB against the QDQ model, Sqrt(Max(x * x, 0.5))
to 67.4 dB. A computed bound QNN EP 2.7 leaves to the CPU ("QNN doesn't support dynamic min/max").

The result keeps its name. Left alone: constant bounds that let zero pass, and integers.
"""

from __future__ import annotations

from pathlib import Path

from onnx import ModelProto, NodeProto, helper

from pipeline.graph.ir.index import GraphIndex, LazyIndex, is_float, is_op


def apply(model: ModelProto, folder: Path) -> int:
    """Split every Clip whose bounds leave no zero or are computed; returns their number."""
    index = LazyIndex(model, folder)
    before: list[tuple[int, NodeProto]] = []
    changed = 0
    for number, node in enumerate(model.graph.node):
        if not is_op(node, "Clip") or not is_float(index, node.output[0]):
            continue
        low, high = (*node.input[1:], "", "")[:2]
        outside = [("Max", low)] if _is_lost(low, 1, index) else []
        outside += [("Min", high)] if _is_lost(high, -1, index) else []
        if not outside:
            continue
        changed += 1
        taken = {name for _, name in outside}
        rest = ["" if name in taken else name for name in (low, high)]
        steps = [*outside, *([("Clip", "")] if any(rest) else [])]
        given = node.input[0]
        for operator, bound in steps[:-1]:
            made = index.unused(f"{node.output[0]}_{operator.lower()}")
            model.graph.value_info.add(name=made, type=index.types[node.output[0]])
            before.append((number + len(before), helper.make_node(operator, [given, bound], [made], made)))
            given = made
        operator, bound = steps[-1]
        inputs = [given, bound] if bound else [given, *(rest if rest[1] else rest[:1])]
        node.CopyFrom(helper.make_node(operator, inputs, list(node.output), node.name))
    for number, node in before:
        model.graph.node.insert(number, node)
    return changed


def _is_lost(bound: str, sign: int, index: GraphIndex) -> bool:
    """Whether a bound is computed, or a constant on this side of zero."""
    return bool(bound) and (bound not in index.initializers or sign * (index.scalar(bound) or 0) > 0)


AFTER = {
    "drop_idle_bounds": "it looks for a Clip",
    "make_masks_finite": "it looks for a Clip",
    "bound_exp": "it looks for a Clip",
}
