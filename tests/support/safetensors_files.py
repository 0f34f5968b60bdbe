"""Folders of our own as transformers saves a language model: whatever a test wants in them."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from pipeline.inputs.gguf.file import read_gguf
from pipeline.inputs.gguf.tokenizer import tokenizer_json
from pipeline.inputs.safetensors.weights import OF_ARCHITECTURE, OF_LAYER, OF_MODEL
from tests.support.gguf_files import TEMPLATE, Floats, TinySizes, tiny_gguf

HF_NAMES = {
    "llama": "llama",
    "mistral": "mistral",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma3": "gemma3_text",
    "phi3": "phi3",
}
"""The names that config.json gives to architectures, by those of GGUF."""
Entry = Mapping[str, object]


def stored(array: Floats, dtype: str) -> bytes:
    """The bytes of an array in a type of the format; bfloat16 is cut, not rounded."""
    if dtype == "BF16":
        return (array.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()
    return array.astype({"F32": "<f4", "F16": "<f2"}[dtype]).tobytes()


def framed(header: bytes, data: bytes = b"") -> bytes:
    """A file with this header, whatever it says."""
    return struct.pack("<Q", len(header)) + header + data


def entry(dtype: str = "F32", shape: Sequence[int] = (4,), offsets: Sequence[int] = (0, 16)) -> Entry:
    """A tensor as the header has it."""
    return {"dtype": dtype, "shape": [*shape], "data_offsets": [*offsets]}


def write(path: Path, arrays: Mapping[str, Floats], dtype: str = "F32") -> None:
    """A file with these tensors."""
    header, data = {}, b""
    for name, array in arrays.items():
        raw = stored(array, dtype)
        header[name] = entry(dtype, array.shape, (len(data), len(data) + len(raw)))
        data += raw
    path.write_bytes(framed(json.dumps(header).encode(), data))


def renamed(weights: Mapping[str, Floats], architecture: str) -> dict[str, Floats]:
    """The same under the names of transformers; norms of Gemma without the 1 that GGUF has in them."""
    of_layer = {**OF_LAYER, **OF_ARCHITECTURE.get(HF_NAMES[architecture], {})}
    found = {}
    for name, array in weights.items():
        stem, _, kind = name.rpartition(".")
        kept = array - np.float32(1) if architecture == "gemma3" and "norm" in name else array
        if stem.startswith("blk."):
            _, layer, part = stem.split(".", 2)
            found[f"model.layers.{layer}.{of_layer[part]}.{kind}"] = kept
        else:
            found[f"{OF_MODEL[stem]}.{kind}"] = kept
    return found


def tiny_config(sizes: TinySizes, vocabulary: int, architecture: str) -> dict[str, object]:
    """The config.json of a tiny model."""
    return {
        "model_type": HF_NAMES[architecture],
        "hidden_size": sizes.hidden,
        "intermediate_size": sizes.inner,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.kv_heads,
        "head_dim": sizes.head_dim,
        "vocab_size": vocabulary,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        **({"rope_local_base_freq": 10000.0} if architecture == "gemma3" else {}),
        "tie_word_embeddings": True,
        **({"query_pre_attn_scalar": sizes.head_dim} if architecture == "gemma3" else {"hidden_act": "silu"}),
        "eos_token_id": [265],
    }


def tiny_folder(folder: Path, *, architecture: str = "llama", dtype: str = "F32", shards: int = 1) -> dict[str, Floats]:
    """Write a tiny language model and beside it the same as `tiny.gguf`; the weights by the names of that."""
    folder.mkdir(parents=True, exist_ok=True)
    sizes = TinySizes()
    weights = tiny_gguf(folder / "tiny.gguf", architecture="llama" if architecture == "mistral" else architecture)
    arrays = renamed(weights, architecture)
    if shards == 1:
        write(folder / "model.safetensors", arrays, dtype)
    else:
        told = {}
        for number in range(shards):
            file = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
            own = dict([*arrays.items()][number::shards])
            write(folder / file, own, dtype)
            told.update(dict.fromkeys(own, file))
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": told}), "utf-8")
    config = tiny_config(sizes, weights["token_embd.weight"].shape[0], architecture)
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    (folder / "tokenizer.json").write_text(tokenizer_json(read_gguf(folder / "tiny.gguf")), "utf-8")
    told_config = {
        "chat_template": TEMPLATE,
        "bos_token": "<|im_start|>",
        "eos_token": {"content": "<|im_end|>"},
        "pad_token": {"content": "<|endoftext|>"},
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(told_config), "utf-8")
    return weights
