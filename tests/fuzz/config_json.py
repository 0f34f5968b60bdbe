"""Changed config.json files of tiny language models: each is refused here, or computes what transformers computes.

    python -m tests.fuzz.config_json --count 2000 [--seed 1]

It needs PyTorch and transformers in an environment of their own, which it makes (:mod:`tests.support.exported`).
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import PipelineError
from pipeline.inputs.safetensors.source import safetensors_source
from tests.support.exported import ask_transformers
from tests.support.language_logits import TOKENS, logits
from tests.support.safetensors_files import HF_NAMES, tiny_folder

ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3", "gemma3", "phi3")
_ROTATIONS: tuple[Any, ...] = (
    None,
    {"rope_type": "default", "rope_theta": 5000.0},
    {"rope_type": "linear", "factor": 4.0},
    {"type": "linear", "factor": 2.0},
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
     "original_max_position_embeddings": 64},
    {"rope_type": "dynamic", "factor": 2.0},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    {"rope_theta": 20000.0, "partial_rotary_factor": 0.5},
    {"full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 30000.0}},
    {"full_attention": {"rope_theta": 30000.0}, "sliding_attention": {"rope_theta": 700.0}},
    {"sliding_attention": {"rope_type": "linear", "factor": 2.0}},
)  # fmt: skip
_VALUES: Mapping[str, tuple[Any, ...]] = {
    "rms_norm_eps": (1e-3, 1e-6, 0.0, None, "1e-5"),
    "layer_norm_eps": (1e-3,),
    "rope_theta": (500.0, 1e6, None, "10000", 0, -1),
    "rope_local_base_freq": (500.0, None),
    "rope_scaling": _ROTATIONS,
    "rope_parameters": _ROTATIONS,
    "partial_rotary_factor": (0.5, 1.0, None),
    "original_max_position_embeddings": (32, 64),
    "max_position_embeddings": (64, 128, None),
    "num_attention_heads": (2, 8, None),
    "num_key_value_heads": (1, 2, 4, None),
    "head_dim": (8, 16, 32, None),
    "num_hidden_layers": (1, 3),
    "hidden_size": (32, 128),
    "intermediate_size": (64, 96, 128),
    "vocab_size": (287, 288, 289),
    "tie_word_embeddings": (True, False, None),
    "attention_bias": (True, False),
    "mlp_bias": (True, False),
    "hidden_act": ("silu", "swish", "relu", "gelu", None),
    "hidden_activation": ("gelu_pytorch_tanh", "gelu", "silu", None),
    "sliding_window": (4, 64, None),
    "use_sliding_window": (True, False),
    "sliding_window_pattern": (1, 2, 6),
    "max_window_layers": (0, 1),
    "layer_types": (
        ["full_attention"] * 2, ["sliding_attention"] * 2, ["sliding_attention", "full_attention"],
        ["full_attention"], ["linear_attention", "full_attention"], None,
    ),
    "query_pre_attn_scalar": (16, 64, 256, None),
    "attn_logit_softcapping": (5.0, None),
    "final_logit_softcapping": (5.0, None),
    "use_bidirectional_attention": (True, False),
    "is_causal": (True, False),
    "is_decoder": (True, False),
    "add_cross_attention": (True, False),
    "architectures": (["LlamaForCausalLM"], ["Gemma3ForCausalLM"], ["Qwen2Model"], []),
    "attention_dropout": (0.0, 0.1),
    "attention_multiplier": (0.5,),
    "logits_scaling": (2.0,),
    "residual_multiplier": (0.5,),
    "num_experts": (0, 4),
    "no_rope_layers": ([1, 0],),
    "initializer_range": (0.02,),
    "torch_dtype": ("float16",),
    "pretraining_tp": (1, 2),
    "model_type": (*HF_NAMES.values(), "gemma2", "gemma3"),
}  # fmt: skip
"""The values that a key is given; None for null. A key is also taken out."""


@dataclass(frozen=True)
class Change:
    """A config.json that differs from that of a tiny model of `architecture` in a few keys."""

    architecture: str
    config: Mapping[str, Any]
    told: str


def changes(seed: int, count: int, configs: Mapping[str, Mapping[str, Any]]) -> Iterator[Change]:
    """Different ones, by the seed."""
    random = Random(seed)
    seen: set[str] = set()
    while len(seen) < count:
        architecture = random.choice(ARCHITECTURES)
        config, told = dict(configs[architecture]), []
        for key in random.sample([*_VALUES], random.choice((1, 1, 2, 3))):
            if random.random() < 0.15:
                config.pop(key, None)
                told.append(f"-{key}")
            else:
                config[key] = random.choice(_VALUES[key])
                told.append(f"{key}={json.dumps(config[key])}")
        change = Change(architecture, config, f"{architecture}: {', '.join(told)}")
        if (written := json.dumps([architecture, config], sort_keys=True)) not in seen:
            seen.add(written)
            yield change


def taken(change: Change, model: Path, folder: Path) -> NDArray[np.float32] | str:
    """The logits here of a model with the changed config, which is left in `folder`; or the reason to refuse it."""
    shutil.copytree(model, folder)
    (folder / "config.json").write_text(json.dumps(change.config), "utf-8")
    try:
        source = safetensors_source(folder / "model.safetensors")
        if (source.hyper.window or len(TOKENS)) < len(TOKENS):
            return "a build refuses a context beyond the window"
        return logits(source, folder)
    except PipelineError as error:
        return error.why or error.what


def models(folder: Path) -> dict[str, tuple[Path, Mapping[str, Any]]]:
    """A tiny model of each architecture, with its config."""
    found: dict[str, tuple[Path, Mapping[str, Any]]] = {}
    for architecture in ARCHITECTURES:
        tiny_folder(folder / architecture, architecture=architecture)
        (folder / architecture / "tiny.gguf").unlink()
        config = json.loads((folder / architecture / "config.json").read_text("utf-8"))
        found[architecture] = folder / architecture, {**config, "pad_token_id": 0}  # Phi 3's own is beyond the table
    return found


def main(arguments: list[str]) -> int:
    """The number of changes that compute something else than transformers, told one a line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz.config_json", description="Changed config.json files against transformers."
    )
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        (root / "models").mkdir()
        tiny = models(root / "models")
        ours: list[tuple[Change, NDArray[np.float32], Path]] = []
        refused = 0
        for number, change in enumerate(changes(given.seed, given.count, {key: c for key, (_, c) in tiny.items()})):
            folder = root / str(number)
            found = taken(change, tiny[change.architecture][0], folder)
            if isinstance(found, str):
                refused += 1
                shutil.rmtree(folder)
            else:
                ours.append((change, found, folder))
        theirs = ask_transformers([folder for *_, folder in ours], TOKENS, root).logits
    wrong = equal = 0
    for (change, found, _), expected in zip(ours, theirs, strict=True):
        if isinstance(expected, str):
            print(f"taken here, refused there: {change.told}: {expected[:160]}")
        elif found.shape != expected.shape or np.abs(found - expected).max() > 2e-4 * np.abs(expected).max():
            wrong += 1
            print(f"DIFFERENT: {change.told}")
        else:
            equal += 1
    print(f"{given.count} changes: {refused} refused, {equal} equal to transformers, {wrong} different,", end=" ")
    print(f"{len(ours) - equal - wrong} that transformers refuses")
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
