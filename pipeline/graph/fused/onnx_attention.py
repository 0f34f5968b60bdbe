"""Attention and rotary embeddings of ONNX from opset 23 on, which PyTorch's exporter writes, in earlier operators.

QNN takes Attention with some masks and not with others (2.51: no booleans), and what is inside has no encodings then.
https://onnx.ai/onnx/operators/onnx__Attention.html, https://onnx.ai/onnx/operators/onnx__RotaryEmbedding.html.
"""

from __future__ import annotations

import math

import numpy as np
from onnx import TensorProto

from pipeline.graph.fused.attention import HIDDEN, NEVER, check_turned, in_heads, joined, turned
from pipeline.graph.fused.unfused import Unfused


def write_attention(made: Unfused) -> None:
    """``Softmax(softcap(query keyT scale + mask)) value``; heads are an axis already, or part of the last one."""
    query, key, value, mask, past_key, past_value, lengths = (made.given(place) for place in range(7))
    made.refuse_unless(not lengths, "it is told how many keys count (nonpad_kv_seqlen)")
    made.refuse_unless(not made.asked(3), "its scores are read")
    dims, rank = made.dims(query), len(made.dims(query))
    if rank == 3:
        heads, kv_heads = made.whole("q_num_heads"), made.whole("kv_num_heads")
        batch, queries, width = dims
        size = width // heads
        query = in_heads(made, query, batch, queries, heads, size)
        length, value_size = made.dims(key)[1], made.dims(value)[2] // kv_heads
        key = in_heads(made, key, batch, length, kv_heads, made.dims(key)[2] // kv_heads)
        value = in_heads(made, value, batch, length, kv_heads, value_size)
    else:
        batch, heads, queries, size = dims
        _, kv_heads, length, _ = made.dims(key)
        value_size = made.dims(value)[3]
    before = made.dims(past_key)[2] if past_key else 0
    keys = before + length
    if past_key:
        key = made.op("Concat", past_key, key, axis=2)
        value = made.op("Concat", past_value, value, axis=2)
    made.give(1, key)
    made.give(2, value)
    key = _repeated(made, key, batch, kv_heads, heads, keys, size)
    value = _repeated(made, value, batch, kv_heads, heads, keys, value_size)
    scores = made.op("MatMul", query, made.op("Transpose", key, perm=[0, 1, 3, 2]))
    scores = made.op("Mul", scores, made.scalar(made.number("scale", 0.0) or 1 / math.sqrt(size)))
    if cap := made.number("softcap", 0.0):
        bent = made.op("Tanh", made.op("Mul", scores, made.scalar(1 / cap)))
        scores = made.op("Mul", bent, made.scalar(cap))
    if mask:
        scores = made.op("Add", scores, _added(made, mask, keys))
    if made.whole("is_causal") == 1:
        after = np.arange(keys)[None] > np.arange(queries)[:, None] + before
        scores = made.op("Add", scores, made.constant(np.where(after, np.float32(NEVER), np.float32(0))))
    result = made.op("MatMul", made.op("Softmax", scores, axis=-1), value)
    made.give(0, joined(made, result, batch, queries, heads * value_size) if rank == 3 else result)


def write_rotary_embedding(made: Unfused) -> None:
    """The first numbers of each head turned by angles that are tables by position, or come for each token."""
    x, cosines, sines, positions = (made.given(place) for place in range(4))
    made.refuse_unless(not made.whole("interleaved"), "the numbers that it turns stand beside each other")
    dims, half = made.dims(x), made.dims(cosines)[-1]
    batch, length = dims[0], dims[-2]
    heads = dims[1] if len(dims) == 4 else made.whole("num_heads")
    size = dims[3] if len(dims) == 4 else dims[2] // heads
    check_turned(made, half, size)
    if len(dims) == 3:
        x = in_heads(made, x, batch, length, heads, size)
    rows = [made.op("Gather", table, positions) if positions else table for table in (cosines, sines)]
    angles = [made.op("Unsqueeze", each, made.integers(1)) for each in rows]
    result = turned(made, x, angles, half, size)
    made.give(0, result if len(dims) == 4 else joined(made, result, batch, length, dims[2]))


def _added(made: Unfused, mask: str, keys: int) -> str:
    made.refuse_unless(made.dims(mask)[-1] in (1, keys), f"its mask is {list(made.dims(mask))} for {keys} keys")
    if made.element_type(mask) != TensorProto.BOOL:
        return mask
    return made.op("Where", mask, made.scalar(0), made.scalar(HIDDEN))


def _repeated(made: Unfused, name: str, batch: int, kv_heads: int, heads: int, keys: int, size: int) -> str:
    """Keys or values that several queries' heads share, once for each of these."""
    if kv_heads == heads:
        return name
    groups = made.op("Unsqueeze", name, made.integers(2))
    every = made.op("Expand", groups, made.integers(batch, kv_heads, heads // kv_heads, keys, size))
    return made.reshaped(every, batch, heads, keys, size)
