"""Floors of logarithms that float16 does not hold are raised, as far as it needs.

Before, where both compute in float and the floor is a constant below 2^-14::

    Log(Clip(x, floor))          Log(Max(x, floor))

After, if calibration saw no argument below 2^-14; else, if the floor is below 2^-24, the least number of float16::

    Log(Clip(x, 2^-14))          Log(Clip(x, 2^-24))

HTP (2.51, emulated) takes a floor of 1e-10 for 0, and gives -7.6 for the logarithm of that: more than for 1e-4. With
the raised floor what is quieter than all of calibration gives -9.7, next to what the quietest that was seen gives;
where quieter values were seen, silence gives -16.6, below them all.

Left alone: what others read, too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from onnx import ModelProto, NodeProto, numpy_helper

from pipeline.graph.ir.index import GraphIndex, is_op
from pipeline.graph.ir.traverse import input_at
from pipeline.graph.quantization.calibration.ranges import Range
from pipeline.graph.quantization.chip_limits import FP16_SMALLEST, FP16_SMALLEST_NORMAL
from pipeline.graph.quantization.qdq.qdq_model import QUANTIZER_INPUT


def raise_floors(model: ModelProto, folder: Path, ranges: Mapping[str, Range]) -> int:
    """Do so in a QDQ model whose blobs are in `folder`; returns how often."""
    logarithms = [node for node in model.graph.node if is_op(node, "Log")]
    if not logarithms:
        return 0
    index = GraphIndex(model, folder)
    return sum(_raise(index, node, ranges) for node in logarithms)


def _raise(index: GraphIndex, logarithm: NodeProto, ranges: Mapping[str, Range]) -> bool:
    bound, result = index.maker(logarithm.input[0], "Clip", "Max"), logarithm.output[0]
    seen = ranges.get(result.removesuffix(QUANTIZER_INPUT))
    place = floor_at(index, bound) if bound is not None else None
    if bound is None or seen is None or place is None or index.sole_reader(bound.output[0], "Log") is None:
        return False
    floor = index.scalar(bound.input[place])
    unseen = math.exp(min(seen.low, 0.0)) >= FP16_SMALLEST_NORMAL
    raised = FP16_SMALLEST_NORMAL if unseen else FP16_SMALLEST
    if floor is None or not 0 < floor < raised:
        return False
    name = index.unused(f"{result}_floor")
    index.model.graph.initializer.append(numpy_helper.from_array(np.array(raised, np.float32), name))
    bound.input[place] = name
    return True


def floor_at(index: GraphIndex, bound: NodeProto) -> int | None:
    """The position of a node's constant floor."""
    if bound.op_type == "Clip":
        return 1 if input_at(bound, 1) else None
    constants = [at for at, name in enumerate(bound.input) if name in index.initializers]
    return constants[0] if len(constants) == 1 else None
