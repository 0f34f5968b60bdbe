"""What to tell someone whose model can't be given static shapes: the node, the value at fault, what to change."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence

from onnx import NodeProto, TypeProto, ValueInfoProto

from pipeline.errors import ModelError
from pipeline.graph.ir.inference import Types, is_static, shape_of, spell
from pipeline.graph.ir.traverse import label, reads
from pipeline.plain_text import cutting
from pipeline.sizes import human_bytes

# Inputs whose values decide the shape of the output: the operator's position of each, by the ONNX specification.
_DECIDING_INPUTS: Mapping[str, Sequence[int]] = {
    "AffineGrid": (1,),
    "CenterCropPad": (1,),
    "Col2Im": (1, 2),
    "Compress": (1,),
    "ConstantOfShape": (0,),
    "DFT": (1, 2),
    "Expand": (1,),
    "NonMaxSuppression": (0, 1, 2, 3, 4),
    "NonZero": (0,),
    "OneHot": (1,),
    "Pad": (1, 3),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "Resize": (2, 3),
    "Slice": (1, 2, 3, 4),
    "STFT": (1, 2, 3),
    "Split": (1,),
    "Squeeze": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Unique": (0,),
    "Unsqueeze": (1,),
}
DEPENDS_ON_DATA = "depends on data"
"""Part of what an error says of a shape or a course that no size of a bucket fixes."""

_STATIC_INSTEAD = "export the model so that shapes follow from the shapes of its inputs alone"
_TOGETHER = (
    "if some of these axes belong together, choose values that the model allows as a set; if it allows none but those"
    " it was exported with, the exporter wrote these into it: export it again, say with torch's dynamo=True"
)
_AS_IT_IS = (
    "no engine runs the model as it is: export it again, say with torch's dynamo=True, or mend what the config's"
    " 'constants' give it"
)
_INSTEAD: Mapping[str, str] = {
    "NonZero": "keep all elements and mask those you don't want, with Where or a multiplication",
    "Compress": "keep all elements and mask those you don't want, with Where or a multiplication",
    "Unique": "move this part of the model to the application",
    "NonMaxSuppression": "export the model without it, and do the selection in the application",
    "TopK": "export the model with a constant k",
}


def contradiction(node: NodeProto, types: Types, axes: Mapping[str, int], why: str) -> ModelError:
    """The error for a node whose inputs don't go together."""
    given = "with these axis values " if axes else ""
    return ModelError(
        f"{given}node {label(node)} gets inputs that contradict each other",
        where=", ".join(f"{name!r} {spell(types.get(name))}" for name in dict.fromkeys(reads(node))),
        why=f"{why}; the axes are {_spelled(axes)}" if axes else why,
        remedy=_TOGETHER if axes else _AS_IT_IS,
    )


def depends_on_data(
    node: NodeProto,
    output: str,
    kind: TypeProto | None,
    constants: Container[str],
    kept: Sequence[NodeProto],
    parts: tuple[Sequence[str], Sequence[str]],
) -> ModelError:
    """The error for an output that has no static type though all inputs have.

    `parts` are values to end a part before it at, and to begin one behind it at.
    """
    advice = cutting(*parts)
    if kind is not None and not kind.HasField("tensor_type"):
        return ModelError(
            f"node {label(node)} makes a {kind.WhichOneof('value') or 'value'} instead of a tensor".replace(
                "_type", ""
            ),
            where=f"its output {output!r}",
            why="QNN knows tensors only",
            remedy="export the model without lists and optional values (in PyTorch: index tensors, don't split them)",
        )
    deciders = _DECIDING_INPUTS.get(node.op_type, ())
    inputs = [node.input[position] for position in deciders if position < len(node.input)]
    deciding = [name for name in inputs if name and name not in constants]
    if not deciding:
        return ModelError(
            f"the output shape of node {label(node)} can't be told",
            where=f"its output {output!r} is {spell(kind)}",
            why="neither ONNX nor onnxruntime infers it from the inputs' shapes",
            remedy=advice + "replace this operator by ones that ONNX defines when you export the model",
        )
    origin = _origin(deciding[0], constants, kept)
    return ModelError(
        f"the output shape of node {label(node)} {DEPENDS_ON_DATA}",
        where=f"its input {deciding[0]!r}" + (f", computed from {', '.join(map(repr, origin))}" if origin else ""),
        why=f"output {output!r} is {spell(kind)}: only the values at run time say how large, and HTP runs fixed shapes",
        remedy=advice + _INSTEAD.get(node.op_type, _STATIC_INSTEAD),
    )


def list_depends_on_data(node: NodeProto, decider: str) -> ModelError:
    """The error for a list of tensors of which only the values at run time say what it holds, or what is taken."""
    return ModelError(
        f"what node {label(node)} does to a list {DEPENDS_ON_DATA}",
        where=f"its input {decider!r}",
        why="QNN knows tensors only, and lists become tensors where their places and sizes are constants",
        remedy="export the model without lists and optional values (in PyTorch: index tensors, don't split them)",
    )


def too_large(name: str, kind: TypeProto, size: int, axes: Mapping[str, int]) -> ModelError:
    """The error for a value that no chip could hold."""
    return ModelError(
        f"value {name!r} is too large: {spell(kind)}",
        why=f"it takes {human_bytes(size)} and HTP addresses {human_bytes(1 << 32)}; the axes are {_spelled(axes)}",
        remedy="choose smaller values for the axes; if these are small, export the model again",
    )


def control_flow(
    node: NodeProto,
    constants: Container[str],
    kept: Sequence[NodeProto],
    types: Types,
    decider: str,
    ends: Sequence[str],
) -> ModelError:
    """The error for an If, Loop or Scan that is left when all axes are fixed; `decider` is the value it hangs on.

    `ends` are values to end the model at, before it.
    """
    inside = decider and decider not in reads(node)
    decider = decider or next((name for name in reads(node) if name not in constants), "")
    origin = _origin(decider, constants, kept)
    fixing = ""
    if not inside and is_a_setting(decider, constants, kept, types):
        given = ", ".join(f"{name}: <its value>" for name in origin or [decider])
        fixing = f"if that never varies where the model is used, say so in the config: constants: {{{given}}}; else "
    apart = "export each branch as a model of its own (on the hub a 'merged' decoder has unmerged files beside it)"
    both = (
        ", or export the model so that both give values of the same shapes: then both are computed, and one is chosen"
    )
    instead = (
        # Of what hangs on a flag both are never computed.
        apart + (both if not fixing else "")
        if node.op_type == "If"
        else "run the loop in the application with its body as a model of its own, or export the model so that the loop"
        " runs a number of times that is constant or follows from shapes: then it is unrolled here"
    )
    return ModelError(
        f"what node {label(node)} runs {DEPENDS_ON_DATA}",
        where=f"its {'condition' if inside else 'input'} {decider!r}"
        + (f", computed from {', '.join(map(repr, origin))}" if origin else ""),
        why="HTP runs one fixed sequence of operators, without branches or loops",
        remedy=fixing + cutting(ends) + instead,
    )


def is_a_setting(name: str, constants: Container[str], kept: Sequence[NodeProto], types: Types) -> bool:
    """Whether a value follows from inputs of one element alone, as of a flag or a rate."""
    given = _origin(name, constants, kept) or [name]
    return all(each in types and is_static(types[each]) and math.prod(shape_of(types[each])) == 1 for each in given)


def wrong_output(declared: ValueInfoProto, actual: TypeProto) -> ModelError:
    """The error for an output of another element type than the model declares; onnxruntime does not load that."""
    return ModelError(
        f"output {declared.name!r} is not what the model declares",
        where=f"declared {spell(declared.type)}, computed {spell(actual)}",
        why="the model was edited after it was exported, and its declaration was not",
        remedy="export the model again, or correct the output's type in the file",
    )


def _origin(name: str, constants: Container[str], kept: Sequence[NodeProto]) -> list[str]:
    """The graph inputs that a value is computed from."""
    producers = {made: node for node in kept for made in node.output}
    if name not in producers:
        return []
    waiting, seen, found = [name], {name}, []
    while waiting:
        producer = producers.get(current := waiting.pop())
        if producer is None:
            found.append(current)
            continue
        fresh = [each for each in reads(producer) if each not in seen and each not in constants]
        seen.update(fresh)
        waiting += fresh
    return sorted(found)


def _spelled(axes: Mapping[str, int]) -> str:
    return ", ".join(f"{axis} = {size}" for axis, size in axes.items()) or "none"
