"""A stand-in for onnx-community/Supertonic-TTS-2-ONNX: its three components' signatures and operators, random weights.

The real model is 260 MB behind a hub that isn't always there; this one is a few MB, so it says nothing about speech,
only about whether a model of this make gets through. Layout and file names are the repository's, the graphs our own.

    python -m tests.support.models.supertonic OUT
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from onnx import ModelProto

from tests.support.models.builder import Graph, dim, reshape, save
from tests.support.models.layers import (
    conv,
    convnext,
    edge_pad,
    gelu,
    layer_norm,
    linear,
    masked_softmax,
    merge_heads,
    mish,
    pair_mask,
    relative_scores,
    rotary,
    scaled_scores,
    sinusoid,
    split_heads,
    transpose,
)

SAMPLING_RATE = 44100
LATENT_DIM, COMPRESSION, HOP = 24, 6, 512
LATENTS = LATENT_DIM * COMPRESSION
FRAME = HOP * COMPRESSION
"""Samples of the waveform that one latent stands for."""

VOCABULARY = 163
STYLE_ROWS, STYLE_WIDTH = 101, 128
WIDTH, HEADS = 128, 4
SIZE = WIDTH // HEADS
STYLE_TOKENS = 50

SECONDS_PER_TOKEN = 0.073
"""At the usual speed of 1.05 this makes about one latent a token, as the real model does."""


def write(folder: Path) -> None:
    """Write the repository: three components with external data, tokenizer, config and a voice."""
    for name, build in COMPONENTS.items():
        save(build(), folder / "onnx" / f"{name}.onnx", data=f"{name}.onnx_data")
    config = {
        "model_type": "supertonic",
        "sampling_rate": SAMPLING_RATE,
        "base_chunk_size": HOP,
        "chunk_compress_factor": COMPRESSION,
        "latent_dim": LATENT_DIM,
        "style_dim": STYLE_WIDTH,
    }
    _write_json(folder / "config.json", config)
    _write_json(folder / "tokenizer.json", tokenizer())
    voices = folder / "voices"
    voices.mkdir(exist_ok=True)
    for seed, voice in enumerate(("F1", "M1")):
        style = np.random.default_rng(seed).normal(0, 0.5, (STYLE_ROWS, STYLE_WIDTH)).astype("<f4")
        (voices / f"{voice}.bin").write_bytes(style.tobytes())


def tokenizer() -> dict[str, object]:
    """A tokenizer.json that gives each character an id, accents and Korean syllables taken apart first."""
    alphabet = [*"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 .,!?:;'\"()<>/-&%$@+*#=[]¿¡"]
    accents = [chr(code) for code in (0x300, 0x301, 0x302, 0x303, 0x308, 0x327)]
    jamo = [
        chr(code) for first, count in ((0x1100, 19), (0x1161, 21), (0x11A8, 27)) for code in range(first, first + count)
    ]
    vocabulary = ["<unk>", *alphabet, *accents, *jamo]
    assert len(vocabulary) == VOCABULARY
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": {"type": "NFKD"},
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "."}, "behavior": "Isolated", "invert": False},
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "WordLevel",
            "vocab": {token: number for number, token in enumerate(vocabulary)},
            "unk_token": "<unk>",
        },
    }


def text_encoder() -> ModelProto:
    """Characters and a voice to hidden states and a duration in seconds."""
    g = Graph("text_encoder", seed=1)
    ids = g.input("input_ids", "int64", ["batch_size", "text_length"])
    mask = _mask(g, g.input("attention_mask", "int64", ["batch_size", "text_length"]))
    style = _style_input(g)
    with g.scope("text_encoder"):
        x = g.op("Gather", g.normal("embedding", VOCABULARY, WIDTH), ids)
        x = g.op("Mul", transpose(g, x), mask)
        for number in range(2):
            x = convnext(g, x, WIDTH, f"convnext.{number}", mask=mask)
        x = transpose(g, x)
        for number in range(2):
            with g.scope(f"layer.{number}"):
                x = layer_norm(g, g.op("Add", x, _self_attention(g, x, mask)), WIDTH, "norm1")
                x = layer_norm(g, g.op("Add", x, _feed_forward(g, x)), WIDTH, "norm2")
        x = g.op("Add", x, _style_attention(g, x, _style_tokens(g, style)))
        x = g.op("Mul", x, transpose(g, mask), out="last_hidden_state")
    with g.scope("duration_predictor"):
        row = reshape(g, g.op("Slice", style, [STYLE_ROWS - 1], [STYLE_ROWS], [1]), -1, STYLE_WIDTH)
        tempo = g.op("Tanh", linear(g, row, STYLE_WIDTH, 1, "tempo"))
        slope = g.normal("slope", WIDTH, scale=0.05, mean=0.25)
        h = g.op("PRelu", linear(g, x, WIDTH, WIDTH, "hidden"), slope)
        stretch = g.op("Tanh", linear(g, h, WIDTH, 1, "stretch"))
        seconds = g.op("Mul", g.op("Exp", g.op("Mul", stretch, 0.2)), SECONDS_PER_TOKEN)
        seconds = g.op("ReduceSum", g.op("Mul", seconds, transpose(g, mask)), [1, 2], keepdims=0)
        tempo = g.op("Exp", g.op("Mul", g.op("Squeeze", tempo, [1]), 0.05))
        g.op("Mul", seconds, tempo, out="durations")
    g.output("last_hidden_state", "float32", ["batch_size", "text_length", WIDTH])
    g.output("durations", "float32", ["batch_size"])
    return g.model()


def latent_denoiser() -> ModelProto:
    """One step from noise towards the latents of a text spoken by a voice."""
    g = Graph("latent_denoiser", seed=2)
    noisy = g.input("noisy_latents", "float32", ["batch_size", LATENTS, "latent_length"])
    mask = _mask(g, g.input("latent_mask", "int64", ["batch_size", "latent_length"]))
    style = _style_input(g)
    text = g.input("encoder_outputs", "float32", ["batch_size", "text_length", WIDTH])
    text_mask = _mask(g, g.input("attention_mask", "int64", ["batch_size", "text_length"]))
    timestep = g.input("timestep", "float32", ["batch_size"])
    steps = g.input("num_inference_steps", "float32", ["batch_size"])
    with g.scope("time"):
        time = linear(g, sinusoid(g, g.op("Div", timestep, steps), 64), 64, 2 * WIDTH, "expand")
        time = linear(g, mish(g, time), 2 * WIDTH, WIDTH, "contract")
    with g.scope("vector_field"):
        tokens = _style_tokens(g, style)
        x = g.op("Mul", conv(g, noisy, LATENTS, WIDTH, "proj_in"), mask)
        for number in range(2):
            with g.scope(f"block.{number}"):
                for dilation in (1, 2):
                    x = convnext(g, x, WIDTH, f"convnext.{dilation}", mask=mask, dilation=dilation)
                x = g.op("Add", x, g.op("Unsqueeze", linear(g, time, WIDTH, WIDTH, "time"), [2]))
                h = transpose(g, x)
                attended = g.op("Add", h, _text_attention(g, h, mask, text, text_mask))
                h = layer_norm(g, attended, WIDTH, "norm1")
                h = layer_norm(g, g.op("Add", h, _style_attention(g, h, tokens)), WIDTH, "norm2")
                x = g.op("Mul", transpose(g, h), mask)
        velocity = g.op("Mul", conv(g, x, WIDTH, LATENTS, "proj_out"), mask)
    step = g.op("Div", velocity, reshape(g, steps, -1, 1, 1))
    g.op("Mul", g.op("Add", noisy, step), mask, out="denoised_latents")
    g.output("denoised_latents", "float32", ["batch_size", LATENTS, "latent_length"])
    return g.model()


def voice_decoder() -> ModelProto:
    """Latents to a waveform; causal, so that what is padded on the right changes nothing before it."""
    g = Graph("voice_decoder", seed=3)
    latents = g.input("latents", "float32", ["batch_size", LATENTS, "latent_length"])
    with g.scope("decoder"):
        batch = dim(g, latents, 0)
        x = reshape(g, latents, batch, LATENT_DIM, COMPRESSION, -1)
        x = reshape(g, g.op("Transpose", x, perm=[0, 1, 3, 2]), batch, LATENT_DIM, -1)
        x = g.op("Mul", x, g.normal("latent_std", 1, LATENT_DIM, 1, scale=0.1, mean=1.0))
        x = g.op("Add", x, g.normal("latent_mean", 1, LATENT_DIM, 1, scale=0.1))
        x = conv(g, edge_pad(g, x, 6, 0), LATENT_DIM, WIDTH, "proj_in", kernel=7)
        for number, dilation in enumerate((1, 2, 4)):
            x = convnext(g, x, WIDTH, f"convnext.{number}", kernel=7, dilation=dilation, causal=True)
        x = _batch_norm(g, x)
        x = conv(g, edge_pad(g, x, 2, 0), WIDTH, WIDTH, "head", kernel=3)
        x = g.op("PRelu", x, g.normal("slope", WIDTH, 1, scale=0.05, mean=0.25))
        x = g.op("Mul", conv(g, x, WIDTH, HOP, "proj_out"), 0.2)
        g.op("Reshape", transpose(g, x), g.op("Concat", g.op("Unsqueeze", batch, [0]), [-1], axis=0), out="waveform")
    g.output("waveform", "float32", ["batch_size", "num_samples"])
    return g.model()


COMPONENTS = {"text_encoder": text_encoder, "latent_denoiser": latent_denoiser, "voice_decoder": voice_decoder}


def _mask(g: Graph, mask: str) -> str:
    """int64 [batch, length] -> float32 [batch, 1, length]."""
    return g.op("Unsqueeze", g.op("Cast", mask, to=1), [1])


def _style_input(g: Graph) -> str:
    return g.input("style", "float32", ["batch_size", STYLE_ROWS, STYLE_WIDTH])


def _style_tokens(g: Graph, style: str) -> str:
    """All rows of the style but the last, as 50 tokens of twice the width: float32 [batch, 50, 256]."""
    rows = g.op("Slice", style, [0], [STYLE_ROWS - 1], [1])
    return reshape(g, rows, -1, STYLE_TOKENS, 2 * STYLE_WIDTH)


def _self_attention(g: Graph, x: str, mask: str) -> str:
    with g.scope("self_attention"):
        q, k, v = (split_heads(g, linear(g, x, WIDTH, WIDTH, name), HEADS, SIZE) for name in ("query", "key", "value"))
        scores = g.op("Add", scaled_scores(g, q, k, SIZE), relative_scores(g, q, SIZE))
        weights = masked_softmax(g, scores, pair_mask(g, mask, mask))
        return linear(g, merge_heads(g, g.op("MatMul", weights, v), WIDTH), WIDTH, WIDTH, "out")


def _text_attention(g: Graph, x: str, mask: str, text: str, text_mask: str) -> str:
    with g.scope("text_attention"):
        q = rotary(g, split_heads(g, linear(g, x, WIDTH, WIDTH, "query"), HEADS, SIZE), mask, SIZE)
        k = rotary(g, split_heads(g, linear(g, text, WIDTH, WIDTH, "key"), HEADS, SIZE), text_mask, SIZE)
        v = split_heads(g, linear(g, text, WIDTH, WIDTH, "value"), HEADS, SIZE)
        weights = masked_softmax(g, scaled_scores(g, q, k, SIZE), pair_mask(g, mask, text_mask))
        return linear(g, merge_heads(g, g.op("MatMul", weights, v), WIDTH), WIDTH, WIDTH, "out")


def _style_attention(g: Graph, x: str, tokens: str) -> str:
    with g.scope("style_attention"):
        q = split_heads(g, linear(g, x, WIDTH, WIDTH, "query"), HEADS, SIZE)
        k = split_heads(g, g.op("Tanh", linear(g, tokens, 2 * STYLE_WIDTH, WIDTH, "key")), HEADS, SIZE)
        v = split_heads(g, linear(g, tokens, 2 * STYLE_WIDTH, WIDTH, "value"), HEADS, SIZE)
        weights = g.op("Softmax", scaled_scores(g, q, k, SIZE), axis=-1)
        return linear(g, merge_heads(g, g.op("MatMul", weights, v), WIDTH), WIDTH, WIDTH, "out")


def _feed_forward(g: Graph, x: str) -> str:
    with g.scope("feed_forward"):
        return linear(g, gelu(g, linear(g, x, WIDTH, 2 * WIDTH, "expand")), 2 * WIDTH, WIDTH, "contract")


def _batch_norm(g: Graph, x: str) -> str:
    with g.scope("batch_norm"):
        scale, bias = g.normal("weight", WIDTH, scale=0.1, mean=1.0), g.normal("bias", WIDTH, scale=0.1)
        mean = g.normal("running_mean", WIDTH, scale=0.1)
        variance = g.weight("running_var", np.linspace(0.5, 2.0, WIDTH))
        return g.op("BatchNormalization", x, scale, bias, mean, variance)


def _write_json(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", "utf-8", newline="\n")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
