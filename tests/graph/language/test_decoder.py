"""Language models as graphs, held against a forward pass of our own in numpy, and against themselves."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from pipeline.contracts.language import LanguageFacts, Lengths
from pipeline.errors import ModelError
from pipeline.graph.cpu import load_session, run
from pipeline.graph.files.blob_writer import BlobWriter
from pipeline.graph.files.model_file import load_graph, save_graph
from pipeline.graph.files.reserved_names import free_reserved_names
from pipeline.graph.language.architectures import BUILDERS, check_architecture
from pipeline.graph.language.builder import GraphBuilder
from pipeline.graph.language.hyper import Hyper
from pipeline.graph.language.loop import Run, Walk
from pipeline.inputs.gguf.file import read_gguf
from pipeline.inputs.gguf.language import GgufWeights, hyper_of
from tests.support.gguf_files import Floats, TinySizes, tiny_gguf, tiny_metadata, write

TOKENS = [5, 70, 33, 33, 250, 101, 7, 64, 12, 90, 3]
ARCHITECTURES = ["llama", "qwen2", "qwen3", "gemma3"]
Wide = NDArray[np.float64]


def built(
    tmp_path: Path, architecture: str, name: str = "model.onnx"
) -> tuple[Run, LanguageFacts, Hyper, dict[str, Floats]]:
    """The session of a tiny model's graph, its facts, and its weights."""
    weights = tiny_gguf(tmp_path / "a.gguf", architecture=architecture)
    file = read_gguf(tmp_path / "a.gguf")
    hyper = hyper_of(file)
    with BlobWriter(tmp_path / "converted.bin") as blob:
        builder = GraphBuilder(hyper, GgufWeights(file, hyper), blob)
        BUILDERS[architecture](builder)
        (tmp_path / name).write_bytes(builder.model("tiny"))
    session = load_session(tmp_path / name)
    return (lambda feed: run(session, feed)), facts_of(hyper), hyper, weights


def facts_of(hyper: Hyper) -> LanguageFacts:
    return LanguageFacts(
        hyper.architecture, hyper.layers, hyper.hidden, hyper.heads, hyper.kv_heads, hyper.head_dim, hyper.vocabulary,
        hyper.context, hyper.rotations,
    )  # fmt: skip


def forward(weights: dict[str, Floats], hyper: Hyper, tokens: list[int]) -> Wide:
    """The logits of all tokens: one head and one token at a time, as the papers write it."""
    gemma, size = hyper.architecture == "gemma3", hyper.head_dim
    wide = {name: array.astype(np.float64) for name, array in weights.items()}

    def norm(values: Wide, name: str) -> Wide:
        size = np.sqrt(np.mean(values**2, axis=-1, keepdims=True) + hyper.epsilon)
        return np.asarray(values / size * wide[name])

    def linear(values: Wide, name: str) -> Wide:
        return values @ wide[f"{name}.weight"].T + wide.get(f"{name}.bias", 0.0)

    def turned(values: Wide, layer: int) -> Wide:
        theta = 10_000.0
        angles = np.outer(np.arange(len(tokens)), theta ** (-2 * np.arange(size // 2) / size))
        pairs = (values[:, : size // 2] + 1j * values[:, size // 2 :]) * np.exp(1j * angles)
        return np.concatenate([pairs.real, pairs.imag], axis=1)

    stream = wide["token_embd.weight"][tokens] * (math.sqrt(hyper.hidden) if gemma else 1.0)
    for layer in range(hyper.layers):
        blk = f"blk.{layer}"
        value = norm(stream, f"{blk}.attn_norm.weight")
        queries, keys, values = (linear(value, f"{blk}.attn_{part}") for part in "qkv")
        heads = []
        for head in range(hyper.heads):
            shared = head // hyper.group
            query, key = queries[:, head * size :][:, :size], keys[:, shared * size :][:, :size]
            if f"{blk}.attn_q_norm.weight" in wide:
                query, key = norm(query, f"{blk}.attn_q_norm.weight"), norm(key, f"{blk}.attn_k_norm.weight")
            scores = turned(query, layer) @ turned(key, layer).T / math.sqrt(size)
            scores[np.triu_indices(len(tokens), 1)] = -np.inf
            shares = np.exp(scores - scores.max(axis=1, keepdims=True))
            heads.append(shares / shares.sum(axis=1, keepdims=True) @ values[:, shared * size :][:, :size])
        attended = linear(np.concatenate(heads, axis=1), f"{blk}.attn_output")
        stream = stream + (norm(attended, f"{blk}.post_attention_norm.weight") if gemma else attended)
        value = norm(stream, f"{blk}.ffn_norm.weight")
        gate = linear(value, f"{blk}.ffn_gate")
        if gemma:
            gate = 0.5 * gate * (1 + np.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)))
        else:
            gate = gate / (1 + np.exp(-gate))
        gated = linear(gate * linear(value, f"{blk}.ffn_up"), f"{blk}.ffn_down")
        stream = stream + (norm(gated, f"{blk}.post_ffw_norm.weight") if gemma else gated)
    return norm(stream, "output_norm.weight") @ wide["token_embd.weight"].T


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_graph_computes_what_the_paper_says_however_many_tokens_it_takes_at_a_time(
    architecture: str, tmp_path: Path
) -> None:
    runs, facts, hyper, weights = built(tmp_path, architecture)
    expected = forward(weights, hyper, TOKENS)

    for lengths in (Lengths(len(TOKENS), 1), Lengths(4, 12), Lengths(1, 15)):
        walk = Walk(facts, lengths.past)
        found = np.concatenate(list(walk.run(runs, lengths, TOKENS)))
        np.testing.assert_allclose(found, expected, atol=2e-4, err_msg=str(lengths))


def test_a_cache_is_handed_from_prefill_to_decode(tmp_path: Path) -> None:
    runs, facts, hyper, weights = built(tmp_path, "llama")
    walk = Walk(facts, 12)

    first = np.concatenate(list(walk.run(runs, Lengths(4, 12), TOKENS[:8])))
    rest = np.concatenate(list(walk.run(runs, Lengths(1, 15), TOKENS[8:])))

    np.testing.assert_allclose(np.concatenate([first, rest]), forward(weights, hyper, TOKENS), atol=2e-4)


def test_what_no_longer_fits_into_the_cache_is_forgotten(tmp_path: Path) -> None:
    runs, facts, *_ = built(tmp_path, "llama")
    lengths = Lengths(1, 3)

    found = np.concatenate(list(Walk(facts, 3).run(runs, lengths, TOKENS)))

    assert np.isfinite(found).all()


def test_gemma_turns_its_layers_by_two_rotations(tmp_path: Path) -> None:
    runs, facts, *_ = built(tmp_path, "gemma3")

    assert sorted(facts.rotations) == ["", "_local"]
    feed = Walk(facts, 12).feed(Lengths(4, 12), TOKENS[:4])
    assert {"position_ids_cos", "position_ids_cos_local"} <= {*feed}
    wrong = {**feed, "position_ids_cos_local": -feed["position_ids_cos_local"]}
    assert not np.allclose(runs(feed)["logits"], runs(wrong)["logits"])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_no_name_is_one_that_the_quantizer_gives(architecture: str, tmp_path: Path) -> None:
    built(tmp_path, architecture)
    assert free_reserved_names(load_graph(tmp_path / "model.onnx").graph) == 0


def test_gemmas_residual_stream_is_small_enough_for_float16(tmp_path: Path) -> None:
    _, facts, hyper, weights = built(tmp_path, "gemma3")
    model = load_graph(tmp_path / "model.onnx")
    stream = "/embedding_scaled_residual"
    model.graph.output.append(helper.make_tensor_value_info(stream, TensorProto.FLOAT, None))
    save_graph(model, tmp_path / "watched.onnx")

    feed = Walk(facts, 12).feed(Lengths(4, 12), TOKENS[:4])
    found = run(load_session(tmp_path / "watched.onnx"), feed)[stream]

    exact = weights["token_embd.weight"][TOKENS[:4]] * math.sqrt(hyper.hidden)
    np.testing.assert_allclose(16 * found[0], exact, rtol=1e-5)  # logits are the same, as is shown above
    norms = [node for node in model.graph.node if node.op_type == "RMSNormalization"]
    shrunk = {node.name for node in norms if helper.get_node_attr_value(node, "epsilon") < hyper.epsilon / 255}
    ends = ("/input_norm", "/gated_norm", "/final_norm")  # those that read it
    assert shrunk == {node.name for node in norms if node.name.endswith(ends)}


def test_another_architecture_is_refused_by_name() -> None:
    with pytest.raises(ModelError, match="'mamba' can't be built") as error:
        check_architecture("mamba", "a.gguf", ["qwen3", "llama"])
    assert "llama, qwen3" in error.value.why


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    sizes = TinySizes()
    write(tmp_path / "a.gguf", {**tiny_metadata(sizes), "llama.vocab_size": 288}, {})
    file = read_gguf(tmp_path / "a.gguf")
    hyper = hyper_of(file)

    with BlobWriter(tmp_path / "b.bin") as blob:
        builder = GraphBuilder(hyper, GgufWeights(file, hyper), blob)
        with pytest.raises(ModelError, match=r"no tensor 'token_embd\.weight'"):
            BUILDERS["llama"](builder)
