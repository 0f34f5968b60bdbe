"""Saves tiny language models of transformers; runs in an environment of its own, see :mod:`tests.support.exported`.

    python save_language_models.py OUT TOKENS KIND...

For each kind ``OUT/KIND`` gets what ``save_pretrained`` writes, in several files, and ``logits.npy`` of the tokens,
float32 [tokens, vocabulary]. Weights are random, norms too.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers as hf  # type: ignore[import-not-found]

SIZES: Mapping[str, Any] = {
    "vocab_size": 288, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 7, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "rms_norm_eps": 1e-5,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
LINEAR = {"rope_type": "linear", "rope_theta": 20000.0, "factor": 4.0}
LAYERS = ["full_attention", "sliding_attention"] * 3 + ["full_attention"]
KINDS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "llama": ("llama", {"tie_word_embeddings": False}),
    "llama3": ("llama", {"rope_parameters": LLAMA3, "attention_bias": True}),
    "llama-linear": ("llama", {"rope_parameters": LINEAR}),
    "llama-biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-bfloat16": ("llama", {"dtype": "bfloat16"}),
    "mistral": ("mistral", {"sliding_window": None}),
    "mistral-float16": ("mistral", {"sliding_window": 64, "dtype": "float16"}),
    "qwen2-untied": ("qwen2", {"tie_word_embeddings": False}),
    "qwen3-biases": ("qwen3", {"attention_bias": True, "tie_word_embeddings": False}),
    "gemma3-rotations": (
        "gemma3_text",
        {
            "query_pre_attn_scalar": 16,
            "sliding_window": 128,
            "rope_parameters": {
                "full_attention": LINEAR,
                "sliding_attention": {"rope_type": "default", "rope_theta": 700.0},
            },
        },
    ),
    "gemma3-layers": ("gemma3_text", {"query_pre_attn_scalar": 16, "sliding_window": 128, "layer_types": LAYERS}),
    "qwen2": ("qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("qwen3", {"tie_word_embeddings": True}),
    "phi3": ("phi3", {"tie_word_embeddings": False, "sliding_window": None}),
    "gemma3": ("gemma3_text", {"query_pre_attn_scalar": 16, "sliding_window": 128}),
}


def save(kind: str, out: Path, tokens: list[int]) -> None:
    """One model with its logits."""
    name, more = KINDS[kind]
    torch.manual_seed(0)
    kept = {key: value for key, value in more.items() if key != "dtype"}
    config = hf.AutoConfig.for_model(name, **{**SIZES, **kept})
    model = hf.AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * (0.1 if parameter.ndim == 1 else parameter.shape[-1] ** -0.5))
            if parameter.ndim == 1 and name != "gemma3_text":
                parameter.add_(1.0)
        kept_as = getattr(torch, more.get("dtype", "float32"))
        for parameter in model.parameters():  # rounded to what is stored, and computed in float32
            parameter.copy_(parameter.to(kept_as).to(torch.float32))
        logits = model(torch.tensor([tokens])).logits[0]
    model.to(kept_as)
    model.save_pretrained(out / kind, max_shard_size="100KB")
    np.save(out / kind / "logits.npy", logits.numpy().astype(np.float32))


if __name__ == "__main__":
    for wanted in sys.argv[3:]:
        save(wanted, Path(sys.argv[1]), json.loads(sys.argv[2]))
