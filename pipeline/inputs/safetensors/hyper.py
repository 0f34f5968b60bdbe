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
_GEMMA_PATTERN = 6
"""In each group of so many layers of Gemma 3, the last sees all positions (`sliding_window_pattern`)."""
_FULL, _SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True)
class _Family:
    """The values that transformers takes for keys which a config.json leaves out; None for what follows from others."""

    head: str
    kv_heads: int | None = None
    head_dim: int | None = None
    context: int = 32768
    epsilon: float = 1e-6
    window: int | None = None
    theta: float = 10_000.0


_FAMILIES: Mapping[str, _Family] = {
    "llama": _Family("LlamaForCausalLM", context=2048),
    "mistral": _Family("MistralForCausalLM", kv_heads=8, context=131_072, window=4096),
    "qwen2": _Family("Qwen2ForCausalLM", kv_heads=32, window=4096),
    "qwen3": _Family("Qwen3ForCausalLM", kv_heads=32, head_dim=128, window=4096),
    "gemma3_text": _Family(
        "Gemma3ForCausalLM", kv_heads=4, head_dim=256, context=131_072, window=4096, theta=1_000_000.0
    ),
    "phi3": _Family("Phi3ForCausalLM", context=4096, epsilon=1e-5),
}
_READ = frozenset({
    "model_type", "architectures", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim",
    "num_hidden_layers", "vocab_size", "max_position_embeddings", "rms_norm_eps", "hidden_act", "hidden_activation",
    "tie_word_embeddings", "attention_bias", "mlp_bias", "rope_theta", "rope_local_base_freq", "rope_scaling",
    "rope_parameters", "original_max_position_embeddings", "sliding_window", "use_sliding_window", "layer_types",
    "sliding_window_pattern", "query_pre_attn_scalar", "bos_token_id", "eos_token_id", "pad_token_id",
})  # fmt: skip
WITHOUT_EFFECT: Mapping[str, str] = {
    **dict.fromkeys(
        ("attention_dropout", "hidden_dropout", "embd_pdrop", "resid_pdrop", "initializer_range", "pretraining_tp",
         "router_aux_loss_coef", "loss_type", "problem_type", "finetuning_task", "task_specific_params"), "for training"
    ),
    **dict.fromkeys(
        ("use_cache", "return_dict", "output_attentions", "output_hidden_states", "return_dict_in_generate",
         "output_scores", "torchscript", "use_bfloat16", "tf_legacy_loss", "chunk_size_feed_forward",
         "cache_implementation", "attn_implementation", "_attn_implementation", "_attn_implementation_autoset"),
        "how transformers computes, not what",
    ),
    **dict.fromkeys(
        ("torch_dtype", "dtype", "transformers_version", "_name_or_path", "name_or_path", "_commit_hash",
         "unsloth_version", "unsloth_fixed", "model_name", "quantized_by"), "a note; tensors have their types"
    ),
    **dict.fromkeys(("id2label", "label2id", "num_labels"), "for classifiers, which are refused"),
    **dict.fromkeys(
        ("max_length", "min_length", "do_sample", "temperature", "top_k", "top_p", "typical_p", "num_beams",
         "num_beam_groups", "num_return_sequences", "repetition_penalty", "length_penalty", "diversity_penalty",
         "early_stopping", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "bad_words_ids",
         "suppress_tokens", "begin_suppress_tokens", "forced_bos_token_id", "forced_eos_token_id",
         "remove_invalid_values", "exponential_decay_length_penalty", "prefix", "sep_token_id",
         "decoder_start_token_id", "tokenizer_class", "model_max_length"), "how texts are sampled, not the model"
    ),
    "intermediate_size": "the shapes of the weights have it",
    "auto_map": "names code of the repository, which is not run; the library's own code is the truth",
    "max_window_layers": "which layers have a window; the context is limited to it in any case",
    "_sliding_window_pattern": "transformers does not read it back",
    "cross_attention_hidden_size": "for cross attention, which is refused",
    "is_decoder": "transformers masks these architectures in either case",
}  # fmt: skip
"""Keys that change nothing of the logits, and the reason."""
_ONLY: Mapping[str, tuple[tuple[Json, ...], str]] = {
    "use_bidirectional_attention": ((False,), "each token sees those after it, too: it is an encoder"),
    "is_causal": ((True,), "each token sees those after it, too: it is an encoder"),
    "is_encoder_decoder": ((False,), "it has an encoder as well"),
    "add_cross_attention": ((False,), "it has an encoder as well"),
    "tie_encoder_decoder": ((False,), "it has an encoder as well"),
    "pruned_heads": (({}, []), "some of its heads are left out"),
    "partial_rotary_factor": ((1, 1.0), "it turns a part of each head only"),
    "final_logit_softcapping": ((0, 0.0), "it caps its scores"),
    "attn_logit_softcapping": ((0, 0.0), "it caps its scores"),
    "num_local_experts": ((0,), "it is a mixture of experts"),
    "num_experts": ((0,), "it is a mixture of experts"),
    "num_experts_per_tok": ((0,), "it is a mixture of experts"),
    "quantization_config": ((), "its weights are quantized already, in a form of their own"),
    "text_config": (({},), "it reads pictures as well"),
    "vision_config": (({},), "it reads pictures as well"),
}
"""Keys that are taken with these values (and null) alone, and the reason to refuse others."""
_OF_ROTATION = frozenset({
    "rope_type", "type", "rope_theta", "factor", "low_freq_factor", "high_freq_factor",
    "original_max_position_embeddings", "partial_rotary_factor",
})  # fmt: skip


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
        """A truth value; `default` if there is none of this name, or null.

        Raises:
            ModelError: the value is of another type.
        """
        found = self.values.get(key)
        if found is not None and not isinstance(found, bool):
            raise unusual(self, f"{key!r} is {str(found)[:40]!r}, neither true nor false")
        return default if found is None else found

    def number(self, key: str, default: float) -> float:
        """A finite number; `default` if there is none of this name, or null.

        Raises:
            ModelError: the value is of another type, or absurd.
        """
        found = self.values.get(key)
        if found is None:
            return default
        if isinstance(found, bool) or not isinstance(found, int | float) or not abs(found) < 1e30:
            raise unusual(self, f"{key!r} is {str(found)[:40]!r}, no finite number")
        return float(found)

    def size(self, key: str, default: int | None = None) -> int:
        """A positive size; `default` if there is none of this name, or null.

        Raises:
            ModelError: it is missing without a default, or absurd.
        """
        found = self.number(key, math.nan if default is None else default)
        return checked_size(None if math.isnan(found) else found, key, self.where)

    def ids(self, key: str) -> tuple[int, ...]:
        """Numbers of tokens, which the file gives as one number or as a list."""
        found = self.values.get(key)
        several = found if isinstance(found, list) else [found]
        return tuple(n for n in several if isinstance(n, int) and not isinstance(n, bool) and 0 <= n < 1 << 31)

    def inner(self, key: str) -> ModelConfigJson:
        """The object of this name; an empty one if there is none, or null.

        Raises:
            ModelError: the value is no object.
        """
        found = self.values.get(key)
        if found is not None and not isinstance(found, dict):
            raise unusual(self, f"{key!r} is no object")
        return ModelConfigJson(found or {}, self.where)


def hyper_of_folder(path: Path) -> Hyper:
    """The sizes of the model whose config.json is at `path`.

    Raises:
        ModelError: the file is damaged, or as for :func:`hyper_of_config`.
    """
    return hyper_of_config(ModelConfigJson(read_object(path, LARGEST_CONFIG), path.name))


def hyper_of_config(config: ModelConfigJson) -> Hyper:
    """The sizes of the model.

    Raises:
        ModelError: the architecture or a key is not supported, or a size is missing or absurd.
    """
    name = config.text("model_type") or ""
    check_architecture(name, config.where, [*_FAMILIES])
    family = _FAMILIES[name]
    _check_keys(config, family)
    hidden, heads = config.size("hidden_size"), config.size("num_attention_heads")
    kv_heads = config.size("num_key_value_heads", _left_out(config, "num_key_value_heads", family.kv_heads) or heads)
    head_dim = config.size("head_dim", _left_out(config, "head_dim", family.head_dim) or max(1, hidden // heads))
    if head_dim % 2 or heads % kv_heads:
        raise unusual(config, f"it has {heads} heads of {head_dim}, {kv_heads} of keys and values")
    gemma = name == "gemma3_text"
    _check_activation(config, gemma=gemma)
    if gemma and (scalar := config.number("query_pre_attn_scalar", 256)) != head_dim:
        raise unusual(config, f"its scores are scaled by {scalar:g}, not {head_dim} ('query_pre_attn_scalar')")
    layers = config.size("num_hidden_layers")
    if layers > 1000:
        raise unusual(config, f"it has {layers} layers")
    epsilon = config.number("rms_norm_eps", family.epsilon)
    if not 0 <= epsilon < 1:
        raise unusual(config, f"'rms_norm_eps' is {epsilon:g}")
    return Hyper(
        architecture=name,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocabulary=config.size("vocab_size"),
        context=config.size("max_position_embeddings", family.context),
        epsilon=epsilon,
        rotations=_rotations(config, head_dim, family, gemma=gemma),
        window=_window(config, layers, family, name),
        local=frozenset(_local_layers(config, layers)) if gemma else frozenset(),
    )


def biased(config: ModelConfigJson) -> frozenset[str]:
    """The matrices of a layer that have a bias, by the names of the graph's builder."""
    name = config.text("model_type")
    attention = {"attn_q", "attn_k", "attn_v"}
    found = attention if name == "qwen2" else set()
    if name in ("llama", "qwen3", "gemma3_text") and config.flag("attention_bias", False):
        found = attention | {"attn_output"}
    if name == "llama" and config.flag("mlp_bias", False):
        found |= {"ffn_gate", "ffn_up", "ffn_down"}
    return frozenset(found)


def _left_out(config: ModelConfigJson, key: str, default: int | None) -> int | None:
    """The default of a key that is not there; None for null, by which other values decide."""
    return None if key in config.values else default


def _check_keys(config: ModelConfigJson, family: _Family) -> None:
    """Refuse a config with a key that is not read and may change what the model computes."""
    for key, value in config.values.items():
        if key in _ONLY and value is not None:
            taken, why = _ONLY[key]
            if not any(value == each and isinstance(value, type(each)) for each in taken):
                raise unusual(config, f"{why} ({key!r} is {str(value)[:60]})")
        elif key not in _READ and key not in WITHOUT_EFFECT and value is not None:
            raise unusual(config, f"its key {key[:100]!r} is not known, and may change what the model computes")
    written = config.values.get("architectures")
    for each in written if isinstance(written, list) else [written] if written is not None else []:
        if each != family.head:
            raise unusual(
                config,
                f"it is saved as {str(each)[:60]!r} ('architectures'), and a language model of its kind is"
                f" {family.head!r}",
            )


def _check_activation(config: ModelConfigJson, *, gemma: bool) -> None:
    key, known = ("hidden_activation", ("gelu_pytorch_tanh",)) if gemma else ("hidden_act", ("silu", "swish"))
    found = config.values.get(key, known[0])
    if found not in known:
        raise unusual(config, f"its products are gated by {str(found)[:40]!r} ({key!r})")


def _layer_types(config: ModelConfigJson, layers: int) -> list[str] | None:
    """The kind of each layer; None where the config has no list of them."""
    types = config.values.get("layer_types")
    if types is None:
        return None
    known = isinstance(types, list) and len(types) == layers and {*map(str, types)} <= {_FULL, _SLIDING}
    if not known:
        raise unusual(config, f"'layer_types' is no list of {layers} kinds, {_FULL} or {_SLIDING}")
    assert isinstance(types, list)
    return [str(each) for each in types]


def _window(config: ModelConfigJson, layers: int, family: _Family, name: str) -> int | None:
    """The most positions that layers with a window see; None if all layers see everything."""
    types = _layer_types(config, layers)
    if name == "llama":  # transformers reads neither key of it
        return None
    if types is not None and {*types} == {_FULL} and name != "mistral":
        return None
    if name in ("qwen2", "qwen3") and not config.flag("use_sliding_window", False):  # others do not read it
        return None
    window = config.values.get("sliding_window", family.window)
    if window is None:
        return None
    return config.size("sliding_window", family.window)


def _local_layers(config: ModelConfigJson, layers: int) -> list[int]:
    """The numbers of the layers that see a window of positions."""
    types = _layer_types(config, layers)
    if types is not None:
        return [layer for layer, kind in enumerate(types) if kind == _SLIDING]
    pattern = config.size("sliding_window_pattern", _GEMMA_PATTERN)
    return [layer for layer in range(layers) if (layer + 1) % pattern]


def _rotations(config: ModelConfigJson, head_dim: int, family: _Family, *, gemma: bool) -> dict[str, Rotation]:
    """The rotations, from `rope_parameters` (since transformers 5, for Gemma by kind of layer) or `rope_scaling`."""
    told, scaling = config.inner("rope_parameters"), config.inner("rope_scaling")
    theta = config.number("rope_theta", family.theta)
    if not gemma:
        if told.values and scaling.values:
            raise unusual(config, "it has 'rope_parameters' and 'rope_scaling'")
        return {"": _rotation(config, scaling if scaling.values else told, theta, head_dim)}
    if {*told.values} - {_FULL, _SLIDING}:
        raise unusual(config, f"'rope_parameters' is not of {_FULL} and {_SLIDING}")
    full, local = told.inner(_FULL), told.inner(_SLIDING)
    full = ModelConfigJson({**full.values, **scaling.values}, config.where)
    own = config.number("rope_local_base_freq", 10_000.0)
    return {"": _rotation(config, full, theta, head_dim), "_local": _rotation(config, local, own, head_dim)}


def _rotation(config: ModelConfigJson, told: ModelConfigJson, theta: float, head_dim: int) -> Rotation:
    for key in told.values:
        if key not in _OF_ROTATION and told.text("rope_type") in (None, "default", "linear", "llama3"):
            raise unusual(config, f"its rotation has a key {key[:100]!r}, which is not known")
    if told.number("partial_rotary_factor", 1.0) != 1:
        raise unusual(config, "it turns a part of each head only ('partial_rotary_factor')")
    theta = told.number("rope_theta", theta)
    if not 1 < theta < 1e12:
        raise unusual(config, f"the base of its rotation is {theta:g}")
    return Rotation(theta, _scaled(config, told, frequencies(theta, head_dim)))


def _scaled(config: ModelConfigJson, told: ModelConfigJson, plain: tuple[float, ...]) -> tuple[float, ...]:
    """The frequencies, scaled for long contexts as the config says: all by one factor, or as Llama 3.1 does."""
    kind = str(told.values.get("rope_type") or told.values.get("type") or "default")
    if kind == "default":
        return plain
    factor = told.number("factor", 0.0)
    if kind not in ("linear", "llama3") or factor < 1 or config.text("model_type") == "phi3":
        raise unusual(config, f"its rotation is scaled by {kind[:40]!r}, factor {factor:g}")
    if kind == "linear":
        return tuple(angle / factor for angle in plain)
    low, high = told.number("low_freq_factor", 0.0), told.number("high_freq_factor", 0.0)
    original = told.number("original_max_position_embeddings", config.number("max_position_embeddings", 0.0))
    original = config.number("original_max_position_embeddings", original)  # which transformers prefers
    if not 0 < low < high or original <= 0:
        raise unusual(config, f"its rotation is scaled between {low:g} and {high:g}, for {original:g} positions")
    # Slow pairs are scaled, fast ones are not, those between in part (transformers' modeling_rope_utils.py).
    made = []
    for angle in plain:
        turns = original * angle / (2 * math.pi)
        kept = min(1.0, max(0.0, (turns - low) / (high - low)))
        made.append(kept * angle + (1 - kept) * angle / factor)
    return tuple(made)


def unusual(config: ModelConfigJson, why: str) -> ModelError:
    """The error for a config.json of a model that is not supported."""
    return ModelError(
        f"the model of {config.where} is built in a way that is not supported",
        why=why,
        remedy="take another model, or bring an ONNX export of this one",
    )
