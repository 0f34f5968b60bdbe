"""The decoder that all supported architectures are variants of: rotary attention over a cache, and a gated product.

The graph's contract is that of qai-hub-models 0.65 (`models/templates/llm/model.py`), which Qualcomm's Genie and
onnxruntime-genai's `decoder-pipeline` run, AR tokens after a cache of P positions, N = AR + P:

    input_ids                  int32 [1, AR]
    attention_mask             float32 [1, 1, AR, N], 0 or -50, added to the scores
    position_ids_cos, _sin     float32 [1, 1, AR, head_dim / 2]; with `_local` behind them for a second rotation
    past_key_{l}_in            float32 [kv_heads, 1, head_dim, P]
    past_value_{l}_in          float32 [kv_heads, 1, P, head_dim]
    logits                     float32 [1, AR, vocabulary], of all AR positions
    past_key_{l}_out, past_value_{l}_out   the new positions alone, AR in place of P

Heads that share keys are rows of one product, so that nothing is repeated. The factor 1/sqrt(head_dim) is in the
query's weights (or its norm's). QNN takes none of ONNX's GroupQueryAttention, RotaryEmbedding and Attention.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from pipeline.graph.language.builder import PAST, SEQUENCE, GraphBuilder
from pipeline.graph.language.names import IDS

_FLOAT = TensorProto.FLOAT


@dataclass(frozen=True)
class Variant:
    """In what an architecture differs: norms of queries and keys, norms behind the parts, the product's function.

    `embedding_scale` multiplies the embeddings. The residual stream is kept `shrunk` times smaller than the source has
    it, for one that float16 does not hold; only where `output_norms` are there to shrink what is added to it.
    """

    head_norms: bool = False
    output_norms: bool = False
    gelu: bool = False
    embedding_scale: float = 1.0
    shrunk: float = 1.0


def build_decoder(builder: GraphBuilder, variant: Variant) -> None:
    """Put inputs, layers and outputs into the builder.

    Raises:
        ModelError: a tensor is missing or of another shape.
    """
    hyper = builder.hyper
    ids = builder.input(IDS, TensorProto.INT32, [1, SEQUENCE])
    builder.input("attention_mask", _FLOAT, [1, 1, SEQUENCE, f"{PAST} + {SEQUENCE}"])
    for suffix in hyper.rotations:
        for part in ("cos", "sin"):
            builder.input(f"position_ids_{part}{suffix}", _FLOAT, [1, 1, SEQUENCE, hyper.head_dim // 2])
    for layer in range(hyper.layers):
        builder.input(f"past_key_{layer}_in", _FLOAT, [hyper.kv_heads, 1, hyper.head_dim, PAST])
        builder.input(f"past_value_{layer}_in", _FLOAT, [hyper.kv_heads, 1, PAST, hyper.head_dim])
    vocabulary = (hyper.vocabulary, hyper.hidden)
    table = builder.table("token_embd.weight", "embedding", vocabulary)
    stream = builder.op("Gather", table, ids, name="/embedding", axis=0)
    if variant.embedding_scale != variant.shrunk:
        factor = builder.constant("embedding_factor", np.array(variant.embedding_scale / variant.shrunk, np.float32))
        stream = builder.op("Mul", stream, factor, name="/embedding_scaled_residual")
    for layer in range(hyper.layers):
        stream = _Layer(builder, variant, layer).run(stream)
    last = builder.norm(stream, "output_norm.weight", "/final_norm", hyper.hidden, shrunk=variant.shrunk)
    head = table
    if builder.weights.shape("output.weight") is not None:
        head = builder.table("output.weight", "head", vocabulary)
    flat = builder.reshape(last, -1, hyper.hidden, name="/head/rows")
    product = builder.op("Gemm", flat, head, name="/head/product", transB=1)
    logits = builder.reshape(product, 1, -1, hyper.vocabulary, name="/head")
    builder.output("logits", logits, [1, SEQUENCE, hyper.vocabulary])
    for layer in range(hyper.layers):
        key, value = f"past_key_{layer}_out", f"past_value_{layer}_out"
        builder.output(key, f"/layers.{layer}/key", [hyper.kv_heads, 1, hyper.head_dim, SEQUENCE])
        builder.output(value, f"/layers.{layer}/value", [hyper.kv_heads, 1, SEQUENCE, hyper.head_dim])


class _Layer:
    def __init__(self, builder: GraphBuilder, variant: Variant, layer: int) -> None:
        self._builder = builder
        self._variant = variant
        self._number = layer
        self._at = f"/layers.{layer}"
        self._blk = f"blk.{layer}"

    def run(self, stream: str) -> str:
        """The residual stream after attention and the gated product."""
        builder, variant, at, hidden = self._builder, self._variant, self._at, self._builder.hyper.hidden
        shrunk = variant.shrunk
        normed = builder.norm(stream, f"{self._blk}.attn_norm.weight", f"{at}/input_norm", hidden, shrunk=shrunk)
        attended = self._attention(normed)
        if variant.output_norms:
            weight = f"{self._blk}.post_attention_norm.weight"
            attended = builder.norm(attended, weight, f"{at}/attention_out_norm", hidden, 1 / shrunk)
        stream = builder.op("Add", stream, attended, name=f"{at}/attention_residual")
        normed = builder.norm(stream, f"{self._blk}.ffn_norm.weight", f"{at}/gated_norm", hidden, shrunk=shrunk)
        gated = self._gated(normed)
        if variant.output_norms:
            weight = f"{self._blk}.post_ffw_norm.weight"
            gated = builder.norm(gated, weight, f"{at}/gated_out_norm", hidden, 1 / shrunk)
        return builder.op("Add", stream, gated, name=f"{at}/gated_residual")

    def _attention(self, value: str) -> str:
        builder, at, hyper = self._builder, self._at, self._builder.hyper
        heads, shared, size = hyper.heads, hyper.kv_heads, hyper.head_dim
        scale = 1 / math.sqrt(size)
        norms = self._variant.head_norms
        query = self._projected(value, "attn_q", "query_product", heads, scale=1.0 if norms else scale)
        key = self._projected(value, "attn_k", "key_product", shared)
        if norms:
            query = self._head_norm(query, "attn_q_norm", "query_head_norm", scale)
            key = self._head_norm(key, "attn_k_norm", "key_head_norm", 1.0)
        query = builder.reshape(query, -1, shared, hyper.group, size, name=f"{at}/query_heads")
        query = builder.op("Transpose", query, name=f"{at}/query_by_head", perm=[1, 2, 0, 3])
        query = self._rotated(query, "query")
        rows = builder.reshape(query, shared, 1, -1, size, name=f"{at}/query_rows")
        key = builder.reshape(key, -1, shared, 1, size, name=f"{at}/key_heads")
        key = builder.op("Transpose", key, name=f"{at}/key_by_head", perm=[1, 2, 0, 3])
        key = builder.op("Transpose", self._rotated(key, "key"), name=f"{at}/key", perm=[0, 1, 3, 2])
        values = self._projected(value, "attn_v", "value_product", shared)
        values = builder.reshape(values, -1, shared, 1, size, name=f"{at}/value_heads")
        values = builder.op("Transpose", values, name=f"{at}/value", perm=[1, 2, 0, 3])
        keys = builder.op("Concat", f"past_key_{self._number}_in", key, name=f"{at}/keys", axis=3)
        every = builder.op("Concat", f"past_value_{self._number}_in", values, name=f"{at}/values", axis=2)
        scores = builder.op("MatMul", rows, keys, name=f"{at}/scores")
        scores = builder.reshape(scores, shared, hyper.group, -1, 0, name=f"{at}/scores_by_head")
        masked = builder.op("Add", scores, "attention_mask", name=f"{at}/masked_scores")
        shares = builder.op("Softmax", masked, name=f"{at}/shares", axis=-1)
        shares = builder.reshape(shares, shared, 1, -1, 0, name=f"{at}/shares_rows")
        mixed = builder.op("MatMul", shares, every, name=f"{at}/mixed")
        mixed = builder.reshape(mixed, shared, hyper.group, -1, size, name=f"{at}/mixed_by_head")
        mixed = builder.op("Transpose", mixed, name=f"{at}/mixed_by_token", perm=[2, 0, 1, 3])
        mixed = builder.reshape(mixed, 1, -1, heads * size, name=f"{at}/mixed_tokens")
        weight = f"{self._blk}.attn_output.weight"
        return builder.linear(mixed, weight, f"{at}/attention", (hyper.hidden, heads * size))

    def _projected(self, value: str, weight: str, name: str, heads: int, scale: float = 1.0) -> str:
        hyper = self._builder.hyper
        shape = (heads * hyper.head_dim, hyper.hidden)
        return self._builder.linear(value, f"{self._blk}.{weight}.weight", f"{self._at}/{name}", shape, scale)

    def _head_norm(self, value: str, weight: str, name: str, scale: float) -> str:
        """A norm of each head by itself, of rank 3."""
        size = self._builder.hyper.head_dim
        heads = -1
        rows = self._builder.reshape(value, 1, heads, size, name=f"{self._at}/{name}_rows")
        return self._builder.norm(rows, f"{self._blk}.{weight}.weight", f"{self._at}/{name}", size, scale)

    def _rotated(self, value: str, name: str) -> str:
        """[heads, group, tokens, size], each pair (i, i + size / 2) turned by the angle of its token."""
        builder, at = self._builder, f"{self._at}/{name}"
        suffix = "_local" if self._number in builder.hyper.local else ""
        first = builder.op("Split", value, name=f"{at}_half", outputs=2, axis=-1, num_outputs=2)
        second, cos, sin = f"{first}_2", f"position_ids_cos{suffix}", f"position_ids_sin{suffix}"
        kept = builder.op("Mul", first, cos, name=f"{at}_first_cos")
        taken = builder.op("Mul", second, sin, name=f"{at}_second_sin")
        turned = builder.op("Sub", kept, taken, name=f"{at}_first_turned")
        kept = builder.op("Mul", second, cos, name=f"{at}_second_cos")
        taken = builder.op("Mul", first, sin, name=f"{at}_first_sin")
        other = builder.op("Add", kept, taken, name=f"{at}_second_turned")
        return builder.op("Concat", turned, other, name=f"{at}_turned", axis=-1)

    def _gated(self, value: str) -> str:
        builder, at, hidden = self._builder, self._at, self._builder.hyper.hidden
        found = builder.weights.shape(f"{self._blk}.ffn_gate.weight")
        inner = found[0] if found else 0
        gate = builder.linear(value, f"{self._blk}.ffn_gate.weight", f"{at}/gate", (inner, hidden))
        if self._variant.gelu:
            gate = builder.op("Gelu", gate, name=f"{at}/gate_gelu", approximate="tanh")
        else:
            gate = builder.op(
                "Mul", gate, builder.op("Sigmoid", gate, name=f"{at}/gate_sigmoid"), name=f"{at}/gate_silu"
            )
        up = builder.linear(value, f"{self._blk}.ffn_up.weight", f"{at}/up", (inner, hidden))
        product = builder.op("Mul", gate, up, name=f"{at}/gated")
        return builder.linear(product, f"{self._blk}.ffn_down.weight", f"{at}/down", (hidden, inner))
