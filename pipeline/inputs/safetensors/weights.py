"""Gives the weights of a language model in safetensors, by the names of the graph's builder, a piece at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import ModelError
from pipeline.graph.files.blocks import FORMATS
from pipeline.graph.files.stored_form import StoredWeight
from pipeline.graph.ir.tensor_chunks import Pieces
from pipeline.inputs.safetensors.file import SafeTensor, read_safetensors
from pipeline.inputs.safetensors.index import INDEX_SUFFIX, refused, weight_map

_FORMS = {form.name: form for form in FORMATS.values() if form.elements == 1}
"""The types that weights may be stored in: F32, F16 and BF16."""
_AT_ONCE = 1 << 22
"""Bytes that are compared at once."""
OF_MODEL: Mapping[str, str] = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
OF_LAYER: Mapping[str, str] = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
OF_PHI: Mapping[str, str] = {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}
OF_GEMMA: Mapping[str, str] = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
OF_ARCHITECTURE = {"gemma3_text": OF_GEMMA, "phi3": OF_PHI}
"""The names in layers that differ from :data:`OF_LAYER`, by `model_type` of config.json."""


def read_tensors(path: Path) -> dict[str, SafeTensor]:
    """The tensors of a safetensors file, or of all files that an index names, by name.

    Raises:
        ModelError: a file is damaged, or lacks a tensor that the index says it has.
    """
    if not path.name.lower().endswith(INDEX_SUFFIX):
        return read_safetensors(path)
    told = weight_map(path)
    files = {file: read_safetensors(path.parent / file) for file in sorted({*told.values()})}
    for tensor, file in told.items():
        if tensor not in files[file]:
            raise refused(path.name, f"tensor {tensor[:100]!r} is not in {file}")
    return {tensor: files[file][tensor] for tensor, file in told.items()}


class SafetensorsWeights:
    """The tensors of a model as float32. With `tied`, the embedding table is also the weight of the output layer.

    `biases` are the matrices of a layer that have a bias, which transformers does not read of others.
    """

    def __init__(
        self, tensors: Mapping[str, SafeTensor], architecture: str, *, tied: bool, biases: frozenset[str]
    ) -> None:
        self._tensors = tensors
        self._tied = tied
        self._biases = biases
        self._read: set[str] = set()
        self._gemma = architecture == "gemma3_text"
        self._of_layer = {**OF_LAYER, **OF_ARCHITECTURE.get(architecture, {})}

    def shape(self, name: str) -> tuple[int, ...] | None:
        """The shape of a tensor; None if there is none of that name."""
        tensor = self._tensor(name)
        return tensor.shape if tensor else None

    def stored(self, name: str) -> StoredWeight:
        """Where a tensor is in its file, and in which form.

        Raises:
            ModelError: weights of its type can't be read.
        """
        tensor = self._tensor(name)
        assert tensor is not None, "asked for its shape first"
        self._read.add(tensor.name)
        form = _FORMS.get(tensor.dtype)
        if form is None:
            raise ModelError(
                f"tensor {tensor.name!r} is stored as {tensor.dtype}",
                where=tensor.path.name,
                why=f"weights are read from {', '.join(_FORMS)}",
                remedy="take the model as it was before it was quantized",
            )
        return StoredWeight.of(tensor.path, tensor.offset, form, tensor.shape)

    def pieces(self, name: str) -> Pieces:
        """The elements of a tensor as float32, in pieces.

        Raises:
            ModelError: as for :meth:`stored`.
        """
        found = self.stored(name).pieces()
        # A norm of Gemma multiplies by one more than what is stored.
        return found.map(_one_more, found.dtype) if self._gemma and "norm" in name else found

    def unread(self) -> Iterable[str]:
        """The tensors of the files that nobody asked for, but those that follow from others.

        Older checkpoints have the frequencies of the rotation (`inv_freq`), which transformers computes anew; a tied
        head was held against the table when the source was opened.
        """
        for name in self._tensors:
            tied = self._tied and name == "lm_head.weight"
            if name not in self._read and not tied and not name.endswith(".rotary_emb.inv_freq"):
                yield name

    def _tensor(self, name: str) -> SafeTensor | None:
        """The tensor that the builder calls `name`, such as `blk.0.attn_q.weight`."""
        stem, _, kind = name.rpartition(".")
        if stem.startswith("blk."):
            _, layer, part = stem.split(".", 2)
            own = self._of_layer.get(part)
            if kind == "bias" and part not in self._biases:
                return None
            return self._tensors.get(f"model.layers.{layer}.{own}.{kind}") if own else None
        if stem == "output" and self._tied:
            return None
        return self._tensors.get(f"{OF_MODEL[stem]}.{kind}") if stem in OF_MODEL else None


def _one_more(stored: NDArray[np.float32]) -> NDArray[np.float32]:
    return stored + np.float32(1)


def same_bytes(one: SafeTensor, other: SafeTensor) -> bool:
    """Whether two tensors are stored alike, element by element."""
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    with one.path.open("rb") as left, other.path.open("rb") as right:
        left.seek(one.offset)
        right.seek(other.offset)
        for start in range(0, one.nbytes, _AT_ONCE):
            count = min(_AT_ONCE, one.nbytes - start)
            if left.read(count) != right.read(count):
                return False
    return True
