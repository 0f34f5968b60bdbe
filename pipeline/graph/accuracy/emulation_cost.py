"""What QNN's emulator takes for one sample of a model, told from its graph: the same on every machine, at any load.

Measured with onnxruntime-qnn 2.7 on one core, in CPU seconds, on chains of one operator (products of 64 to 384
channels, convolutions of 32 and 64 channels, elementwise operators over 200,000 numbers) and on MiniLM, where it is
within a tenth. Elsewhere it is right within a factor of two, which is what a budget needs.
"""

from __future__ import annotations

from collections.abc import Mapping

from onnx import ModelProto

from pipeline.graph.quantization.cost import count
from pipeline.graph.quantization.weights_by_channel import count_in_blocks

_MAC_S: Mapping[str, float] = {"w16a16": 4.5e-9, "a8": 1.0e-9, "a16": 2.1e-9, "fp16": 1.1e-9}
"""By what the format of a product ends with: see :attr:`pipeline.contracts.cost.CostFacts.macs`."""
_GROUPED_MAC_S: Mapping[str, float] = {"w16a16": 200e-9, "": 25e-9}
"""The same of convolutions with groups: sixteen bits of both take twelve times as long as eight of the weights."""
_ELEMENT_S = 12e-9
_FLOAT_ELEMENT_S = 0.7e-6
"""Of Add, Sigmoid and Softmax in float16: fifty times what integers take."""
_BLOCKED_S = 0.2e-6
"""Of a weight in blocks of 16 to 64, int8 or int4, in products of 1 to 128 rows: each run converts all of them."""
_NODE_S = 0.3e-3


def sample_s(model: ModelProto) -> float:
    """CPU seconds of one sample of a static graph, QDQ or float, as it is compiled."""
    cost = count(model)
    macs = sum(number * _of_format(_MAC_S, name) for name, number in cost.macs.items())
    grouped = sum(number * _of_format(_GROUPED_MAC_S, name) for name, number in cost.grouped.items())
    elements = (cost.elements - cost.float_elements) * _ELEMENT_S + cost.float_elements * _FLOAT_ELEMENT_S
    return float(f"{macs + grouped + elements + cost.nodes * _NODE_S:.3g}")


def run_s(model: ModelProto) -> float:
    """CPU seconds of one run, with what weights in blocks take, which is most of it where a run has few rows.

    :func:`sample_s` leaves them out: counts of samples follow from it, and with them a model whose weights are in
    blocks would have half as many run.
    """
    return sample_s(model) + count_in_blocks(model) * _BLOCKED_S


def _of_format(table: Mapping[str, float], name: str) -> float:
    return next((seconds for end, seconds in table.items() if name.endswith(end)), _MAC_S["a16"])
