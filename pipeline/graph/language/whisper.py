"""The two graphs of Whisper (https://arxiv.org/abs/2212.04356): an encoder of sound, and one step of its decoder.

Encoder, once for a window of sound, F frames of M mel bands; S = F / 2, W = width / heads:

    input_features        float32 [1, M, F]
    cross_key_{l}         float32 [heads, W, S], what the decoder's layer l attends to
    cross_value_{l}       float32 [heads, S, W]

Decoder, once for each token, with a cache of P positions; position p of a text is in place p of the cache:

    input_ids, position   int32 [1, 1], int32 [1]
    attention_mask        float32 [1, 1, P + 1], 0 or -50: which places are filled, and the token itself
    past_key_{l}_in       float32 [heads, W, P]
    past_value_{l}_in     float32 [heads, P, W]
    cross_key_{l}, cross_value_{l}
    logits                float32 [1, vocabulary]
    past_key_{l}_out, past_value_{l}_out    of the token alone, 1 in place of P

All shapes are fixed, so that no padding changes what a model hears. The factor 1/sqrt(W) is in the queries' weights.
"""

from __future__ import annotations

from dataclasses import dataclass

from onnx import TensorProto

from pipeline.graph.language.builder import GraphBuilder
from pipeline.graph.language.names import IDS

_FLOAT = TensorProto.FLOAT


@dataclass(frozen=True)
class WhisperSizes:
    """The sizes that a config.json of Whisper gives; `tokens` are those that the decoder's cache and one more hold."""

    width: int
    bands: int
    frames: int
    vocabulary: int
    positions: int
    encoder_layers: int
    decoder_layers: int
    encoder_heads: int
    decoder_heads: int
    encoder_inner: int
    decoder_inner: int
    tokens: int

    @property
    def places(self) -> int:
        """Places of sound that the decoder attends to, half as many as frames."""
        return self.frames // 2


def build_whisper_encoder(builder: GraphBuilder, sizes: WhisperSizes) -> None:
    """Put the encoder into the builder, with the cross attention's keys and values behind it.

    Raises:
        ModelError: a tensor is missing or of another shape.
    """
    width, inner, heads = sizes.width, sizes.encoder_inner, sizes.encoder_heads
    stream = builder.input("input_features", _FLOAT, [1, sizes.bands, sizes.frames])
    for number, (taken, stride) in enumerate(((sizes.bands, 1), (width, 2)), 1):
        at, source = f"/encoder/conv{number}", f"model.encoder.conv{number}"
        weight = builder.stored(f"{at}_weight", builder.array(f"{source}.weight", (width, taken, 3)))
        bias = builder.stored(f"{at}_bias", builder.array(f"{source}.bias", (width,)))
        stream = builder.op("Conv", stream, weight, bias, name=at, kernel_shape=[3], pads=[1, 1], strides=[stride])
        stream = builder.op("Gelu", stream, name=f"{at}_gelu")
    stream = builder.op("Transpose", stream, name="/encoder/rows", perm=[0, 2, 1])
    places = builder.array("model.encoder.embed_positions.weight", (sizes.places, width))
    stream = builder.op("Add", stream, builder.stored("encoder_positions", places[None]), name="/encoder/placed")
    for layer in range(sizes.encoder_layers):
        at, source = f"/encoder/layers.{layer}", f"model.encoder.layers.{layer}"
        normed = builder.layer_norm(stream, f"{source}.self_attn_layer_norm", f"{at}/attention_norm", width)
        key, value = _keys(builder, normed, f"{source}.self_attn", f"{at}/attention", width, heads, sizes.places)
        query = _query(builder, normed, f"{source}.self_attn", f"{at}/attention", width, heads)
        scores = builder.op("MatMul", query, key, name=f"{at}/attention/scores")
        attended = _attended(builder, scores, value, f"{source}.self_attn", f"{at}/attention", width)
        stream = builder.op("Add", stream, attended, name=f"{at}/attention_residual")
        stream = _fed_forward(builder, stream, source, at, width, inner)
    stream = builder.layer_norm(stream, "model.encoder.layer_norm", "/encoder/final_norm", width)
    heads = sizes.decoder_heads
    for layer in range(sizes.decoder_layers):
        source = f"model.decoder.layers.{layer}.encoder_attn"
        key, value = _keys(builder, stream, source, f"/cross.{layer}", width, heads, sizes.places)
        builder.output(f"cross_key_{layer}", key, [heads, width // heads, sizes.places])
        builder.output(f"cross_value_{layer}", value, [heads, sizes.places, width // heads])


def build_whisper_decoder(builder: GraphBuilder, sizes: WhisperSizes) -> None:
    """Put one step of the decoder into the builder.

    Raises:
        ModelError: a tensor is missing or of another shape.
    """
    width, heads, past = sizes.width, sizes.decoder_heads, sizes.tokens - 1
    head = width // heads
    ids = builder.input(IDS, TensorProto.INT32, [1, 1])
    position = builder.input("position", TensorProto.INT32, [1])
    mask = builder.input("attention_mask", _FLOAT, [1, 1, past + 1])
    for layer in range(sizes.decoder_layers):
        builder.input(f"past_key_{layer}_in", _FLOAT, [heads, head, past])
        builder.input(f"past_value_{layer}_in", _FLOAT, [heads, past, head])
        builder.input(f"cross_key_{layer}", _FLOAT, [heads, head, sizes.places])
        builder.input(f"cross_value_{layer}", _FLOAT, [heads, sizes.places, head])
    table = builder.table("model.decoder.embed_tokens.weight", "embedding", (sizes.vocabulary, width))
    places = builder.table("model.decoder.embed_positions.weight", "positions", (sizes.positions, width))
    stream = builder.reshape(builder.op("Gather", table, ids, name="/embedding", axis=0), 1, width, name="/row")
    place = builder.op("Gather", places, position, name="/place", axis=0)
    stream = builder.op("Add", stream, place, name="/placed")
    for layer in range(sizes.decoder_layers):
        at, source = f"/layers.{layer}", f"model.decoder.layers.{layer}"
        normed = builder.layer_norm(stream, f"{source}.self_attn_layer_norm", f"{at}/attention_norm", width)
        key, value = _keys(builder, normed, f"{source}.self_attn", f"{at}/attention", width, heads, 1)
        keys = builder.op("Concat", f"past_key_{layer}_in", key, name=f"{at}/attention/keys", axis=2)
        values = builder.op("Concat", f"past_value_{layer}_in", value, name=f"{at}/attention/values", axis=1)
        query = _query(builder, normed, f"{source}.self_attn", f"{at}/attention", width, heads)
        scores = builder.op("MatMul", query, keys, name=f"{at}/attention/scores")
        masked = builder.op("Add", scores, mask, name=f"{at}/attention/masked")
        attended = _attended(builder, masked, values, f"{source}.self_attn", f"{at}/attention", width, flat=True)
        stream = builder.op("Add", stream, attended, name=f"{at}/attention_residual")
        normed = builder.layer_norm(stream, f"{source}.encoder_attn_layer_norm", f"{at}/cross_norm", width)
        query = _query(builder, normed, f"{source}.encoder_attn", f"{at}/cross", width, heads)
        scores = builder.op("MatMul", query, f"cross_key_{layer}", name=f"{at}/cross/scores")
        of = f"{source}.encoder_attn"
        attended = _attended(builder, scores, f"cross_value_{layer}", of, f"{at}/cross", width, flat=True)
        stream = builder.op("Add", stream, attended, name=f"{at}/cross_residual")
        stream = _fed_forward(builder, stream, source, at, width, sizes.decoder_inner)
    last = builder.layer_norm(stream, "model.decoder.layer_norm", "/final_norm", width)
    head_table = table
    if builder.weights.shape("proj_out.weight") is not None:
        head_table = builder.table("proj_out.weight", "head", (sizes.vocabulary, width))
    builder.output("logits", builder.op("Gemm", last, head_table, name="/head", transB=1), [1, sizes.vocabulary])
    for layer in range(sizes.decoder_layers):
        builder.output(f"past_key_{layer}_out", f"/layers.{layer}/attention/key", [heads, head, 1])
        builder.output(f"past_value_{layer}_out", f"/layers.{layer}/attention/value", [heads, 1, head])


def _query(builder: GraphBuilder, normed: str, source: str, at: str, width: int, heads: int) -> str:
    head = width // heads
    made = builder.linear(normed, f"{source}.q_proj.weight", f"{at}/q", (width, width), float(head) ** -0.5)
    split = builder.reshape(made, -1, heads, head, name=f"{at}/q_heads")
    return builder.op("Transpose", split, name=f"{at}/query", perm=[1, 0, 2])


def _keys(
    builder: GraphBuilder, normed: str, source: str, at: str, width: int, heads: int, places: int
) -> tuple[str, str]:
    """Keys [heads, width / heads, places] and values [heads, places, width / heads]."""
    made = []
    for part, turned in (("k", [1, 2, 0]), ("v", [1, 0, 2])):
        product = builder.linear(normed, f"{source}.{part}_proj.weight", f"{at}/{part}", (width, width))
        split = builder.reshape(product, places, heads, width // heads, name=f"{at}/{part}_heads")
        name = f"{at}/{'key' if part == 'k' else 'value'}"
        made.append(builder.op("Transpose", split, name=name, perm=turned))
    return made[0], made[1]


def _attended(
    builder: GraphBuilder, scores: str, value: str, source: str, at: str, width: int, *, flat: bool = False
) -> str:
    shares = builder.op("Softmax", scores, name=f"{at}/shares", axis=-1)
    mixed = builder.op("MatMul", shares, value, name=f"{at}/mixed")
    turned = builder.op("Transpose", mixed, name=f"{at}/turned", perm=[1, 0, 2])
    rows = builder.reshape(turned, *((1, width) if flat else (1, -1, width)), name=f"{at}/rows")
    return builder.linear(rows, f"{source}.out_proj.weight", f"{at}/out", (width, width))


def _fed_forward(builder: GraphBuilder, stream: str, source: str, at: str, width: int, inner: int) -> str:
    normed = builder.layer_norm(stream, f"{source}.final_layer_norm", f"{at}/forward_norm", width)
    wide = builder.linear(normed, f"{source}.fc1.weight", f"{at}/wide", (inner, width))
    active = builder.op("Gelu", wide, name=f"{at}/gelu")
    narrow = builder.linear(active, f"{source}.fc2.weight", f"{at}/narrow", (width, inner))
    return builder.op("Add", stream, narrow, name=f"{at}/forward_residual")
