"""Reads a language model from a GGUF file: its sizes from the metadata, and its weights by name, one at a time."""

from __future__ import annotations

import math

import numpy as np

from pipeline.contracts.language import Rotation
from pipeline.errors import ModelError
from pipeline.graph.files.stored_form import StoredForm, StoredWeight
from pipeline.graph.ir.tensor_chunks import Pieces
from pipeline.graph.language.architectures import check_architecture
from pipeline.graph.language.hyper import Hyper, checked_size, frequencies
from pipeline.inputs.gguf.file import GgufFile

_LOCAL_THETA = 10_000.0
"""The rotation's base in those layers of Gemma 3 that see a window of positions; the metadata does not have it."""
_LONG_ROPE = ("rope_factors_long.weight", "rope_factors_short.weight")
_PERMUTED = ("llama",)
"""Architectures whose queries and keys ggml stores with the halves of each head interleaved."""


def hyper_of(file: GgufFile) -> Hyper:
    """The sizes of the model.

    Raises:
        ModelError: the architecture is not supported, or a size is missing or absurd.
    """
    name = file.text("general.architecture", "") or ""
    check_architecture(name, file.path.name)
    numbers = _Sizes(file, name)
    hidden, heads = numbers.size("embedding_length"), numbers.size("attention.head_count")
    head_dim = numbers.size("attention.key_length", hidden // heads)
    kv_heads = numbers.size("attention.head_count_kv", heads)
    if head_dim % 2 or heads % kv_heads or numbers.size("attention.value_length", head_dim) != head_dim:
        raise _unusual(file, f"{heads} heads of {head_dim}, {kv_heads} of keys and values")
    if numbers.size("rope.dimension_count", head_dim) != head_dim:
        raise _unusual(file, "it turns a part of each head only")
    if numbers.optional("expert_count"):
        raise _unusual(file, "it is a mixture of experts")
    table = file.tensors.get("token_embd.weight")
    layers, epsilon = numbers.size("block_count"), numbers.optional("attention.layer_norm_rms_epsilon") or 1e-6
    window = numbers.optional("attention.sliding_window")
    theta = numbers.optional("rope.freq_base") or 10_000.0
    rotations = {"": Rotation(theta, _scaled(file, frequencies(theta, head_dim), name))}
    local: frozenset[int] = frozenset()
    if name == "gemma3":
        own = numbers.optional("rope.freq_base_swa") or _LOCAL_THETA
        rotations["_local"] = Rotation(own, frequencies(own, head_dim))
        local = frozenset(layer for layer in range(layers) if (layer + 1) % 6)
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


class GgufWeights:
    """The tensors of a file as float32, a piece at a time."""

    def __init__(self, file: GgufFile, hyper: Hyper) -> None:
        self._file = file
        self._hyper = hyper

    def shape(self, name: str) -> tuple[int, ...] | None:
        """The shape of a tensor; None if there is none of that name."""
        tensor = self._file.tensors.get(name)
        return tensor.shape if tensor else None

    def stored(self, name: str) -> StoredWeight:
        """Where a tensor is in the file, and in which form: queries and keys may have heads with interleaved halves."""
        tensor = self._file.tensors[name]
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


class _Sizes:
    """Numbers in the metadata whose keys begin with the name of the architecture."""

    def __init__(self, file: GgufFile, architecture: str) -> None:
        self._file = file
        self._architecture = architecture

    def optional(self, key: str) -> float | None:
        found = self._file.number(f"{self._architecture}.{key}")
        return found if found is not None and math.isfinite(found) else None

    def size(self, key: str, default: int | None = None) -> int:
        found = self.optional(key)
        return checked_size(default if found is None else found, f"{self._architecture}.{key}", self._file.path.name)


def _scaled(file: GgufFile, plain: tuple[float, ...], architecture: str) -> tuple[float, ...]:
    """The frequencies, scaled for long contexts as the file says: with a factor for each (Llama 3), or one for all."""
    kind = file.text(f"{architecture}.rope.scaling.type", "none")
    factors = file.tensors.get("rope_freqs.weight")
    if factors is not None:
        if factors.shape != (len(plain),):
            raise _unusual(file, f"rope_freqs.weight has shape {list(factors.shape)}")
        with file.path.open("rb") as stream:
            stream.seek(factors.offset)
            raw = np.frombuffer(stream.read(factors.nbytes), np.uint8).reshape(-1, factors.form.nbytes)
        found = factors.form.dequantize(raw).reshape(-1)
        return tuple(float(angle / by) for angle, by in zip(plain, found, strict=True))
    if any(name in file.tensors for name in _LONG_ROPE):
        raise _unusual(file, "its rotation is scaled by 'longrope'")
    if kind == "linear":
        by = file.number(f"{architecture}.rope.scaling.factor") or 1.0
        return tuple(angle / by for angle in plain)
    if kind not in ("none", ""):
        raise _unusual(file, f"its rotation is scaled by {kind!r}")
    return plain


def _unusual(file: GgufFile, why: str) -> ModelError:
    return ModelError(
        f"the model in {file.path.name} is built in a way that is not supported", why=why, remedy="take another model"
    )
