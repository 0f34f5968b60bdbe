"""A graph of BERT-base's size and form with random weights: 12 layers, hidden 768, 12 heads, 30,522 words, 435 MB."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto

from tests.support.models.builder import Graph, dim, reshape, vector
from tests.support.models.layers import gelu, linear, merge_heads, scaled_scores, split_heads

WORDS, POSITIONS, WIDTH, HEADS, LAYERS = 30522, 512, 768, 12, 12
SIZE = WIDTH // HEADS


def encoder() -> ModelProto:
    """Token ids and mask, int64 [batch, sequence], to hidden states, float32 [batch, sequence, 768]."""
    g = Graph("bert_base", seed=0)
    ids = g.input("input_ids", "int64", ["batch", "sequence"])
    mask = g.input("attention_mask", "int64", ["batch", "sequence"])
    with g.scope("embeddings"):
        places = g.op("Slice", np.arange(POSITIONS).reshape(1, -1), [0], vector(g, dim(g, ids, 1)), [1], [1])
        words = g.op("Gather", g.normal("words", WORDS, WIDTH), ids)
        x = _norm(g, g.op("Add", words, g.op("Gather", g.normal("positions", POSITIONS, WIDTH), places)), "norm")
    bias = _mask_bias(g, mask)
    for number in range(LAYERS):
        with g.scope(f"layer.{number}"):
            x = _norm(g, g.op("Add", _attention(g, x, bias), x), "attention.norm")
            h = linear(g, gelu(g, linear(g, x, WIDTH, 4 * WIDTH, "intermediate")), 4 * WIDTH, WIDTH, "output")
            x = _norm(g, g.op("Add", h, x), "norm", out="last_hidden_state" if number == LAYERS - 1 else "")
    g.output("last_hidden_state", "float32", ["batch", "sequence", WIDTH])
    return g.model()


def _mask_bias(g: Graph, mask: str) -> str:
    """int64 [batch, sequence] -> float32 [batch, 1, 1, sequence]: 0 where attended, else the float minimum."""
    with g.scope("mask"):
        seen = reshape(g, g.op("Cast", mask, to=1), dim(g, mask, 0), 1, 1, dim(g, mask, 1))
        return g.op("Mul", g.op("Sub", 1.0, seen), np.array(np.finfo(np.float32).min))


def _attention(g: Graph, x: str, bias: str) -> str:
    with g.scope("attention"):
        q, k, v = (split_heads(g, linear(g, x, WIDTH, WIDTH, name), HEADS, SIZE) for name in ("query", "key", "value"))
        weights = g.op("Softmax", g.op("Add", scaled_scores(g, q, k, SIZE), bias), axis=-1)
        return linear(g, merge_heads(g, g.op("MatMul", weights, v), WIDTH), WIDTH, WIDTH, "out")


def _norm(g: Graph, x: str, name: str, out: str = "") -> str:
    scale = g.normal(f"{name}.weight", WIDTH, scale=0.1, mean=1.0)
    return g.op("LayerNormalization", x, scale, g.normal(f"{name}.bias", WIDTH, scale=0.1), out=out, axis=-1)
