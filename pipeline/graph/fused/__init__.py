"""Operators that ONNX Runtime's optimizers fuse, and ONNX's own Attention, written out in smaller ones.

Models on hubs are often files that onnxruntime's optimizer wrote (``model_O2.onnx``, ``model_optimized.onnx``): their
operators are of the domain ``com.microsoft``, and QNN knows hardly any of them. Those that onnxruntime computes on CPUs
are written out here when the shapes of all they read are known, so that the padding rung compares what was written with
the operator itself, computed by onnxruntime. So is what scikit-learn's pipelines put around a network. Norms and Gelu
are fused again for HTP by :mod:`pipeline.graph.rewrites`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from onnx import GraphProto, NodeProto, TypeProto

from pipeline.graph.fused import onnx_attention
from pipeline.graph.fused.activations import write_bias_gelu, write_fast_gelu, write_quick_gelu
from pipeline.graph.fused.attention import write_attention, write_multi_head_attention, write_rotary_embedding
from pipeline.graph.fused.learned import write_scaler
from pipeline.graph.fused.norms import write_embeddings, write_skip_layer_norm, write_skip_rms_norm
from pipeline.graph.fused.products import write_conv, write_gemm, write_matmul
from pipeline.graph.fused.unfused import Unfused
from pipeline.graph.ir.index import CONTRIB_DOMAIN
from pipeline.graph.ir.inference import Opsets
from pipeline.graph.ir.traverse import DEFAULT_DOMAINS

FUSED: Mapping[str, Callable[[Unfused], None]] = {
    "Attention": write_attention,
    "BiasGelu": write_bias_gelu,
    "EmbedLayerNormalization": write_embeddings,
    "FastGelu": write_fast_gelu,
    "FusedConv": write_conv,
    "FusedGemm": write_gemm,
    "FusedMatMul": write_matmul,
    "MultiHeadAttention": write_multi_head_attention,
    "QuickGelu": write_quick_gelu,
    "RotaryEmbedding": write_rotary_embedding,
    "SkipLayerNormalization": write_skip_layer_norm,
    "SkipSimplifiedLayerNormalization": write_skip_rms_norm,
    "TransposeMatMul": write_matmul,
}
"""Operators of ``com.microsoft``, and what writes each."""

ATTENTION: Mapping[str, Callable[[Unfused], None]] = {
    "Attention": onnx_attention.write_attention,
    "RotaryEmbedding": onnx_attention.write_rotary_embedding,
}
"""Operators of ONNX itself, from opset 23 on, that are as large."""


LEARNED: Mapping[str, Callable[[Unfused], None]] = {"Scaler": write_scaler}
"""Operators of ``ai.onnx.ml`` that are arithmetic."""

_TABLES = {CONTRIB_DOMAIN: FUSED, "ai.onnx.ml": LEARNED, **dict.fromkeys(DEFAULT_DOMAINS, ATTENTION)}


def write_out(node: NodeProto, types: Mapping[str, TypeProto], opsets: Opsets, taken: set[str]) -> GraphProto | None:
    """ONNX operators that compute what a fused one does; None for any other node.

    `types` has the static type of all that it reads; names of new values are added to those `taken`.

    Raises:
        ModelError: the operator is used in a way that is not known here.
    """
    write = _TABLES.get(node.domain, {}).get(node.op_type)
    if write is None:
        return None
    made = Unfused(node, types, opsets, taken)
    try:
        write(made)
    except (ArithmeticError, LookupError, ValueError):  # dims of another number, 0 heads, an attribute of another type
        raise made.refused("its inputs and attributes don't go together") from None
    return made.graph
