"""The emulator's time for one sample, estimated from the graph: the same on every machine, at any load.

Rates of each kind of operator are of onnxruntime-qnn 2.7, in CPU seconds of one core: fitted to 152 single operators
and to 101 random nets in float16 and as w8a16 (`python -m tests.emulation_cost` holds 20 of them against the emulator).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from onnx import ModelProto, NodeProto

from pipeline.graph.ir.attributes import integer, text
from pipeline.graph.quantization.compiled_cost import Counting
from pipeline.graph.quantization.qdq.weights_by_channel import count_in_blocks
from pipeline.graph.shapes.cost import macs_of

_TILE = (8, 4, 32)
"""HTP keeps a value in tiles of so many rows, columns and channels, which the emulator computes whole."""
_SPATIAL = frozenset({
    "Conv", "ConvTranspose", "MaxPool", "AveragePool", "GlobalAveragePool", "Resize", "InstanceNormalization",
    "BatchNormalization", "DepthToSpace", "SpaceToDepth",
})  # fmt: skip
"""Operators whose second axis is channels: a graph with one of them is computed with the channels last."""
_NOTHING = frozenset({
    "QuantizeLinear", "DequantizeLinear", "Reshape", "Flatten", "Unsqueeze", "Squeeze", "Identity", "Cast", "Transpose",
    "Concat", "Slice", "Split", "Pad", "Gather", "GatherElements", "GatherND", "ScatterND", "Expand", "Tile",
    "DepthToSpace", "SpaceToDepth",
})  # fmt: skip
"""Operators that compute nothing: what they take is next to what others do."""
_KINDS: Mapping[str, str] = {
    operator: kind
    for kind, operators in {
        "logarithm": "Log Pow Sin Cos Sqrt Reciprocal Elu Selu Atan Asin Tan Softplus",
        "norm": "LayerNormalization SimplifiedLayerNormalization RMSNormalization LpNormalization GroupNormalization",
        "plane norm": "InstanceNormalization BatchNormalization",
        "sum": "MaxPool AveragePool GlobalAveragePool ReduceMean ReduceSum ReduceMax ReduceMin ReduceL2 ArgMax TopK",
        "sigmoid": "Sigmoid HardSigmoid HardSwish Swish",
        "softmax": "Softmax LogSoftmax",
        "gelu": "Erf Gelu",
        "exp": "Exp", "tanh": "Tanh", "div": "Div", "mul": "Mul", "resize": "Resize", "prelu": "PRelu",
        "leaky": "LeakyRelu",
    }.items()
    for operator in operators.split()
}  # fmt: skip
_OTHER, _SUM, _RESIZE = "other", "sum", "resize"

_EDGE_NS = {True: 306.0, False: 64.8}
"""Nanoseconds of a number of an input or output, in a float graph and in one of integers."""
_NODE_S = {True: 0.6e-3, False: 0.31e-3}
_FLOAT_NS: Mapping[str, tuple[float, float]] = {
    _OTHER: (4.4, 4.4), "div": (13, 13), "exp": (59, 59), "gelu": (110, 110), "plane norm": (670, 670),
    "leaky": (75, 75), "logarithm": (1220, 0), "mul": (230, 76), "norm": (1410, 0), _SUM: (292, 0), "prelu": (0, 234),
    _RESIZE: (435, 435), "sigmoid": (839, 0), "softmax": (450, 150), "tanh": (0, 508),
}  # fmt: skip
"""Nanoseconds of a number, and of one of the tiles that hold them, in float16."""
_INTEGER_NS: Mapping[str, tuple[float, float]] = {
    _OTHER: (6.2, 0), "div": (0, 60), "exp": (201, 0), "plane norm": (286, 286), "leaky": (10, 10),
    "logarithm": (192, 0), "mul": (2.2, 2.2), "norm": (479, 0), _SUM: (0, 2.2), "prelu": (600, 600),
    "sigmoid": (17, 17), "softmax": (2, 0),
}  # fmt: skip
_CONV, _TRANSPOSED, _DEPTHWISE, _MATMUL, _MADE = "Conv", "ConvTranspose", "depthwise", "MatMul", "made"
_MAC_NS: Mapping[bool, Mapping[str, float]] = {
    True: {_CONV: 0.14, _TRANSPOSED: 0.04, _DEPTHWISE: 0.14, _MATMUL: 0.74, _MADE: 15.3},
    False: {_CONV: 1.56, _TRANSPOSED: 2.09, _DEPTHWISE: 8.0, _MATMUL: 1.14, _MADE: 4.0},
}
"""Nanoseconds of a multiply-accumulate in float16 and in w8a16, by tiles, and of a number that a convolution makes."""
_TIMES: Mapping[str, float] = {"w16a16": 2.1, "a8": 0.5}
"""The same of other integers, by what their format ends with."""
_WIDE_DEPTHWISE = 12
"""The same of depthwise convolutions by weights of 16 bits."""
_STEP_NS: Mapping[str, tuple[float, float]] = {"LSTM": (1.0e6, 29), "GRU": (5.4e6, 150), "RNN": (1.0e6, 29)}
"""Nanoseconds of a step of a recurrent layer, and of each of its multiply-accumulates: they are computed in float."""
_BLOCKED_S = 0.2e-6
"""Of a weight in blocks of 16 to 64, int8 or int4, in products of 1 to 128 rows: each run converts all of them."""


def sample_s(model: ModelProto) -> float:
    """CPU seconds of one sample of a static graph, QDQ or float, as it is compiled."""
    counting = Counting(model)
    in_float = not any(node.op_type == "QuantizeLinear" for node in model.graph.node)
    spatial = any(node.op_type in _SPATIAL for node in model.graph.node)
    edges = [math.prod(counting.shapes.get(value.name, ())) for value in (*model.graph.input, *model.graph.output)]
    nodes = [node for node in model.graph.node if node.op_type not in _NOTHING]
    spent_ns = _EDGE_NS[in_float] * sum(edges) + sum(_node_ns(node, counting, spatial=spatial) for node in nodes)
    return float(f"{spent_ns * 1e-9 + _NODE_S[in_float] * len(nodes):.3g}")


def run_s(model: ModelProto) -> float:
    """CPU seconds of one run, with what weights in blocks take, which is most of it where a run has few rows.

    :func:`sample_s` leaves them out: counts of samples follow from it, and with them a model whose weights are in
    blocks would have half as many run.
    """
    return sample_s(model) + count_in_blocks(model) * _BLOCKED_S


def _node_ns(node: NodeProto, counting: Counting, *, spatial: bool) -> float:
    """Nanoseconds of one node."""
    shapes = counting.shapes
    made = max((shapes.get(name, ()) for name in node.output if name), key=math.prod, default=())
    read = shapes.get(node.input[0], ()) if node.input else ()
    if node.op_type in _STEP_NS:
        step_ns, mac_ns = _STEP_NS[node.op_type]
        (directions, rows, inputs), hidden = shapes[node.input[1]], shapes[node.input[2]][-1]
        return read[0] * directions * (step_ns + mac_ns * rows * (inputs + hidden))
    if node.op_type in ("Conv", "ConvTranspose", "MatMul", "Gemm"):
        return _product_ns(node, counting, made, read)
    kind = _KINDS.get(node.op_type, _OTHER)
    if kind == _RESIZE and text(node, "mode", "nearest") == "nearest":
        kind = _OTHER
    if kind == _SUM:
        made = max(made, read, key=math.prod)
    table = _FLOAT_NS if counting.is_float(node) else _INTEGER_NS
    number_ns, padded_ns = table.get(kind, table[_OTHER])
    return number_ns * math.prod(made) + padded_ns * _padded(made, spatial=spatial)


def _product_ns(node: NodeProto, counting: Counting, made: tuple[int, ...], read: tuple[int, ...]) -> float:
    form, channels = counting.format(node), _TILE[-1]
    mac_ns = _MAC_NS[form.startswith("fp")]
    times = next((factor for end, factor in _TIMES.items() if form.endswith(end)), 1.0)
    if node.op_type in ("MatMul", "Gemm"):
        macs = macs_of(node, counting.shapes) / max(math.prod(made), 1)
        rows = _up(math.prod(made[:-1]), channels) * _up(made[-1], channels) if made else 1
        return mac_ns[_MATMUL] * times * macs * rows
    weight, padded = counting.shapes[node.input[1]], _padded(made, spatial=True)
    taps, inputs = math.prod(weight[2:]), read[1]
    if integer(node, "group", 1) == inputs > 1:
        kind, macs = _DEPTHWISE, padded * taps
        times = _WIDE_DEPTHWISE if form.endswith("w16a16") else times
    elif node.op_type == "ConvTranspose":
        positions = _padded(read, spatial=True) // _up(inputs, channels)
        kind, macs = _TRANSPOSED, positions * inputs * taps * _up(made[1], channels)
    else:
        kind, macs = _CONV, padded * taps * _up(inputs, 4)
    return mac_ns[kind] * times * macs + mac_ns[_MADE] * padded


def _padded(shape: tuple[int, ...], *, spatial: bool) -> int:
    """How many numbers the tiles of a value have, whose channels are its second axis if `spatial`."""
    sizes = [shape[0], *shape[2:], shape[1]] if spatial and len(shape) > 2 else [*shape]
    if spatial and len(shape) == 3:
        sizes.insert(1, 1)
    sizes = [1] * (len(_TILE) - len(sizes)) + sizes
    return math.prod(sizes[: -len(_TILE)]) * math.prod(map(_up, sizes[-len(_TILE) :], _TILE))


def _up(size: int, to: int) -> int:
    return -(-size // to) * to
