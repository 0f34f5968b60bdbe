"""Layers of the reference models, op by op as they appear in exported graphs.

Sequences are float32 [batch, width, length] for convolutions and [batch, length, width] for attention. Weights keep
activations near unit size, so that ranges are like those of a trained model.
"""

from __future__ import annotations

import math

import numpy as np

from tests.support.models.builder import Graph, dim, reshape, vector


def linear(g: Graph, x: str, inner: int, outer: int, name: str) -> str:
    """[..., inner] -> [..., outer]."""
    with g.scope(name):
        weight = g.normal("weight", inner, outer, scale=1 / math.sqrt(inner))
        return g.op("Add", g.normal("bias", outer, scale=0.05), g.op("MatMul", x, weight))


def conv(
    g: Graph, x: str, inner: int, outer: int, name: str, *, kernel: int = 1, dilation: int = 1, groups: int = 1
) -> str:
    """[batch, inner, length] -> [batch, outer, length - dilation * (kernel - 1)]."""
    with g.scope(name):
        weight = g.normal("weight", outer, inner // groups, kernel, scale=1 / math.sqrt(inner // groups * kernel))
        bias = g.normal("bias", outer, scale=0.05)
        return g.op(
            "Conv", x, weight, bias, kernel_shape=[kernel], dilations=[dilation], group=groups, strides=[1], pads=[0, 0]
        )


def layer_norm(g: Graph, x: str, width: int, name: str = "norm") -> str:
    """Normalise the last axis, spelt out in ReduceMean, Sub, Pow, Sqrt and Div as opsets before 17 had it."""
    with g.scope(name):
        centred = g.op("Sub", x, g.op("ReduceMean", x, axes=[-1]))
        variance = g.op("ReduceMean", g.op("Pow", centred, 2.0), axes=[-1])
        normal = g.op("Div", centred, g.op("Sqrt", g.op("Add", variance, 1e-6)))
        scaled = g.op("Mul", normal, g.normal("weight", width, scale=0.2, mean=1.0))
        return g.op("Add", scaled, g.normal("bias", width, scale=0.1))


def gelu(g: Graph, x: str) -> str:
    erf = g.op("Erf", g.op("Div", x, math.sqrt(2)))
    return g.op("Mul", g.op("Mul", x, g.op("Add", erf, 1.0)), 0.5)


def mish(g: Graph, x: str) -> str:
    return g.op("Mul", x, g.op("Tanh", g.op("Softplus", x)))


def transpose(g: Graph, x: str) -> str:
    """Swap width and length."""
    return g.op("Transpose", x, perm=[0, 2, 1])


def edge_pad(g: Graph, x: str, left: int, right: int) -> str:
    return g.op("Pad", x, [0, 0, left, 0, 0, right], mode="edge")


def convnext(
    g: Graph, x: str, width: int, name: str, *, mask: str = "", kernel: int = 5, dilation: int = 1, causal: bool = False
) -> str:
    """A ConvNeXt block, float32 [batch, width, length] to the same; `mask` is [batch, 1, length]."""
    with g.scope(name):
        span = (kernel - 1) * dilation
        left = span if causal else span // 2
        h = g.op("Mul", x, mask) if mask else x
        h = edge_pad(g, h, left, span - left)
        h = conv(g, h, width, width, "depthwise", kernel=kernel, dilation=dilation, groups=width)
        h = g.op("Mul", h, mask) if mask else h
        h = transpose(g, layer_norm(g, transpose(g, h), width))
        h = conv(g, gelu(g, conv(g, h, width, 3 * width, "expand")), 3 * width, width, "contract")
        h = g.op("Mul", h, g.normal("gamma", 1, width, 1, scale=0.05, mean=0.3))
        h = g.op("Add", x, h)
        return g.op("Mul", h, mask) if mask else h


def split_heads(g: Graph, x: str, heads: int, size: int) -> str:
    """[batch, length, heads * size] -> [batch, heads, length, size]."""
    split = reshape(g, x, dim(g, x, 0), dim(g, x, 1), heads, size)
    return g.op("Transpose", split, perm=[0, 2, 1, 3])


def merge_heads(g: Graph, x: str, width: int) -> str:
    """[batch, heads, length, size] -> [batch, length, width]."""
    merged = g.op("Transpose", x, perm=[0, 2, 1, 3])
    return reshape(g, merged, dim(g, merged, 0), dim(g, merged, 1), width)


def masked_softmax(g: Graph, scores: str, mask: str) -> str:
    """Softmax over the last axis with -inf where `mask` is 0, and 0 in place of the NaN of rows that are all masked."""
    hidden = g.op("Equal", mask, 0.0)
    filled = g.op("Where", hidden, np.array(-np.inf, np.float32), scores)
    return g.op("Where", hidden, 0.0, g.op("Softmax", filled, axis=-1))


def pair_mask(g: Graph, queries: str, keys: str) -> str:
    """Masks float32 [batch, 1, length] of queries and keys -> [batch, 1, queries, keys]."""
    return g.op("Mul", g.op("Unsqueeze", queries, [3]), g.op("Unsqueeze", keys, [2]))


def relative_scores(g: Graph, q: str, size: int, window: int = 4) -> str:
    """Scores of positions up to `window` apart: [batch, heads, length, size] -> [batch, heads, length, length].

    A table of 2 * window + 1 embeddings is padded or cut to the 2 * length - 1 distances there are, and the scores by
    distance are skewed into scores by position (https://arxiv.org/abs/1809.04281), all by shape arithmetic.
    """
    with g.scope("relative"):
        length = dim(g, q, 2)
        table = g.normal("table", 1, 2 * window + 1, size, scale=1 / math.sqrt(size))
        missing = g.op("Max", g.op("Sub", length, window + 1), 0)
        surplus = g.op("Max", g.op("Sub", window + 1, length), 0)
        table = g.op("Pad", table, vector(g, 0, missing, 0, 0, missing, 0))
        distances = g.op("Sub", g.op("Mul", length, 2), 1)
        end = g.op("Add", surplus, distances)
        table = g.op("Slice", table, vector(g, surplus), vector(g, end), [1])
        by_distance = g.op("MatMul", q, g.op("Transpose", table, perm=[0, 2, 1]))

        batch, heads = dim(g, q, 0), dim(g, q, 1)
        rows = g.op("Pad", by_distance, [0, 0, 0, 0, 0, 0, 0, 1])
        flat = reshape(g, rows, batch, heads, g.op("Mul", g.op("Mul", length, length), 2))
        flat = g.op("Pad", flat, vector(g, 0, 0, 0, 0, 0, g.op("Sub", length, 1)))
        skewed = reshape(g, flat, batch, heads, g.op("Add", length, 1), distances)
        starts = vector(g, 0, g.op("Sub", length, 1))
        return g.op("Slice", skewed, starts, vector(g, length, 2**31 - 1), [2, 3])


def rotary(g: Graph, x: str, mask: str, size: int, base: float = 10000.0, span: float = 10.0) -> str:
    """Rotate halves of [batch, heads, length, size] by position, counted in parts of the valid length.

    `mask` is float32 [batch, 1, length]; the last valid position is nearly `span` whatever the length.
    """
    with g.scope("rotary"):
        length = g.op("Cast", dim(g, x, 2), to=1)
        positions = g.op("Range", 0.0, length, 1.0)
        valid = g.op("Unsqueeze", g.op("ReduceSum", mask, [2], keepdims=1), [3])
        positions = g.op("Unsqueeze", g.op("Unsqueeze", positions, [0, 1]), [3])
        places = g.op("Mul", g.op("Div", positions, valid), span)
        frequencies = g.weight("theta", base ** (-np.arange(size // 2) / (size // 2)).reshape(1, 1, 1, -1))
        angles = g.op("Mul", places, frequencies)
        sine, cosine = g.op("Sin", angles), g.op("Cos", angles)
        low, high = (g.op("Slice", x, [start], [start + size // 2], [3]) for start in (0, size // 2))
        turned_low = g.op("Sub", g.op("Mul", low, cosine), g.op("Mul", high, sine))
        turned_high = g.op("Add", g.op("Mul", low, sine), g.op("Mul", high, cosine))
        return g.op("Concat", turned_low, turned_high, axis=-1)


def sinusoid(g: Graph, x: str, width: int) -> str:
    """float32 [batch] in 0..1 -> [batch, width], sines and cosines of it."""
    frequencies = 100.0 ** (np.arange(width // 2) / (width // 2))
    angles = g.op("Mul", g.op("Unsqueeze", x, [1]), g.weight("frequencies", frequencies.reshape(1, -1)))
    return g.op("Concat", g.op("Sin", angles), g.op("Cos", angles), axis=1)


def scaled_scores(g: Graph, q: str, k: str, size: int) -> str:
    """Products of queries and keys, both [batch, heads, length, size], over the root of `size`."""
    return g.op("Div", g.op("MatMul", q, g.op("Transpose", k, perm=[0, 1, 3, 2])), math.sqrt(size))
