"""A project with a tiny Whisper of random weights, and speech-like sounds; and Whisper once more, in plain numpy."""

from __future__ import annotations

import json
import math
import wave
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from tests.support.project import Project
from tests.support.safetensors_files import write

Floats = NDArray[np.float32]
WIDTH, HEADS, LAYERS, BANDS, PLACES, POSITIONS, TOKENS = 64, 2, 2, 16, 32, 48, 16
SPECIAL = ("<|endoftext|>", "<|startoftranscript|>", "<|nospeech|>", "<|notimestamps|>")
CONFIG = f"""\
source: {{path: ../models/tiny}}
components: {{encoder: {{file: model.safetensors}}, decoder: {{file: model.safetensors}}}}
files: [generation_config.json, preprocessor_config.json]
speech_model: {{tokens: {TOKENS}}}
targets: [snapdragon-x-elite]
thresholds: {{kl: 0.1, top1: 0.7, words: 0.5}}
release:
  version: "1.0"
  files: [config.json, generation_config.json, preprocessor_config.json, tokenizer.json]
  qdq: true
"""


def tiny_whisper(folder: Path, seed: int = 7) -> dict[str, Floats]:
    """Write a checkpoint as transformers does; its weights by their names."""
    folder.mkdir(parents=True, exist_ok=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={text: number for number, text in enumerate(alphabet)}, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])
    vocabulary, end = len(alphabet) + len(SPECIAL) + 64, len(alphabet)
    tokenizer.save(str(folder / "tokenizer.json"))
    random = np.random.default_rng(seed)
    weights: dict[str, Floats] = {}

    def matrix(name: str, *shape: int, scale: float = 1.0, bias: bool = True) -> None:
        spread = scale / math.sqrt(math.prod(shape[1:]))
        weights[f"{name}.weight"] = random.normal(0, spread, shape).astype(np.float32)
        if bias:
            weights[f"{name}.bias"] = random.normal(0, 0.05, shape[0]).astype(np.float32)

    def norm(name: str) -> None:
        weights[f"{name}.weight"] = random.normal(1, 0.1, WIDTH).astype(np.float32)
        weights[f"{name}.bias"] = random.normal(0, 0.1, WIDTH).astype(np.float32)

    matrix("model.encoder.conv1", WIDTH, BANDS, 3)
    matrix("model.encoder.conv2", WIDTH, WIDTH, 3)
    for side, places in (("encoder", PLACES), ("decoder", POSITIONS)):
        spread = 0.3 * random.normal(size=(places, WIDTH))
        weights[f"model.{side}.embed_positions.weight"] = spread.astype(np.float32)
        norm(f"model.{side}.layer_norm")
        for layer in range(LAYERS):
            at = f"model.{side}.layers.{layer}"
            for attention in ("self_attn", *(("encoder_attn",) if side == "decoder" else ())):
                for part in ("q", "k", "v", "out"):
                    matrix(f"{at}.{attention}.{part}_proj", WIDTH, WIDTH, bias=part != "k")
                norm(f"{at}.{attention}_layer_norm")
            matrix(f"{at}.fc1", 4 * WIDTH, WIDTH)
            matrix(f"{at}.fc2", WIDTH, 4 * WIDTH)
            norm(f"{at}.final_layer_norm")
    matrix("model.decoder.embed_tokens", vocabulary, WIDTH, scale=8.0, bias=False)
    write(folder / "model.safetensors", weights)
    told: Mapping[str, Mapping[str, object]] = {
        "config.json": {
            "architectures": ["WhisperForConditionalGeneration"], "model_type": "whisper", "is_encoder_decoder": True,
            "d_model": WIDTH, "vocab_size": vocabulary, "num_mel_bins": BANDS, "encoder_layers": LAYERS,
            "decoder_layers": LAYERS, "encoder_attention_heads": HEADS, "decoder_attention_heads": HEADS,
            "encoder_ffn_dim": 4 * WIDTH, "decoder_ffn_dim": 4 * WIDTH, "max_source_positions": PLACES,
            "max_target_positions": POSITIONS, "activation_function": "gelu", "scale_embedding": False,
            "decoder_start_token_id": end + 1, "eos_token_id": end, "pad_token_id": end, "bos_token_id": end,
        },
        "generation_config.json": {"is_multilingual": False, "begin_suppress_tokens": [end]},
        "preprocessor_config.json": {
            "feature_extractor_type": "WhisperFeatureExtractor", "feature_size": BANDS, "hop_length": 160,
            "n_fft": 400, "sampling_rate": 16000, "padding_value": 0.0,
        },
    }  # fmt: skip
    for name, values in told.items():
        (folder / name).write_text(json.dumps(values), "utf-8")
    return weights


def sound(seed: int, seconds: float = 0.6, rate: int = 16000) -> Floats:
    """A sound of its own for each seed: three tones that fade, float32 [samples]."""
    random, times = np.random.default_rng(seed), np.arange(round(seconds * rate)) / rate
    tones = [np.sin(2 * np.pi * random.uniform(100, 3500) * times) * random.uniform(0.05, 0.3) for _ in range(3)]
    return np.asarray(sum(tones) * np.exp(-times * random.uniform(0, 4)), np.float32)


def write_wav(path: Path, samples: Floats, rate: int = 16000) -> None:
    """A WAV file of 16 bits; `samples` are [samples] or [samples, channels]."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1 if samples.ndim == 1 else samples.shape[1])
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((samples * 32767).astype("<i2").tobytes())


def speech_project(root: Path) -> Project:
    """The project, not built."""
    made = Project.create(root / "project", root / "store")
    tiny_whisper(made.root / "models" / "tiny")
    folder = made.root / "calibration" / "speech"
    folder.mkdir(parents=True)
    for number in range(8):
        rate = 8000 if number % 3 == 1 else 16000
        made_of = sound(number, rate=rate)
        write_wav(folder / f"{number}.wav", np.stack([made_of] * 2, 1) if number % 3 == 2 else made_of, rate)
    made.write("configs/tiny.yaml", CONFIG)
    return made


def reference(weights: Mapping[str, Floats], features: Floats, tokens: list[int]) -> NDArray[np.float64]:
    """The logits of every token by Whisper's formulas (https://arxiv.org/abs/2212.04356), float64 [tokens, words]."""
    w = {name: array.astype(np.float64) for name, array in weights.items()}

    def norm(x: NDArray[Any], at: str) -> NDArray[Any]:
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
        return x * w[f"{at}.weight"] + w[f"{at}.bias"]

    def gelu(x: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))))

    def linear(x: NDArray[Any], at: str) -> NDArray[Any]:
        return x @ w[f"{at}.weight"].T + w.get(f"{at}.bias", np.zeros(1))

    def attend(x: NDArray[Any], to: NDArray[Any], at: str, ahead: bool) -> NDArray[Any]:
        q, k, v = (linear(of, f"{at}.{part}_proj") for part, of in (("q", x), ("k", to), ("v", to)))
        made = []
        for head in range(HEADS):
            own = slice(head * WIDTH // HEADS, (head + 1) * WIDTH // HEADS)
            scores = q[:, own] @ k[:, own].T / math.sqrt(WIDTH // HEADS)
            if ahead:
                scores = np.where(np.tri(*scores.shape), scores, -np.inf)
            shares = np.exp(scores - scores.max(-1, keepdims=True))
            made.append(shares / shares.sum(-1, keepdims=True) @ v[:, own])
        return linear(np.concatenate(made, 1), f"{at}.out_proj")

    def conv(x: NDArray[Any], at: str, stride: int) -> NDArray[Any]:
        padded = np.pad(x, ((0, 0), (1, 1)))
        views = np.lib.stride_tricks.sliding_window_view(padded, 3, axis=1)[:, ::stride]
        return gelu(np.einsum("oik,itk->ot", w[f"{at}.weight"], views) + w[f"{at}.bias"][:, None])

    x = conv(conv(features[0].astype(np.float64), "model.encoder.conv1", 1), "model.encoder.conv2", 2).T
    x = x + w["model.encoder.embed_positions.weight"]
    heard = None
    for side in ("encoder", "decoder"):
        if side == "decoder":
            heard, table = x, w["model.decoder.embed_tokens.weight"]
            x = table[tokens] + w["model.decoder.embed_positions.weight"][: len(tokens)]
        for layer in range(LAYERS):
            at = f"model.{side}.layers.{layer}"
            y = norm(x, f"{at}.self_attn_layer_norm")
            x = x + attend(y, y, f"{at}.self_attn", side == "decoder")
            if heard is not None:
                x = x + attend(norm(x, f"{at}.encoder_attn_layer_norm"), heard, f"{at}.encoder_attn", False)
            x = x + linear(gelu(linear(norm(x, f"{at}.final_layer_norm"), f"{at}.fc1")), f"{at}.fc2")
        x = norm(x, f"model.{side}.layer_norm")
    return np.asarray(x @ w["model.decoder.embed_tokens.weight"].T)
