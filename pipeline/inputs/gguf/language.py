"""Reads a language model from a GGUF file: its sizes from the metadata, and its weights by name, one at a time.

A value that nobody reads is a misreading that no later check can see. So each key of the metadata is read, or changes
nothing for a reason that is written here, or the file is refused by the name of the key. llama.cpp reads the keys of
`general`, `tokenizer`, `split`, `adapter` and of the architecture (`src/llama-arch.cpp`); keys of other names are notes
of the program that wrote the file.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np

from pipeline.contracts.language import Rotation
from pipeline.errors import ModelError
from pipeline.graph.files.stored_form import StoredForm, StoredWeight
from pipeline.graph.ir.tensor_chunks import Pieces
from pipeline.graph.language.architectures import check_architecture
from pipeline.graph.language.hyper import Hyper, checked_size, frequencies
from pipeline.inputs.gguf.file import GgufFile, StoredArray

_LOCAL_THETA = 10_000.0
"""The rotation's base in those layers of Gemma 3 that see a window of positions, where the metadata has none."""
_GEMMA_PATTERN = 6
"""In each group of so many layers of Gemma 3, the last sees all positions; the metadata does not have it."""
_GEMMA_27B = 62
"""Gemma 3 of so many layers scales its scores by hidden / heads in place of the size of a head (`LLM_TYPE_27B`)."""
_PERMUTED = ("llama",)
"""Architectures whose queries and keys ggml stores with the halves of each head interleaved."""
_NAMES = ("llama", "qwen2", "qwen3", "gemma3", "phi3")

_READ = frozenset({
    "block_count", "context_length", "embedding_length", "vocab_size", "attention.head_count",
    "attention.head_count_kv", "attention.key_length", "attention.value_length", "attention.layer_norm_rms_epsilon",
    "attention.sliding_window", "rope.dimension_count", "rope.freq_base", "rope.freq_base_swa", "rope.scaling.type",
    "rope.scaling.factor", "rope.scale_linear",
})  # fmt: skip
"""The keys behind the architecture's name that the sizes are made of."""
_WITHOUT_EFFECT: Mapping[str, str] = {
    "feed_forward_length": "the shapes of the weights have it",
    "attention.layer_norm_epsilon": "for norms that subtract a mean, which these architectures do not have",
    "rope.scaling.original_context_length": "for YaRN alone, which is refused",
    "rope.scaling.finetuned": "a note on training",
    "rope.scaling.yarn_ext_factor": "for YaRN alone",
    "rope.scaling.yarn_attn_factor": "for YaRN alone",
    "rope.scaling.yarn_beta_fast": "for YaRN alone",
    "rope.scaling.yarn_beta_slow": "for YaRN alone",
    "tensor_data_layout": "a note on how the file was made",
    "attention.key_length_swa": "llama.cpp reads it of other architectures",
    "attention.value_length_swa": "llama.cpp reads it of other architectures",
}
_ONLY: Mapping[str, tuple[float | bool | None, str]] = {
    "attention.causal": (True, "each token sees those after it, too: it is an encoder, not a language model"),
    "pooling_type": (0, "it gives one vector for a text: it is an embedding model, not a language model"),
    "rope.scaling.attn_factor": (1, "the rotation scales queries and keys"),
    "attention.scale": (None, "the scores have a scale of their own"),
    "expert_count": (0, "it is a mixture of experts"),
    "expert_used_count": (0, "it is a mixture of experts"),
    "final_logit_softcapping": (0, "it caps its logits"),
    "attn_logit_softcapping": (0, "it caps its scores"),
    "logit_scale": (1, "it scales its logits"),
    "embedding_scale": (1, "it scales its embeddings"),
    "residual_scale": (1, "it scales its residual stream"),
    "use_parallel_residual": (False, "attention and product stand beside each other"),
    "nextn_predict_layers": (0, "it has layers that predict further tokens"),
    "leading_dense_block_count": (0, "it is a mixture of experts"),
}
"""Keys that are taken with one value alone, where the model is then built as it is, and the reason to refuse others."""
_TOKENIZER_READ = frozenset({
    "tokenizer.chat_template", "tokenizer.ggml.model", "tokenizer.ggml.pre", "tokenizer.ggml.tokens",
    "tokenizer.ggml.token_type", "tokenizer.ggml.scores", "tokenizer.ggml.merges", "tokenizer.ggml.add_bos_token",
    "tokenizer.ggml.add_eos_token", "tokenizer.ggml.add_sep_token", "tokenizer.ggml.add_space_prefix",
    "tokenizer.ggml.suppress_tokens", "tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id",
    "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id", "tokenizer.ggml.padding_token_id",
    "tokenizer.ggml.fim_pre_token_id", "tokenizer.ggml.fim_suf_token_id", "tokenizer.ggml.fim_mid_token_id",
    "tokenizer.ggml.fim_pad_token_id", "tokenizer.ggml.fim_rep_token_id", "tokenizer.ggml.fim_sep_token_id",
})  # fmt: skip
_TOKENIZER_WITHOUT_EFFECT: Mapping[str, str] = {
    "tokenizer.ggml.unknown_token_id": "the token's type says it",
    "tokenizer.ggml.seperator_token_id": "for add_sep_token alone, which is refused",
    "tokenizer.ggml.separator_token_id": "for add_sep_token alone, which is refused",
    "tokenizer.ggml.cls_token_id": "for classifiers",
    "tokenizer.ggml.mask_token_id": "for models that fill in masked words",
    "tokenizer.ggml.prefix_token_id": "an older name, for text that is filled in",
    "tokenizer.ggml.suffix_token_id": "an older name, for text that is filled in",
    "tokenizer.ggml.middle_token_id": "an older name, for text that is filled in",
    "tokenizer.ggml.remove_extra_whitespaces": "llama.cpp reads it of other kinds of tokenizers (UGM)",
    "tokenizer.ggml.precompiled_charsmap": "llama.cpp reads it of other kinds of tokenizers (UGM)",
    "tokenizer.ggml.token_type_count": "for models with several kinds of texts",
    "tokenizer.ggml.added_tokens": "the types of tokens say it",
    "tokenizer.huggingface.json": "llama.cpp does not read it",
    "tokenizer.rwkv.world": "llama.cpp does not read it",
    "tokenizer.chat_templates": "the names of further templates; the default is used",
}


def hyper_of(file: GgufFile) -> Hyper:
    """The sizes of the model.

    Raises:
        ModelError: the architecture or a key of the metadata is not supported, or a size is missing or absurd.
    """
    name = file.text("general.architecture", "") or ""
    check_architecture(name, file.path.name, _NAMES)
    _check_keys(file, name)
    numbers = _Numbers(file, name)
    hidden, heads = numbers.size("embedding_length"), numbers.size("attention.head_count")
    head_dim = numbers.size("attention.key_length", hidden // heads)
    kv_heads = numbers.size("attention.head_count_kv", heads)
    if head_dim % 2 or heads % kv_heads or numbers.size("attention.value_length", head_dim) != head_dim:
        raise _unusual(file, f"{heads} heads of {head_dim}, {kv_heads} of keys and values")
    if numbers.size("rope.dimension_count", head_dim) != head_dim:
        raise _unusual(file, "it turns a part of each head only ('rope.dimension_count')")
    table = file.tensors.get("token_embd.weight")
    layers, epsilon = numbers.size("block_count"), numbers.optional("attention.layer_norm_rms_epsilon")
    if epsilon is None or not 0 <= epsilon < 1:
        raise _unusual(file, f"'attention.layer_norm_rms_epsilon' is {epsilon}")
    window = numbers.optional("attention.sliding_window")
    theta = numbers.base("rope.freq_base", 10_000.0)
    rotations = {"": Rotation(theta, _scaled(file, numbers, frequencies(theta, head_dim)))}
    local: frozenset[int] = frozenset()
    if name == "gemma3":
        if layers == _GEMMA_27B and heads * head_dim != hidden:
            raise _unusual(file, f"its scores are scaled by {hidden // heads}, not by the size of a head, {head_dim}")
        own = numbers.base("rope.freq_base_swa", _LOCAL_THETA)
        rotations["_local"] = Rotation(own, frequencies(own, head_dim))
        local = frozenset(layer for layer in range(layers) if window and (layer + 1) % _GEMMA_PATTERN)
    return Hyper(
        architecture=name,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocabulary=table.shape[0] if table else numbers.size("vocab_size"),
        context=numbers.size("context_length"),
        epsilon=epsilon,
        rotations=rotations,
        window=int(window) if window else None,
        local=local,
    )


def _check_keys(file: GgufFile, architecture: str) -> None:
    """Refuse a file with a key that is not read and may change what the model computes."""
    if (kind := file.text("general.type", "model")) != "model":
        raise _unusual(file, f"it holds no whole model ('general.type' is {kind!r})", "take the file of the model")
    for key in file.metadata:
        room, _, rest = key.partition(".")
        if room == architecture:
            known = rest in _READ or rest in _WITHOUT_EFFECT
            if rest in _ONLY:
                _check_only(file, key, *_ONLY[rest])
                known = True
        elif room == "tokenizer":
            known = key in _TOKENIZER_READ or key in _TOKENIZER_WITHOUT_EFFECT
            known = known or key.startswith("tokenizer.chat_template.")  # further templates; the default is used
        else:
            known = room != "adapter"
        if not known:
            raise _unusual(file, f"the key {key[:100]!r} of its metadata is not known, and may change what it computes")


def _check_only(file: GgufFile, key: str, value: float | bool | None, why: str) -> None:
    if value is None or file.metadata[key] != value:
        raise _unusual(file, f"{why} ({key!r} is {file.metadata[key]!r})"[:300])


class GgufWeights:
    """The tensors of a file as float32, a piece at a time."""

    def __init__(self, file: GgufFile, hyper: Hyper) -> None:
        self._file = file
        self._hyper = hyper
        self._read = {_ROPE_FACTORS} if hyper.architecture in _PERMUTED else set()

    def unread(self) -> Iterable[str]:
        """The tensors of the file that were not asked for."""
        return (name for name in self._file.tensors if name not in self._read)

    def shape(self, name: str) -> tuple[int, ...] | None:
        """The shape of a tensor; None if there is none of that name."""
        tensor = self._file.tensors.get(name)
        return tensor.shape if tensor else None

    def stored(self, name: str) -> StoredWeight:
        """Where a tensor is in the file, and in which form: queries and keys may have heads with interleaved halves."""
        tensor = self._file.tensors[name]
        self._read.add(name)
        heads = self._hyper.heads if ".attn_q." in name else self._hyper.kv_heads if ".attn_k." in name else 0
        if self._hyper.architecture not in _PERMUTED or (heads and tensor.shape[0] % (2 * heads)):
            heads = 0
        if len(tensor.shape) == 1 and heads:  # a bias has one element a row
            form = StoredForm(tensor.form, tensor.shape[0], 1, heads)
            return StoredWeight(self._file.path, tensor.offset, form, tensor.shape)
        return StoredWeight.of(self._file.path, tensor.offset, tensor.form, tensor.shape, heads)

    def pieces(self, name: str) -> Pieces:
        """The elements of a tensor as float32, in the order that the graph needs."""
        return self.stored(name).pieces()


class _Numbers:
    """Numbers in the metadata whose keys begin with the name of the architecture."""

    def __init__(self, file: GgufFile, architecture: str) -> None:
        self._file = file
        self._architecture = architecture

    def optional(self, key: str) -> float | None:
        """A finite number; None if there is no such key. One for each layer is taken if all are equal.

        Raises:
            ModelError: the value is no number, or differs by layer.
        """
        key = f"{self._architecture}.{key}"
        found = self._file.metadata.get(key)
        if isinstance(found, StoredArray):
            values = {*self._file.numbers(key).tolist()}
            if len(values) != 1:
                raise _unusual(self._file, f"{key!r} differs by layer, or is no number")
            (found,) = values
        if found is None:
            return None
        if isinstance(found, bool) or not isinstance(found, int | float) or not math.isfinite(found):
            raise _unusual(self._file, f"{key!r} is {str(found)[:40]!r}, no finite number")
        return found

    def size(self, key: str, default: int | None = None) -> int:
        """A positive size; `default` if there is no such key. Raises ModelError for any other value."""
        found = self.optional(key)
        return checked_size(default if found is None else found, f"{self._architecture}.{key}", self._file.path.name)

    def base(self, key: str, default: float) -> float:
        """The base of a rotation; `default` if there is no such key. Raises ModelError for an absurd one."""
        found = self.optional(key)
        if found is not None and not 1 < found < 1e12:
            raise _unusual(self._file, f"the base of its rotation is {found:g} ({key!r})")
        return default if found is None else found

    def text(self, key: str) -> str | None:
        """A text; None if there is no such key. Raises ModelError for a value of another type."""
        found = self._file.metadata.get(f"{self._architecture}.{key}")
        if found is not None and not isinstance(found, str):
            raise _unusual(self._file, f"{key!r} is no text")
        return found


_ROPE_FACTORS = "rope_freqs.weight"


def _scaled(file: GgufFile, numbers: _Numbers, plain: tuple[float, ...]) -> tuple[float, ...]:
    """The frequencies, scaled for long contexts as the file says: with a factor for each (Llama 3), and one for all.

    llama.cpp scales by the factor where the type is absent, and not where it is `none`; `rope.scale_linear` is the
    factor's older name (`src/llama-model.cpp`, `load_hparams`).
    """
    kind = numbers.text("rope.scaling.type") or "linear"
    factor = numbers.optional("rope.scaling.factor")
    if factor is None:
        factor = numbers.optional("rope.scale_linear")
    if kind not in ("none", "linear"):
        raise _unusual(file, f"its rotation is scaled by {kind[:40]!r} ('rope.scaling.type')")
    if kind == "linear" and factor:
        if factor < 0:
            raise _unusual(file, f"its rotation is scaled by the factor {factor:g}")
        plain = tuple(angle / factor for angle in plain)
    factors = file.tensors.get(_ROPE_FACTORS)
    if factors is None or file.text("general.architecture") not in _PERMUTED:
        return plain
    if factors.shape != (len(plain),):
        raise _unusual(file, f"{_ROPE_FACTORS} has shape {list(factors.shape)}")
    with file.path.open("rb") as stream:
        stream.seek(factors.offset)
        raw = np.frombuffer(stream.read(factors.nbytes), np.uint8).reshape(-1, factors.form.nbytes)
    found = factors.form.dequantize(raw).reshape(-1)
    if not np.all(np.isfinite(found) & (found > 0)):
        raise _unusual(file, f"{_ROPE_FACTORS} has factors that are no positive numbers")
    return tuple(float(angle / by) for angle, by in zip(plain, found, strict=True))


def _unusual(file: GgufFile, why: str, remedy: str = "") -> ModelError:
    return ModelError(
        f"the model in {file.path.name} is built in a way that is not supported",
        why=why,
        remedy=remedy or "take another model, or bring an ONNX export of this one",
    )
