"""Reads the sizes of a language model from its config.json, as transformers writes it.

Names are those of https://github.com/huggingface/transformers/tree/main/src/transformers/models (`configuration_*.py`).
A rotary embedding is read in both forms: `rope_theta` with `rope_scaling`, and `rope_parameters` since transformers 5.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pipeline.contracts.language import Rotation
from pipeline.errors import ModelError
from pipeline.graph.language.architectures import check_architecture
from pipeline.graph.language.hyper import Hyper, checked_size, frequencies
from pipeline.inputs.safetensors.index import read_object
from pipeline.model import Json

LARGEST_CONFIG = 1 << 24
"""The most bytes of a config.json."""
_ACTIVATIONS: Mapping[str, tuple[str, ...]] = {"gemma3_text": ("gelu_pytorch_tanh",)}
_SILU = ("silu", "swish")
_GEMMA_PATTERN = 6
"""In each group of so many layers of Gemma 3, the last sees all positions (`sliding_window_pattern`)."""


@dataclass(frozen=True)
class ModelConfigJson:
    """The values of a config.json. Others write such files, so each method checks the type of the value it reads."""

    values: Mapping[str, Json]
    where: str

    def text(self, key: str) -> str | None:
        """A text; None if there is none of this name."""
        found = self.values.get(key)
        return found if isinstance(found, str) else None

    def flag(self, key: str, default: bool) -> bool:
        """A truth value; `default` if there is none of this name."""
        found = self.values.get(key)
        return found if isinstance(found, bool) else default

    def number(self, key: str) -> float | None:
        """A finite number; None if there is none of this name."""
        found = self.values.get(key)
        if isinstance(found, bool) or not isinstance(found, int | float):
            return None
        return float(found) if abs(found) < 1e30 and math.isfinite(found) else None

    def size(self, key: str, default: int | None = None) -> int:
        """A positive size; `default` if there is none of this name.

        Raises:
            ModelError: it is missing without a default, or absurd.
        """
        found = self.number(key)
        return checked_size(default if found is None else found, key, self.where)

    def ids(self, key: str) -> tuple[int, ...]:
        """Numbers of tokens, which the file gives as one number or as a list."""
        found = self.values.get(key)
        several = found if isinstance(found, list) else [found]
        return tuple(n for n in several if isinstance(n, int) and not isinstance(n, bool) and 0 <= n < 1 << 31)

    def inner(self, key: str) -> ModelConfigJson:
        """The object of this name; an empty one if there is none."""
        found = self.values.get(key)
        return ModelConfigJson(found if isinstance(found, dict) else {}, self.where)


def hyper_of_folder(path: Path) -> Hyper:
    """The sizes of the model whose config.json is at `path`.

    Raises:
        ModelError: the file is damaged, or as for :func:`hyper_of_config`.
    """
    return hyper_of_config(ModelConfigJson(read_object(path, LARGEST_CONFIG), path.name))


def hyper_of_config(config: ModelConfigJson) -> Hyper:
    """The sizes of the model.

    Raises:
        ModelError: the architecture is not supported, a size is missing or absurd, or the model is quantized.
    """
    name = config.text("model_type") or ""
    check_architecture(name, config.where)
    if config.values.get("quantization_config") is not None:
        raise _unusual(config, "its weights are quantized already, in a form of their own ('quantization_config')")
    if config.inner("text_config").values:
        raise _unusual(config, "it reads pictures as well ('text_config')")
    _check_variant(config, name)
    hidden, heads = config.size("hidden_size"), config.size("num_attention_heads")
    kv_heads = config.size("num_key_value_heads", heads)
    head_dim = config.size("head_dim", max(1, hidden // heads))
    if head_dim % 2 or heads % kv_heads:
        raise _unusual(config, f"it has {heads} heads of {head_dim}, {kv_heads} of keys and values")
    if name == "gemma3_text" and config.number("query_pre_attn_scalar") not in (None, head_dim):
        raise _unusual(config, f"its scores are scaled by {config.number('query_pre_attn_scalar'):g}, not {head_dim}")
    layers = config.size("num_hidden_layers")
    if layers > 1000:
        raise _unusual(config, f"it has {layers} layers")
    gemma = name == "gemma3_text"
    return Hyper(
        architecture=name,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocabulary=config.size("vocab_size"),
        context=config.size("max_position_embeddings", 2048),
        epsilon=config.number("rms_norm_eps") or 1e-6,
        rotations=_rotations(config, head_dim, gemma=gemma),
        window=_window(config, layers, name),
        local=frozenset(_local_layers(config, layers)) if gemma else frozenset(),
    )


def _check_variant(config: ModelConfigJson, name: str) -> None:
    activation = config.text("hidden_activation") or config.text("hidden_act") or "silu"
    if activation not in _ACTIVATIONS.get(name, _SILU):
        raise _unusual(config, f"its products are gated by {activation[:40]!r}")
    if config.number("num_local_experts") or config.number("num_experts"):
        raise _unusual(config, "it is a mixture of experts")
    if (config.number("partial_rotary_factor") or 1.0) != 1.0:
        raise _unusual(config, "it turns a part of each head only")
    for key in ("final_logit_softcapping", "attn_logit_softcapping"):
        if config.number(key):
            raise _unusual(config, f"it caps its scores ('{key}')")


def _window(config: ModelConfigJson, layers: int, name: str) -> int | None:
    """The most positions that layers with a window see; None if all layers see everything."""
    window = config.number("sliding_window")
    types = config.values.get("layer_types")
    everywhere = isinstance(types, list) and len(types) == layers and {*map(str, types)} == {"full_attention"}
    if not window or everywhere or not config.flag("use_sliding_window", name not in ("qwen2", "qwen3")):
        return None
    return config.size("sliding_window")


def _local_layers(config: ModelConfigJson, layers: int) -> list[int]:
    """The numbers of the layers that see a window of positions."""
    types = config.values.get("layer_types")
    if isinstance(types, list) and len(types) == layers:
        return [layer for layer, kind in enumerate(types) if kind == "sliding_attention"]
    pattern = config.size("sliding_window_pattern", _GEMMA_PATTERN)
    return [layer for layer in range(layers) if (layer + 1) % pattern]


def _rotations(config: ModelConfigJson, head_dim: int, *, gemma: bool) -> dict[str, Rotation]:
    told = config.inner("rope_parameters")
    if gemma:
        full, local = told.inner("full_attention"), told.inner("sliding_attention")
        theta = full.number("rope_theta") or config.number("rope_theta") or 1_000_000.0
        own = local.number("rope_theta") or config.number("rope_local_base_freq") or 10_000.0
        scaling = full if full.values else config.inner("rope_scaling")
        plain = frequencies(_sane(config, theta), head_dim)
        turned = Rotation(theta, _scaled(config, scaling, plain))
        return {"": turned, "_local": Rotation(own, frequencies(_sane(config, own), head_dim))}
    theta = told.number("rope_theta") or config.number("rope_theta") or 10_000.0
    scaling = told if told.values else config.inner("rope_scaling")
    plain = frequencies(_sane(config, theta), head_dim)
    return {"": Rotation(theta, _scaled(config, scaling, plain))}


def _sane(config: ModelConfigJson, theta: float) -> float:
    if not 1 < theta < 1e12:
        raise _unusual(config, f"the base of its rotation is {theta:g}")
    return theta


def _scaled(config: ModelConfigJson, scaling: ModelConfigJson, plain: tuple[float, ...]) -> tuple[float, ...]:
    """The frequencies, scaled for long contexts as the config says: all by one factor, or as Llama 3.1 does."""
    kind = scaling.text("rope_type") or scaling.text("type") or "default"
    if kind == "default":
        return plain
    factor = scaling.number("factor")
    if kind not in ("linear", "llama3") or not factor or factor < 1:
        raise _unusual(config, f"its rotation is scaled by {kind[:40]!r}, factor {factor}")
    if kind == "linear":
        return tuple(angle / factor for angle in plain)
    low, high = scaling.number("low_freq_factor") or 1.0, scaling.number("high_freq_factor") or 4.0
    original = scaling.number("original_max_position_embeddings") or 8192.0
    if not 0 < low < high:
        raise _unusual(config, f"its rotation is scaled between {low:g} and {high:g}")
    # Slow pairs are scaled, fast ones are not, those between in part (transformers' modeling_rope_utils.py).
    made = []
    for angle in plain:
        turns = original * angle / (2 * math.pi)
        kept = min(1.0, max(0.0, (turns - low) / (high - low)))
        made.append(kept * angle + (1 - kept) * angle / factor)
    return tuple(made)


def _unusual(config: ModelConfigJson, why: str) -> ModelError:
    return ModelError(
        f"the model of {config.where} is built in a way that is not supported", why=why, remedy="take another model"
    )
