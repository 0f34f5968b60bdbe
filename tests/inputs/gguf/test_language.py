"""What a GGUF file says of its model is read as llama.cpp reads it, or refused by the name of the key or tensor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.errors import ModelError
from pipeline.graph.language.hyper import Hyper
from pipeline.inputs.gguf.file import read_gguf
from pipeline.inputs.gguf.language import hyper_of
from pipeline.inputs.gguf.source import gguf_source
from tests.support.gguf_files import F32, TinySizes, Value, tiny_gguf, tiny_metadata, tiny_weights, write
from tests.support.language_logits import logits


def read(tmp_path: Path, changes: dict[str, Value | None], architecture: str = "llama", **tensors: Any) -> Hyper:
    """The sizes from a file with these keys in place of the usual ones; None takes a key out."""
    told = {**tiny_metadata(TinySizes(), architecture), **changes}
    stored = {"token_embd.weight": ((288, 64), F32, bytes(4 * 288 * 64))}
    stored |= {name: (array.shape, F32, array.tobytes()) for name, array in tensors.items()}
    write(tmp_path / "a.gguf", {key: each for key, each in told.items() if each is not None}, stored)
    return hyper_of(read_gguf(tmp_path / "a.gguf"))


REFUSED: dict[str, tuple[str, dict[str, Value | None], str]] = {
    "an architecture of transformers": ("mistral", {}, "architecture 'mistral'"),
    "a vision model's part": ("llama", {"general.type": "mmproj"}, "no whole model"),
    "an adapter": ("llama", {"general.type": "adapter"}, "no whole model"),
    "a key that nobody knows": ("llama", {"llama.attention.value_scale": 2.0}, "'llama.attention.value_scale'"),
    "a tokenizer's key": ("llama", {"tokenizer.ggml.of_my_own": 1}, "'tokenizer.ggml.of_my_own'"),
    "an encoder": ("qwen3", {"qwen3.attention.causal": False}, "it is an encoder"),
    "an embedding model": ("qwen3", {"qwen3.pooling_type": 3}, "embedding model"),
    "experts": ("llama", {"llama.expert_count": 8}, "mixture of experts"),
    "capped logits": ("gemma3", {"gemma3.final_logit_softcapping": 30.0}, "caps its logits"),
    "scaled scores": ("llama", {"llama.attention.scale": 0.5}, "scale of their own"),
    "a scaled rotation": ("llama", {"llama.rope.scaling.attn_factor": 1.2}, "'llama.rope.scaling.attn_factor'"),
    "a part of each head": ("phi3", {"phi3.rope.dimension_count": 8}, "a part of each head"),
    "yarn": ("llama", {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0}, "'yarn'"),
    "a scaling of no name": ("llama", {"llama.rope.scaling.type": "ntk"}, "'ntk'"),
    "a rotation of several parts": ("llama", {"llama.rope.dimension_sections": [4, 4]}, "dimension_sections"),
    "heads that differ by layer": ("llama", {"llama.attention.head_count_kv": [2, 4]}, "differs by layer"),
    "a size as text": ("llama", {"llama.attention.head_count_kv": "2"}, "no finite number"),
    "no epsilon": ("llama", {"llama.attention.layer_norm_rms_epsilon": None}, "layer_norm_rms_epsilon"),
    "an absurd base": ("llama", {"llama.rope.freq_base": 0.0}, "base of its rotation"),
    "a factor below zero": ("llama", {"llama.rope.scaling.factor": -4.0}, "by the factor -4"),
    "the largest Gemma": ("gemma3", {"gemma3.block_count": 62, "gemma3.attention.key_length": 32,
                                     "gemma3.attention.value_length": 32}, "not by the size of a head"),
    "a second part": ("llama", {"split.count": 3, "split.no": 1}, "is part 2 of 3"),
}  # fmt: skip


@pytest.mark.parametrize(("architecture", "changes", "said"), REFUSED.values(), ids=REFUSED)
def test_what_is_not_built_is_refused_by_name(
    architecture: str, changes: dict[str, Value | None], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelError) as error:
        read(tmp_path, changes, architecture)
    assert said in str(error.value)


PLAIN = {
    "notes of another program": {"mradermacher.quantized_by": "x", "quantize.imatrix.file": "y", "split.count": 1},
    "general notes": {"general.name": "n", "general.tags": ["a"], "general.file_type": 7, "general.type": "model"},
    "values that change nothing": {
        "llama.attention.causal": True, "llama.expert_count": 0, "llama.rope.scaling.attn_factor": 1.0,
        "llama.rope.scaling.original_context_length": 4096, "llama.attention.head_count_kv": [2, 2],
    },
}  # fmt: skip


@pytest.mark.parametrize("changes", PLAIN.values(), ids=PLAIN)
def test_notes_and_neutral_values_change_nothing(changes: dict[str, Value | None], tmp_path: Path) -> None:
    assert read(tmp_path, changes) == read(tmp_path, {})


def angles(tmp_path: Path, changes: dict[str, Value | None], **tensors: Any) -> np.ndarray[Any, Any]:
    return np.array(read(tmp_path, changes, **tensors).rotations[""].frequencies)


@pytest.mark.parametrize(
    ("changes", "factor"),
    [
        ({"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}, 4),
        ({"llama.rope.scaling.factor": 4.0}, 4),  # the default of the type is linear
        ({"llama.rope.scale_linear": 4.0}, 4),  # the older name
        ({"llama.rope.scaling.factor": 2.0, "llama.rope.scale_linear": 4.0}, 2),
        ({"llama.rope.scaling.type": "none", "llama.rope.scaling.factor": 4.0}, 1),
        ({"llama.rope.scaling.type": "linear"}, 1),
        ({"llama.rope.scaling.factor": 0.0}, 1),
    ],
)
def test_a_rotation_is_scaled_as_llama_cpp_does(
    changes: dict[str, Value | None], factor: float, tmp_path: Path
) -> None:
    np.testing.assert_allclose(angles(tmp_path, changes), angles(tmp_path, {}) / factor)


def test_factors_of_single_angles_and_one_for_all_are_both_taken(tmp_path: Path) -> None:
    by = np.arange(1, 9, dtype=np.float32)
    found = angles(tmp_path, {"llama.rope.scaling.factor": 2.0}, **{"rope_freqs.weight": by})
    np.testing.assert_allclose(found, angles(tmp_path, {}) / 2 / by)


def test_gemma_without_a_window_has_one_rotation_in_all_layers(tmp_path: Path) -> None:
    assert read(tmp_path, {"gemma3.attention.sliding_window": 512}, "gemma3").local == {0, 1}
    assert read(tmp_path, {"gemma3.attention.sliding_window": None}, "gemma3").local == frozenset()


EXTRA = {
    "a norm of heads": "blk.0.attn_q_norm.weight",
    "a bias of a norm": "blk.1.attn_norm.bias",
    "a layer more": "blk.2.attn_norm.weight",
    "a rotation's long factors": "rope_factors_long.weight",
    "a classifier": "cls.output.weight",
    "a scale of a weight": "blk.0.attn_q.scale",
}


@pytest.mark.parametrize("name", EXTRA.values(), ids=EXTRA)
def test_a_tensor_that_is_not_read_is_refused_by_its_name(name: str, tmp_path: Path) -> None:
    sizes = TinySizes()
    weights = {**tiny_weights(sizes, 288), name: np.ones(64, np.float32)}
    stored = {each: (array.shape, F32, array.tobytes()) for each, array in weights.items()}
    write(tmp_path / "a.gguf", tiny_metadata(sizes), stored)

    with pytest.raises(ModelError, match=name):
        logits(gguf_source(tmp_path / "a.gguf"), tmp_path)


def test_factors_of_a_rotation_are_read_of_llama_alone(tmp_path: Path) -> None:
    sizes, by = TinySizes(), np.full(8, 2, np.float32)
    weights = {**tiny_weights(sizes, 288, architecture="qwen2"), "rope_freqs.weight": by}
    stored = {each: (array.shape, F32, array.tobytes()) for each, array in weights.items()}
    write(tmp_path / "a.gguf", tiny_metadata(sizes, "qwen2"), stored)

    with pytest.raises(ModelError, match=r"rope_freqs\.weight"):
        logits(gguf_source(tmp_path / "a.gguf"), tmp_path)


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "gemma3", "phi3"])
def test_every_tensor_of_an_architecture_is_read(architecture: str, tmp_path: Path) -> None:
    tiny_gguf(tmp_path / "a.gguf", architecture=architecture)
    source = gguf_source(tmp_path / "a.gguf")
    logits(source, tmp_path)
    assert list(source.weights.unread()) == []
