"""Attention that ONNX Runtime's optimizer fused, written out as MatMul, Softmax, MatMul.

Operators: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md. Everything is computed as
float32 ``[batch, heads, length, head]``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from onnx import TensorProto

from pipeline.graph.fused.unfused import Unfused

HIDDEN = -10000.0
"""The default of ``mask_filter_value``: what a score that must not count becomes."""
NEVER = float(np.finfo(np.float32).min)
"""The score of a key that comes after the query."""


@dataclass(frozen=True)
class _Heads:
    """Queries, keys and values ``[batch, heads, length, head]``, with the lengths of queries, keys and past."""

    query: str
    key: str
    value: str
    batch: int
    queries: int
    keys: int
    past: int
    size: int


def write_attention(made: Unfused) -> None:
    """Attention: queries, keys and values are one product with the input."""
    x, weights, bias, mask, past, added, shared = (made.given(place) for place in range(7))
    made.refuse_unless(not shared, "its past shares a buffer with what it gives")
    made.refuse_unless(not made.whole("do_rotary"), "it turns queries and keys by their positions")
    batch, queries, _ = made.dims(x)
    heads = made.whole("num_heads")
    width = made.dims(weights)[-1]
    sizes = [int(each) for each in made.numbers("qkv_hidden_sizes")] or [width // 3] * 3
    every = made.op("MatMul", x, weights)
    every = made.op("Add", every, bias) if bias else every
    split, start = [], 0
    for size in sizes:
        part = made.part(every, 2, start, start + size)
        split.append(in_heads(made, part, batch, queries, heads, size // heads))
        start += size
    query, key, value = split
    length = made.dims(past)[3] if past else 0
    if past:
        before = [made.op("Squeeze", made.part(past, 0, place, place + 1), made.integers(0)) for place in (0, 1)]
        key, value = (made.op("Concat", one, two, axis=2) for one, two in zip(before, (key, value), strict=True))
    if made.asked(1):
        made.refuse_unless(sizes[0] == sizes[2], "keys and values of different sizes are one output")
        both = [made.op("Unsqueeze", each, made.integers(0)) for each in (key, value)]
        made.give(1, made.op("Concat", *both, axis=0))
    taken = _Heads(query, key, value, batch, queries, length + queries, length, sizes[0] // heads)
    made.give(0, _attend(made, taken, mask, added))


def write_multi_head_attention(made: Unfused) -> None:
    """MultiHeadAttention: queries, keys and values come as they are, or packed into one or two."""
    query, key, value, bias, mask, added, past_key, past_value, length = (made.given(place) for place in range(9))
    made.refuse_unless(not length, "its past shares a buffer with what it gives")
    made.refuse_unless(not made.asked(3), "its scores are read")
    heads = made.whole("num_heads")
    dims = made.dims(query)
    batch, queries = dims[:2]
    if len(dims) == 5:  # [batch, length, heads, 3, head]
        made.refuse_unless(not bias, "what it takes is packed, and has a bias")
        given = [_packed(made, query, place) for place in range(3)]
        keys, size = queries, dims[4]
    else:
        size = dims[2] // heads
        biases = [""] * 3
        if bias:
            rest = made.dims(bias)[0] - 2 * dims[2]
            ends = (0, dims[2], 2 * dims[2], 2 * dims[2] + rest)
            biases = [made.part(bias, 0, start, end) for start, end in pairwise(ends)]
        first = in_heads(made, _plus(made, query, biases[0]), batch, queries, heads, size)
        keys, pair = _keys_and_values(made, key, value, biases, batch, heads)
        given = [first, *pair]
    query, key, value = given
    before = made.dims(past_key)[2] if past_key else 0
    if past_key:
        key = made.op("Concat", past_key, key, axis=2)
        value = made.op("Concat", past_value, value, axis=2)
    made.give(1, key)
    made.give(2, value)
    taken = _Heads(query, key, value, batch, queries, before + keys, before, size)
    made.give(0, _attend(made, taken, mask, added))


def write_rotary_embedding(made: Unfused) -> None:
    """RotaryEmbedding: the first numbers of each head are turned by an angle that belongs to their position."""
    x, positions, cosines, sines = (made.given(place) for place in range(4))
    made.refuse_unless(not made.whole("is_packed_batching"), "its batch is packed")
    made.refuse_unless(not made.whole("interleaved"), "the numbers that it turns stand beside each other")
    dims = made.dims(x)
    half = made.dims(cosines)[-1]
    heads = made.whole("num_heads") or (dims[1] if len(dims) == 4 else dims[2] // (2 * half))
    batch, length = dims[0], dims[-2]
    if len(dims) == 3:
        x = in_heads(made, x, batch, length, heads, dims[2] // heads)
    size = dims[3] if len(dims) == 4 else dims[2] // heads
    check_turned(made, half, size)
    angles = [_angles(made, table, positions, batch, length) for table in (cosines, sines)]
    result = turned(made, x, angles, half, size)
    made.give(0, result if len(dims) == 4 else joined(made, result, batch, length, dims[2]))


def _attend(made: Unfused, heads: _Heads, mask: str, added: str) -> str:
    """``Softmax(query keyT / sqrt(head) + mask) value`` as ``[batch, length, heads * head]``."""
    scores = made.op("MatMul", heads.query, made.op("Transpose", heads.key, perm=[0, 1, 3, 2]))
    scale = made.number("scale", 0.0) or 1 / math.sqrt(heads.size)
    scores = made.op("Mul", scores, made.scalar(scale))
    if added:
        scores = made.op("Add", scores, added)
    hidden = _hiding(made, mask, heads) if mask else ""
    if made.whole("unidirectional") == 1 and heads.queries > 1:
        after = np.arange(heads.keys)[None] > np.arange(heads.queries)[:, None] + heads.past
        if hidden:  # a key that comes after is hidden more than one that does not count
            hidden = made.op("Where", made.constant(after), made.scalar(NEVER), hidden)
        else:
            hidden = made.constant(np.where(after, np.float32(NEVER), np.float32(0)))
    if hidden:
        scores = made.op("Add", scores, hidden)
    result = made.op("MatMul", made.op("Softmax", scores, axis=-1), heads.value)
    return joined(made, result, heads.batch, heads.queries, -1)


def _hiding(made: Unfused, mask: str, heads: _Heads) -> str:
    """What is added to the scores: 0 where a key counts, a large negative number where not."""
    dims = made.dims(mask)
    if dims == (heads.batch,):  # how many keys count
        places = made.constant(np.arange(heads.keys, dtype=np.int32)[None])
        length = made.op("Unsqueeze", made.op("Cast", mask, to=TensorProto.INT32), made.integers(1))
        counts, dims = made.op("Less", places, length), (heads.batch, heads.keys)
    else:
        counts = made.op("Cast", mask, to=TensorProto.BOOL)
    match len(dims):
        case 2 if dims == (heads.batch, heads.keys):
            counts = made.op("Unsqueeze", counts, made.integers(1, 2))
        case 3 if dims[2] == heads.keys:
            counts = made.op("Unsqueeze", counts, made.integers(1))
        case _:
            raise made.refused(f"its mask is {list(dims)}")
    return made.op("Where", counts, made.scalar(0), made.scalar(made.number("mask_filter_value", HIDDEN)))


def _keys_and_values(
    made: Unfused, key: str, value: str, biases: list[str], batch: int, heads: int
) -> tuple[int, list[str]]:
    """How many keys there are; keys and values in heads."""
    dims = made.dims(key)
    if len(dims) == 5:  # [batch, length, heads, 2, head]
        return dims[1], [_packed(made, key, place) for place in range(2)]
    if len(dims) == 4:  # in heads already
        return dims[2], [key, value]
    pair = []
    for name, bias in zip((key, value), biases[1:], strict=True):
        size = made.dims(name)[2] // heads
        pair.append(in_heads(made, _plus(made, name, bias), batch, dims[1], heads, size))
    return dims[1], pair


def _packed(made: Unfused, name: str, place: int) -> str:
    taken = made.op("Squeeze", made.part(name, 3, place, place + 1), made.integers(3))
    return made.op("Transpose", taken, perm=[0, 2, 1, 3])


def _plus(made: Unfused, name: str, bias: str) -> str:
    return made.op("Add", name, bias) if bias else name


def in_heads(made: Unfused, name: str, batch: int, length: int, heads: int, size: int) -> str:
    """``[batch, length, heads * head]`` as ``[batch, heads, length, head]``."""
    return made.op("Transpose", made.reshaped(name, batch, length, heads, size), perm=[0, 2, 1, 3])


def joined(made: Unfused, name: str, batch: int, length: int, width: int) -> str:
    """``[batch, heads, length, head]`` as ``[batch, length, heads * head]``."""
    return made.reshaped(made.op("Transpose", name, perm=[0, 2, 1, 3]), batch, length, width)


def check_turned(made: Unfused, half: int, size: int) -> None:
    """Refuse tables that turn another part of a head than the node says; it says 0 for all of it."""
    said = made.whole("rotary_embedding_dim") or size
    made.refuse_unless(2 * half == said, f"its tables turn {2 * half} numbers of a head, and it says {said}")


def turned(made: Unfused, name: str, angles: list[str], half: int, size: int) -> str:
    """The first `half` numbers of each head and the next `half`, turned by cosines and sines; others as they are."""
    low, high = made.part(name, 3, 0, half), made.part(name, 3, half, 2 * half)
    products = [[made.op("Mul", part, angle) for angle in angles] for part in (low, high)]
    parts = [made.op("Sub", products[0][0], products[1][1]), made.op("Add", products[1][0], products[0][1])]
    if size > 2 * half:
        parts.append(made.part(name, 3, 2 * half, size))
    return made.op("Concat", *parts, axis=3)


def _angles(made: Unfused, table: str, positions: str, batch: int, length: int) -> str:
    """Rows of a table of cosines or sines as ``[batch, 1, length, half]``."""
    if len(made.dims(positions)) < 2:  # the first position
        places = made.op("Add", made.reshaped(positions, 1, 1), made.constant(np.arange(length)[None]))
    else:
        places = positions
    return made.op("Unsqueeze", made.op("Gather", table, places), made.integers(1))
