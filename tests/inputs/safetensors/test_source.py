"""A folder of transformers becomes the very graph that the same model in GGUF becomes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from pipeline.errors import ModelError, SourceError
from pipeline.graph.language.hyper import Hyper
from pipeline.inputs.gguf.source import gguf_source
from pipeline.inputs.safetensors.hyper import ModelConfigJson, hyper_of_config
from pipeline.inputs.safetensors.source import safetensors_source
from pipeline.inputs.source import local_files
from tests.support.gguf_files import TEMPLATE, TinySizes
from tests.support.language_logits import logits
from tests.support.safetensors_files import renamed, tiny_config, tiny_folder, write


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("architecture", ["llama", "mistral", "qwen2", "qwen3", "gemma3", "phi3"])
def test_one_model_computes_the_same_from_either_form(architecture: str, shards: int, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    tiny_folder(folder, architecture=architecture, shards=shards)
    name = "model.safetensors" if shards == 1 else "model.safetensors.index.json"

    ours, other = safetensors_source(folder / name), gguf_source(folder / "tiny.gguf")

    # The norms of Gemma had their 1 taken off and put on again in float32.
    found, expected = logits(ours, folder), logits(other, folder)
    np.testing.assert_allclose(found, expected, atol=1e-4 if architecture == "gemma3" else 0)
    assert (ours.template, ours.bos, ours.pad) == (TEMPLATE, None, other.pad)
    assert {*ours.stops} == {*other.stops}
    assert other.named == {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    assert ours.named == other.named


def test_matrices_in_one_compute_what_they_do_by_themselves(tmp_path: Path) -> None:
    tiny_folder(tmp_path / "joined", architecture="phi3")
    tiny_folder(tmp_path / "apart", architecture="llama")

    found, expected = (
        logits(gguf_source(tmp_path / name / "tiny.gguf"), tmp_path / name) for name in ("joined", "apart")
    )

    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("part", "said"), [("attn_qkv", r"attn_q\.weight' has shape \[127, 64\]"), ("ffn_up", "ffn_down")]
)
def test_matrices_in_one_of_other_sizes_are_refused(part: str, said: str, tmp_path: Path) -> None:
    weights = tiny_folder(tmp_path, architecture="phi3")
    name = f"blk.1.{part}.weight"
    write(tmp_path / "model.safetensors", renamed({**weights, name: weights[name][:-1]}, "phi3"))

    with pytest.raises(ModelError, match=rf"tensor 'blk\.1\.{said}"):
        logits(safetensors_source(tmp_path / "model.safetensors"), tmp_path)


@pytest.mark.parametrize(("dtype", "digits"), [("F16", 2**-11), ("BF16", 2**-7)])
def test_weights_of_sixteen_bits_are_read_as_they_are(dtype: str, digits: float, tmp_path: Path) -> None:
    weights = tiny_folder(tmp_path, dtype=dtype)

    read = safetensors_source(tmp_path / "model.safetensors").weights.pieces("blk.1.attn_k.weight").array()

    assert read.dtype == np.float32
    np.testing.assert_allclose(read, weights["blk.1.attn_k.weight"], rtol=digits, atol=1e-7)


def config_of(architecture: str = "llama", **changes: Any) -> Hyper:
    values = {**tiny_config(TinySizes(), 288, architecture), **changes}
    return hyper_of_config(ModelConfigJson({k: v for k, v in values.items() if v is not None}, "config.json"))


def test_a_rotation_is_scaled_as_llama_3_does() -> None:
    """Figures of transformers 4.57 (`_compute_llama3_parameters`), head_dim 8, theta 500,000, factor 8."""
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 8192}  # fmt: skip

    old = config_of(head_dim=8, rope_theta=500000.0, rope_scaling=scaling).rotations[""]
    new = config_of(head_dim=8, rope_theta=None, rope_parameters={"rope_theta": 500000.0, **scaling}).rotations[""]

    plain = [500000.0 ** (-pair / 4) for pair in range(4)]
    turns = 8192 * plain[2] / (2 * np.pi)
    kept = (turns - 1) / 3
    assert 0 < kept < 1
    expected = [plain[0], plain[1], kept * plain[2] + (1 - kept) * plain[2] / 8, plain[3] / 8]
    np.testing.assert_allclose(old.frequencies, expected)
    assert (old.theta, old) == (500000.0, new)


def test_windows_limit_the_context() -> None:
    assert config_of("mistral", sliding_window=512).window == 512
    assert config_of("mistral", sliding_window=512, use_sliding_window=False).window == 512
    assert config_of("qwen2", sliding_window=512).window is None
    assert config_of("qwen2", sliding_window=512, use_sliding_window=True).window == 512
    assert sorted(config_of("gemma3", num_hidden_layers=7).local) == [0, 1, 2, 3, 4, 6]
    types = ["full_attention", "sliding_attention"]
    assert config_of("gemma3", layer_types=types, sliding_window=512).local == {1}


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"model_type": "mamba"}, "architecture 'mamba' can't be built"),
        ({"model_type": None}, "architecture '' can't be built"),
        ({"hidden_size": None}, "does not say a size"),
        ({"hidden_size": 1 << 40}, "does not say a size"),
        ({"num_attention_heads": 0}, "does not say a size"),
        ({"num_key_value_heads": 3}, "3 of keys and values"),
        ({"num_hidden_layers": 100_000}, "100000 layers"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantized already"),
        ({"hidden_act": "relu"}, "gated by 'relu'"),
        ({"num_local_experts": 8}, "mixture of experts"),
        ({"partial_rotary_factor": 0.5}, "a part of each head"),
        ({"text_config": {"hidden_size": 8}}, "reads pictures as well"),
        ({"final_logit_softcapping": 30.0}, "caps its scores"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "scaled by 'yarn'"),
        ({"rope_theta": -1.0}, "base of its rotation"),
        ({"rope_theta": "1e4"}, "'rope_theta' is '1e4', no finite number"),
        ({"rms_norm_eps": True}, "'rms_norm_eps' is 'True'"),
        ({"rope_scaling": "linear"}, "'rope_scaling' is no object"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "scaled between 0 and 0"),
        ({"rope_scaling": {"factor": 8.0, "mrope_section": [1]}}, "key 'mrope_section'"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 2e4}}}, "key 'full_attention'"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "a part of each head"),
        ({"use_bidirectional_attention": True}, "it is an encoder"),
        ({"is_causal": False}, "it is an encoder"),
        ({"is_encoder_decoder": True}, "it has an encoder as well"),
        ({"architectures": ["LlamaModel"]}, "it is saved as 'LlamaModel'"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "'LlamaForSequenceClassification'"),
        ({"attention_multiplier": 0.5}, "its key 'attention_multiplier' is not known"),
        ({"logits_scaling": 8.0}, "its key 'logits_scaling' is not known"),
        ({"layer_types": ["chunked_attention", "full_attention"]}, "'layer_types' is no list of 2 kinds"),
    ],
)
def test_what_is_not_built_is_refused_by_name(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ModelError) as error:
        config_of(**changes)
    assert text in str(error.value)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"query_pre_attn_scalar": None}, "scores are scaled by 256, not 16"),
        ({"rope_parameters": {"rope_theta": 1e6}}, "not of full_attention and sliding_attention"),
        ({"rope_parameters": {"full_attention": {"partial_rotary_factor": 0.5}}}, "a part of each head"),
        ({"rope_parameters": {"sliding_attention": {"rope_type": "yarn"}}}, "scaled by 'yarn'"),
        ({"hidden_activation": "silu"}, "gated by 'silu'"),
    ],
)
def test_what_is_not_built_of_gemma_is_refused_by_name(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ModelError) as error:
        config_of("gemma3", **changes)
    assert text in str(error.value)


def test_keys_that_are_left_out_have_the_values_of_transformers() -> None:
    """Figures of `configuration_*.py` of transformers 5.24."""
    shape = {"head_dim": None, "num_key_value_heads": None, "max_position_embeddings": None, "rms_norm_eps": None}
    assert config_of("phi3", **shape).epsilon == 1e-5
    assert config_of("llama", **shape).epsilon == 1e-6
    assert (config_of("llama", **shape).context, config_of("phi3", **shape).context) == (2048, 4096)
    assert config_of("qwen3", **{**shape, "num_attention_heads": 32}).head_dim == 128
    mistral = config_of("mistral", **{**shape, "num_attention_heads": 16})
    assert (mistral.kv_heads, mistral.head_dim, mistral.window) == (8, 4, 4096)
    assert config_of("llama", **shape).kv_heads == 4
    assert config_of("gemma3", rope_theta=None).rotations[""].theta == 1e6
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    told = {**scaling, "original_max_position_embeddings": 2048}
    assert config_of(rope_scaling=scaling) == config_of(rope_scaling=told)  # those of max_position_embeddings
    assert config_of(rope_scaling=told, original_max_position_embeddings=64) != config_of(rope_scaling=told)


EXTRA = {
    "a norm of heads": "model.layers.0.self_attn.q_norm.weight",
    "a bias that the config does not have": "model.layers.1.self_attn.o_proj.bias",
    "a layer more": "model.layers.2.input_layernorm.weight",
    "an adapter": "base_model.model.layers.0.self_attn.q_proj.lora_A.weight",
    "a classifier": "score.weight",
}


@pytest.mark.parametrize("name", EXTRA.values(), ids=EXTRA)
def test_a_tensor_that_is_not_read_is_refused_by_its_name(name: str, tmp_path: Path) -> None:
    weights = tiny_folder(tmp_path)
    write(tmp_path / "model.safetensors", {**renamed(weights, "llama"), name: np.ones(64, np.float32)})

    with pytest.raises(ModelError, match=re.escape(name)):
        logits(safetensors_source(tmp_path / "model.safetensors"), tmp_path)


def test_frequencies_and_a_tied_head_follow_from_others(tmp_path: Path) -> None:
    arrays = renamed(tiny_folder(tmp_path), "llama")
    more = {
        "lm_head.weight": arrays["model.embed_tokens.weight"],
        "model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(8, np.float32),
    }
    expected = logits(safetensors_source(tmp_path / "model.safetensors"), tmp_path)
    write(tmp_path / "model.safetensors", {**arrays, **more})
    np.testing.assert_array_equal(logits(safetensors_source(tmp_path / "model.safetensors"), tmp_path), expected)

    write(tmp_path / "model.safetensors", {**arrays, "lm_head.weight": 2 * more["lm_head.weight"]})
    with pytest.raises(ModelError, match="says that its embeddings are tied"):
        safetensors_source(tmp_path / "model.safetensors")


def test_biases_are_those_that_the_config_has(tmp_path: Path) -> None:
    weights = tiny_folder(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text("utf-8"))
    (tmp_path / "config.json").write_text(json.dumps({**config, "attention_bias": True}), "utf-8")
    with pytest.raises(ModelError, match=r"lacks biases: blk\.0\.attn_k\.bias"):
        safetensors_source(tmp_path / "model.safetensors")

    plain = renamed(weights, "llama")
    sizes = {"q": 64, "k": 32, "v": 32, "o": 64}
    biases = {
        f"model.layers.{layer}.self_attn.{each}_proj.bias": np.full(size, 0.5, np.float32)
        for layer in range(2)
        for each, size in sizes.items()
    }
    write(tmp_path / "model.safetensors", {**plain, **biases})
    found = logits(safetensors_source(tmp_path / "model.safetensors"), tmp_path)
    write(tmp_path / "model.safetensors", {**plain, **{name: 0 * bias for name, bias in biases.items()}})
    assert not np.allclose(found, logits(safetensors_source(tmp_path / "model.safetensors"), tmp_path))


@pytest.mark.parametrize("place", ["../model.safetensors", "/etc/passwd", "a/b.safetensors", "b.bin", 3, None])
def test_an_index_names_files_beside_it_alone(place: Any, tmp_path: Path) -> None:
    tiny_folder(tmp_path / "m", shards=2)
    index = tmp_path / "m" / "model.safetensors.index.json"
    told = json.loads(index.read_text("utf-8"))
    told["weight_map"]["model.norm.weight"] = place
    index.write_text(json.dumps(told), "utf-8")

    with pytest.raises(ModelError, match="no file beside it"):
        local_files(tmp_path / "m", [index.name])


def test_an_index_that_names_what_is_not_there_is_refused(tmp_path: Path) -> None:
    tiny_folder(tmp_path / "m", shards=2)
    index = tmp_path / "m" / "model.safetensors.index.json"
    told = json.loads(index.read_text("utf-8"))
    told["weight_map"]["model.more.weight"] = told["weight_map"]["model.norm.weight"]
    index.write_text(json.dumps(told), "utf-8")

    with pytest.raises(ModelError, match=r"'model\.more\.weight' is not in model-0000"):
        safetensors_source(index)


def test_what_lies_beside_the_weights_belongs_to_them(tmp_path: Path) -> None:
    tiny_folder(tmp_path / "m", shards=2)

    found = local_files(tmp_path / "m", ["model.safetensors.index.json"])

    sides = ["config.json", "tokenizer.json", "tokenizer_config.json"]
    assert {*found} == {
        *sides,
        "model.safetensors.index.json",
        *(f"model-0000{n}-of-00002.safetensors" for n in (1, 2)),
    }
    (tmp_path / "m" / "config.json").unlink()
    with pytest.raises(SourceError, match=r"no file config\.json"):
        local_files(tmp_path / "m", ["model.safetensors.index.json"])


def test_an_untied_head_that_is_missing_is_said(tmp_path: Path) -> None:
    tiny_folder(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text("utf-8"))
    (tmp_path / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}), "utf-8")

    with pytest.raises(ModelError, match=r"no tensor 'lm_head\.weight'"):
        safetensors_source(tmp_path / "model.safetensors")


def test_a_template_may_be_a_file_of_its_own_or_one_of_several(tmp_path: Path) -> None:
    tiny_folder(tmp_path)
    several = [{"name": "tools", "template": "t"}, {"name": "default", "template": "d"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": several}), "utf-8")
    assert safetensors_source(tmp_path / "model.safetensors").template == "d"

    (tmp_path / "chat_template.jinja").write_text("own", "utf-8")
    assert safetensors_source(tmp_path / "model.safetensors").template == "own"


def test_a_token_before_every_text_is_one_that_the_tokenizer_puts_there(tmp_path: Path) -> None:
    tiny_folder(tmp_path)
    told = json.loads((tmp_path / "tokenizer_config.json").read_text("utf-8"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**told, "add_bos_token": True}), "utf-8")

    source = safetensors_source(tmp_path / "model.safetensors")

    number = Tokenizer.from_str(source.tokenizer).token_to_id("<|im_start|>")
    assert source.bos == number
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(told), "utf-8")
    assert safetensors_source(tmp_path / "model.safetensors").bos is None
    tokenizer = Tokenizer.from_str(source.tokenizer)
    tokenizer.post_processor = TemplateProcessing(single="<|im_start|> $A", special_tokens=[("<|im_start|>", number)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert safetensors_source(tmp_path / "model.safetensors").bos == number
