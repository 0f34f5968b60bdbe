"""Fused operators of onnxruntime, with and without each of their attributes and optional inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.fuzz.forms.graphs import Form, Graph

FUSED_FORMS: dict[str, tuple[int, int, Form]] = {}
"""Forms by name, with the first and the last opset that has them."""

_M = "com.microsoft"
_BATCH, _LENGTH, _HEADS, _SIZE = 2, 5, 4, 4
_WIDTH = _HEADS * _SIZE


def _form(form: Form) -> Form:
    FUSED_FORMS[form.__name__.strip("_")] = (7, 1000, form)
    return form


def _optional(g: Graph, make: Callable[[], str], chance: float = 0.5) -> str:
    return make() if g.maybe(chance) else ""


@_form
def _attention(g: Graph) -> None:
    x = g.feed(g.numbers(_BATCH, _LENGTH, _WIDTH))
    more = g.some(unidirectional=1, scale=0.3, mask_filter_value=-50.0)
    sizes = [_WIDTH] * 3
    if g.maybe(0.3):
        sizes = [8, 8, 12]
        more["qkv_hidden_sizes"] = sizes
    given = [
        g.either(g.numbers(_WIDTH, sum(sizes)) / 4),
        g.either(g.numbers(sum(sizes))),
    ]  # without a bias onnxruntime 1.31 ends
    past = g.maybe(0.3) and "qkv_hidden_sizes" not in more
    keys = _LENGTH + (3 if past else 0)
    masks: list[Any] = [
        np.array([4, 2], np.int32), g.rng.integers(0, 2, (_BATCH, keys)).astype(np.int32),
        g.rng.integers(0, 2, (_BATCH, _LENGTH, keys)).astype(np.int32), np.array([4, 2, 0, 1], np.int32),
        np.array([[5], [3]], np.int32),
    ]  # fmt: skip
    given.append(_optional(g, lambda: g.either(g.random.choice(masks))))
    given.append(g.feed(g.numbers(2, _BATCH, _HEADS, 3, _SIZE)) if past else "")
    given.append(_optional(g, lambda: g.either(g.numbers(g.random.choice((1, _BATCH)), _HEADS, _LENGTH, keys)), 0.3))
    if past or g.maybe(0.2):
        g.give(*g.op("Attention", x, *given, domain=_M, outputs=2, num_heads=_HEADS, **more))
    else:
        g.give(g.op("Attention", x, *given, domain=_M, num_heads=_HEADS, **more))


@_form
def _multi_head_attention(g: Graph) -> None:
    more = g.some(unidirectional=1, scale=0.3, mask_filter_value=-50.0)
    keys = g.random.choice((_LENGTH, 3))
    width = g.random.choice((_WIDTH, _HEADS * 3))
    form = g.random.choice(("apart", "pairs", "together", "heads"))
    bias = g.maybe(0.4)
    if form == "together":
        keys, bias = _LENGTH, g.maybe(0.1)
        given = [g.feed(g.numbers(_BATCH, _LENGTH, _HEADS, 3, _SIZE)), "", ""]
        width = _WIDTH
    elif form == "pairs":
        given = [g.feed(g.numbers(_BATCH, _LENGTH, _WIDTH)), g.feed(g.numbers(_BATCH, keys, _HEADS, 2, _SIZE)), ""]
        width = _WIDTH
    elif form == "heads":
        given = [g.feed(g.numbers(_BATCH, _LENGTH, _WIDTH))]
        given += [g.feed(g.numbers(_BATCH, _HEADS, keys, size)) for size in (_SIZE, width // _HEADS)]
    else:
        given = [g.feed(g.numbers(_BATCH, _LENGTH, _WIDTH))]
        given += [g.feed(g.numbers(_BATCH, keys, size)) for size in (_WIDTH, width)]
    given.append(g.either(g.numbers(2 * _WIDTH + width)) if bias else "")
    past = g.maybe(0.3) and form == "apart"
    total = keys + (2 if past else 0)
    masks: list[Any] = [
        np.array([total, 2], np.int32), g.rng.integers(0, 2, (_BATCH, total)).astype(np.int32),
        g.rng.integers(0, 2, (_BATCH, _LENGTH, total)).astype(np.int32),
    ]  # fmt: skip
    given.append(_optional(g, lambda: g.either(g.random.choice(masks)), 0.4))
    given.append(
        _optional(
            g,
            lambda: g.either(g.numbers(g.random.choice((1, _BATCH)), g.random.choice((1, _HEADS)), _LENGTH, total)),
            0.3,
        )
    )
    if past:
        given += [g.feed(g.numbers(_BATCH, _HEADS, 2, size)) for size in (_SIZE, width // _HEADS)]
    if past or g.maybe(0.2):
        g.give(*g.op("MultiHeadAttention", *given, domain=_M, outputs=3, num_heads=_HEADS, **more))
    else:
        g.give(g.op("MultiHeadAttention", *given, domain=_M, num_heads=_HEADS, **more))


@_form
def _rotary_embedding(g: Graph) -> None:
    flat = g.maybe()
    x = g.feed(g.numbers(*((_BATCH, _LENGTH, _WIDTH) if flat else (_BATCH, _HEADS, _LENGTH, _SIZE))))
    half = g.random.choice((_SIZE // 2, 1))
    positions = g.random.choice((np.array([2]), g.rng.integers(0, 9, (_BATCH, _LENGTH))))
    more: dict[str, Any] = g.some(interleaved=1, scale=1.0, num_heads=_HEADS)
    if half != _SIZE // 2 or g.maybe(0.2):
        more |= {"num_heads": _HEADS, "rotary_embedding_dim": 2 * half}
    tables = [g.either(g.numbers(9, half)) for _ in range(2)]
    g.give(g.op("RotaryEmbedding", x, g.either(positions), *tables, domain=_M, **more))


@_form
def _gelus(g: Graph) -> None:
    x = g.feed(2 * g.numbers(3, 6))
    match g.random.choice(("BiasGelu", "FastGelu", "QuickGelu", "Gelu")):
        case "BiasGelu":
            g.give(g.op("BiasGelu", x, g.either(g.numbers(6)), domain=_M))
        case "FastGelu":
            g.give(g.op("FastGelu", x, _optional(g, lambda: g.either(g.numbers(6))), domain=_M))
        case "QuickGelu":
            g.give(g.op("QuickGelu", x, domain=_M, **g.some(alpha=g.random.choice((1.0, 0.7)))))
        case _:
            g.give(g.op("Gelu", x, domain=_M))


@_form
def _products(g: Graph) -> None:
    kind = g.random.choice(("FusedMatMul", "TransposeMatMul"))
    more = g.some(transA=1, transB=1, alpha=0.3)
    if kind == "FusedMatMul" and g.maybe(0.2):
        more |= g.some(transBatchA=1, transBatchB=1)
    rank = g.random.choice((1, 2, 3))
    a, b = g.numbers(2, 3, 4), g.numbers(2, 4, 5)
    left = a.swapaxes(1, 2) if "transA" in more else a
    right = b.swapaxes(1, 2) if "transB" in more else b
    if rank == 1:
        left, more = a[0, 0], {name: each for name, each in more.items() if name in ("alpha", "transA")}
        right = b[0]
    elif rank == 2:
        left, right = left[0], right[0]
    g.give(g.op(kind, g.feed(left), g.either(right), domain=_M, **more))


@_form
def _fused_gemm(g: Graph) -> None:
    turns = g.some(transA=1, transB=1, alpha=0.5, beta=2.0)
    a, b = g.numbers(3, 4), g.numbers(4, 5)
    given = [g.feed(a.T if "transA" in turns else a), g.either(b.T if "transB" in turns else b)]
    given.append(_optional(g, lambda: g.either(g.numbers(*g.random.choice(((5,), (3, 1), (3, 5)))))))
    kind = g.random.choice(
        ("Relu", "Sigmoid", "Tanh", "LeakyRelu", "HardSigmoid", "Elu", "Softplus", "ThresholdedRelu")
    )
    more = g.some(activation=kind, activation_alpha=0.3, activation_beta=0.4)
    g.give(g.op("FusedGemm", *given, domain=_M, **turns, **more))


@_form
def _fused_conv(g: Graph) -> None:
    more = g.some(pads=[1, 0, 1, 1], strides=[2, 1], group=1, dilations=[1, 1])
    kinds: dict[str, list[float]] = {
        "Relu": [], "Sigmoid": [], "Tanh": [], "LeakyRelu": [0.3], "HardSigmoid": [0.3, 0.4], "Clip": [-0.5, 0.5],
    }  # fmt: skip
    kind = g.random.choice(sorted(kinds))
    if g.maybe(0.8):
        more["activation"] = kind
        more |= {"activation_params": kinds[kind]} if kinds[kind] and g.maybe(0.8) else {}
    given = [
        g.feed(g.numbers(1, 3, 6, 6)),
        g.either(g.numbers(4, 3, 3, 3)),
        _optional(g, lambda: g.either(g.numbers(4))),
    ]
    if not more.keys() & {"pads", "strides"} and g.maybe(0.3):
        given.append(g.feed(g.numbers(1, 4, 4, 4)))
    g.give(g.op("FusedConv", *given, domain=_M, **more))


@_form
def _skips(g: Graph) -> None:
    x = g.feed(g.numbers(_BATCH, _LENGTH, 8))
    skips = [(_BATCH, _LENGTH, 8), (1, _LENGTH, 8), (_LENGTH, 8)]
    given = [x, g.either(g.numbers(*g.random.choice(skips))), g.either(g.numbers(8))]
    more = g.some(epsilon=0.1)
    kind = g.random.choice(("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"))
    if kind == "SkipLayerNormalization":
        given.append(_optional(g, lambda: g.either(g.numbers(8))))
    given.append(_optional(g, lambda: g.either(g.numbers(8))))
    if g.maybe():
        g.give(g.op(kind, *given, domain=_M, **more))
        return
    made = g.op(kind, *given, domain=_M, outputs=4, **more)
    kept = [made[0], made[3]] if g.maybe() else [made[3]]
    for name in made:
        if name not in kept:
            g.drop(name)
    g.give(*kept)


@_form
def _norms(g: Graph) -> None:
    """Norms that onnxruntime puts into ONNX's own domain."""
    shape = (2, 3, 8)
    axis = g.random.choice((-1, 2, 1))
    x, rest = g.feed(g.numbers(*shape)), shape[axis:]
    more = g.some(axis=axis, epsilon=0.1)
    rest = rest if "axis" in more else shape[-1:]
    kind = g.random.choice(("SimplifiedLayerNormalization", "LayerNormalization"))
    given = [g.either(g.numbers(*rest))]
    if kind == "LayerNormalization":
        given.append(_optional(g, lambda: g.either(g.numbers(*rest))))
    g.give(g.op(kind, x, *given, **more))


@_form
def _embeddings(g: Graph) -> None:
    ids = g.feed(g.rng.integers(0, 20, (_BATCH, _LENGTH)).astype(np.int32))
    segments = g.maybe()
    kinds = g.rng.integers(0, 2, (_BATCH, _LENGTH)).astype(np.int32)
    mask = np.array([[1, 1, 1, 1, 0], [1, 1, 1, 0, 0]], np.int32)
    places = g.rng.integers(0, 9, (g.random.choice((1, _BATCH)), _LENGTH)).astype(np.int32)
    given = [
        ids,
        g.either(kinds) if segments else "",
        g.either(g.numbers(20, 8)),
        g.either(g.numbers(9, 8)),
        g.either(g.numbers(2, 8)) if segments else "",
        g.either(g.numbers(8)),
        g.either(g.numbers(8)),
        _optional(g, lambda: g.either(mask)),
        _optional(g, lambda: g.either(places)),
    ]
    more = g.some(epsilon=0.1, mask_index_type=g.random.choice((0, 1)))
    count = g.random.choice((1, 2, 3))
    made = g.op("EmbedLayerNormalization", *given, domain=_M, outputs=count, **more)
    g.give(*(made if count > 1 else [made]))
