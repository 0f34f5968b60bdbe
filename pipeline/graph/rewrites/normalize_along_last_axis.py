"""Give a norm one axis, and a scale and bias of one number for each place along it.

Before, with x of [2, 4, 6]; RMSNormalization and SimplifiedLayerNormalization alike::

    LayerNormalization(x, scale, bias, axis=1)              scale and bias constants
    LayerNormalization(x, scale, axis=-1)                   a scale of [1, 6], [1, 1, 6], [1] or no dims
    LayerNormalization(x, scale, bias, axis=-1)             a scale that is computed, or of [4, 6]

After, with constants spread over the normalized axes, flat::

    Reshape(LayerNormalization(Reshape(x, [2, 24]), scale, bias, axis=-1), [2, 4, 6])
    LayerNormalization(x, scale, axis=-1)                   a scale of [6]
    Add(Mul(LayerNormalization(x, ones, axis=-1), scale), bias)

QNN EP 2.7 leaves a norm over several axes to the CPU, and a LayerNormalization whose scale has more dims than one, or
is computed in integers. RMSNormalization with a scale of one number compiles, and is wrong: -90 dB of SQNR in float16,
0 dB in integers; with a scale of [4, 6] it is left to the CPU. A LayerNormalization with that is taken, at 44 to 50 dB
in 16 bits, as its scale has 8.

The result keeps its name. Left alone: mean and deviation that are read; an RMSNormalization whose scale of one dim is
computed, which QNN takes.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, helper

from pipeline.graph.ir.attributes import settings
from pipeline.graph.ir.index import element_type, is_op
from pipeline.graph.ir.node_builder import Additions, each_node


@each_node
def apply(added: Additions, node: NodeProto) -> bool:
    """Normalize along one axis, with factors that the operator takes."""
    if not is_op(node, "LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"):
        return False
    index = added.index
    given, result, source = settings(node), str(node.output[0]), str(node.input[0])
    factors = [str(name) for name in node.input[1:] if name]
    dims = added.shape(source)
    axis = given.get("axis", -1) % len(dims)
    over, flat, is_last = dims[axis:], prod(dims[axis:]), axis == len(dims) - 1
    takes_computed = not is_op(node, "LayerNormalization")
    fits = [added.shape(name) == (flat,) and (takes_computed or name in index.initializers) for name in factors]
    read = [name for name in node.output[1:] if name in index.readers or name in index.outputs]
    if read or (is_last and all(fits)):
        return False
    kind = element_type(index, source)
    inside: list[str] = []
    for stem, name in zip(("gamma", "beta"), factors, strict=False):
        values = _spread(index.constant(name), over)
        if values is None:
            break  # the bias of a scale that is apart is apart, too
        inside.append(added.constant(f"{result}_{stem}", values))
    apart = factors[len(inside) :]
    if not inside:
        inside = [added.constant(f"{result}_ones", np.ones(flat, helper.tensor_dtype_to_np_dtype(kind)))]
    rows = source
    if not is_last:
        rows = added.op(
            "Reshape", source, added.integers(f"{result}_flat_dims", *dims[:axis], flat), out=f"{result}_flat"
        )
    steps = [*(["Reshape"] if not is_last else []), *["Mul", "Add"][len(factors) - len(apart) : len(factors)]]
    made = added.value(f"{result}_normed", kind, added.shape(rows)) if steps else result
    added.nodes.append(helper.make_node(node.op_type, [rows, *inside], [made], node.name, **{**given, "axis": -1}))
    operands = [*([added.integers(f"{result}_dims", *dims)] if not is_last else []), *apart]
    for step, operand in zip(steps[:-1], operands, strict=False):
        made = added.op(step, made, operand, out=f"{result}_{'shaped' if step == 'Reshape' else 'scaled'}")
    if steps:
        added.replace(steps[-1], made, operands[-1], out=result)
    return True


def _spread(values: NDArray[Any] | None, over: tuple[int, ...]) -> NDArray[Any] | None:
    """A scale or bias as one number for each place of the normalized axes `over`, flat; None if it has others."""
    if values is None:
        return None
    in_front = max(values.ndim - len(over), 0)
    if any(size != 1 for size in values.shape[:in_front]):
        return None
    return np.ascontiguousarray(np.broadcast_to(values.reshape(values.shape[in_front:]), over)).reshape(-1)
