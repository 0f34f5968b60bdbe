"""Recurrent layers, and small nets of them as torch exports them, with random weights."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto

from tests.support.graphs import graph

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
"""How many rows of weights a layer has for each of its hidden units."""

DIRECTIONS = {"forward": 1, "reverse": 1, "bidirectional": 2}


def weights(
    op: str, inner: int, hidden: int, directions: int = 1, *, seed: int = 0, suffix: str = ""
) -> dict[str, NDArray[Any]]:
    """W, R and B of a layer. Large enough for gates to open and close, as trained ones do."""
    random, rows = np.random.default_rng(seed), GATES[op] * hidden
    shapes = {"W": (directions, rows, inner), "R": (directions, rows, hidden), "B": (directions, 2 * rows)}
    scales = {"W": 1.4 / np.sqrt(inner), "R": 1.4 / np.sqrt(hidden), "B": 0.1}
    return {name + suffix: (random.normal(size=shapes[name]) * scales[name]).astype(np.float32) for name in shapes}


def layer(
    op: str,
    direction: str = "forward",
    given: str = "Y",
    *,
    batch: int = 1,
    lengths: bool = False,
    attributes: str = "",
    bias: bool = True,
    states: bool = False,
) -> ModelProto:
    """One layer of 4 units over 6 places of 8 numbers, float32 [6, batch, 8]; `given` are its outputs."""
    directions = DIRECTIONS[direction]
    shapes = {
        "Y": f"float[6,{directions},{batch},4]", "Y_h": f"float[{directions},{batch},4]",
        "Y_c": f"float[{directions},{batch},4]",
    }  # fmt: skip
    constants = weights(op, 8, 4, directions)
    if not bias:
        del constants["B"]
    inputs = f"X, W, R, {'B' if bias else ''}, {'lengths' if lengths else ''}, {'h' if states else ''}".rstrip(", ")
    if op == "GRU":
        attributes += ", linear_before_reset = 1"
    declared = [f"float[6,{batch},8] X"]
    declared += [f"int32[{batch}] lengths"] if lengths else []
    declared += [f"float[{directions},{batch},4] h"] if states else []
    outputs = ", ".join(f"{shapes[name]} {name}" for name in given.split(", ") if name)
    text = f"""g ({", ".join(declared)}) => ({outputs}) {{
        {given} = {op} <hidden_size = 4, direction = "{direction}"{attributes}> ({inputs})
    }}"""
    return graph(text, constants)
