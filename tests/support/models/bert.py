"""A small encoder in the form that torch exports BERT in: what MiniLM, BGE and E5 look like, with random weights.

The mask is the float minimum added to the scores, and shapes are computed while the model runs.

    python -m tests.support.models.bert OUT
"""

from __future__ import annotations

import json
import string
import sys
from pathlib import Path

import numpy as np
from onnx import ModelProto

from tests.support.models.builder import Graph, dim, reshape, save, vector
from tests.support.models.layers import gelu, linear, merge_heads, scaled_scores, split_heads

WIDTH, HEADS, LAYERS, POSITIONS = 64, 2, 2, 128
SIZE = WIDTH // HEADS
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")


def write(folder: Path, layers: int = LAYERS) -> None:
    """Write ``onnx/model.onnx`` and ``tokenizer.json``, as a repository on the hub has them."""
    save(encoder(layers), folder / "onnx" / "model.onnx")
    text = json.dumps(tokenizer(), ensure_ascii=False, indent=1)
    (folder / "tokenizer.json").write_text(text + "\n", "utf-8", newline="\n")


def vocabulary() -> list[str]:
    """Special tokens, then each printable ASCII character at the beginning of a word and within one."""
    characters = [*string.ascii_lowercase, *string.digits, *string.punctuation]
    return [*SPECIAL, *characters, *(f"##{character}" for character in characters)]


def tokenizer() -> dict[str, object]:
    """A tokenizer.json: WordPiece over :func:`vocabulary`, with [CLS] and [SEP] around a text."""
    ids = {token: number for number, token in enumerate(vocabulary())}
    frame = [
        {"SpecialToken": {"id": "[CLS]", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
        {"SpecialToken": {"id": "[SEP]", "type_id": 0}},
    ]
    return {
        "version": "1.0",
        "truncation": {"max_length": POSITIONS, "strategy": "LongestFirst", "stride": 0, "direction": "Right"},
        "padding": {
            "strategy": {"Fixed": POSITIONS},
            "direction": "Right",
            "pad_to_multiple_of": None,
            "pad_id": 0,
            "pad_type_id": 0,
            "pad_token": "[PAD]",
        },
        "added_tokens": [
            {
                "id": ids[token],
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for token in SPECIAL
        ],
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": True,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": frame,
            "pair": frame,
            "special_tokens": {
                token: {"id": token, "ids": [ids[token]], "tokens": [token]} for token in ("[CLS]", "[SEP]")
            },
        },
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": ids,
        },
    }


def encoder(layers: int = LAYERS) -> ModelProto:
    """Token ids and mask to hidden states, float32 [batch, sequence, 64]."""
    g = Graph("bert", seed=0)
    ids = g.input("input_ids", "int64", ["batch", "sequence"])
    mask = g.input("attention_mask", "int64", ["batch", "sequence"])
    with g.scope("embeddings"):
        length = dim(g, ids, 1)
        places = g.op("Slice", np.arange(POSITIONS).reshape(1, -1), [0], vector(g, length), [1], [1])
        words = g.op("Gather", g.normal("word_embeddings.weight", len(vocabulary()), WIDTH), ids)
        x = g.op("Add", words, g.op("Gather", g.normal("position_embeddings.weight", POSITIONS, WIDTH), places))
        x = _norm(g, x, "LayerNorm")
    bias = _mask_bias(g, mask)
    for number in range(layers):
        with g.scope(f"encoder/layer.{number}"):
            x = _norm(g, g.op("Add", _attention(g, x, bias), x), "attention.LayerNorm")
            h = gelu(g, linear(g, x, WIDTH, 4 * WIDTH, "intermediate"))
            last = number == layers - 1
            h = g.op("Add", linear(g, h, 4 * WIDTH, WIDTH, "output"), x)
            x = _norm(g, h, "output.LayerNorm", out="last_hidden_state" if last else "")
    g.output("last_hidden_state", "float32", ["batch", "sequence", WIDTH])
    return g.model()


def _mask_bias(g: Graph, mask: str) -> str:
    """int64 [batch, sequence] -> float32 [batch, 1, sequence, sequence]: 0 where attended, else the float minimum."""
    with g.scope("mask"):
        batch, length = dim(g, mask, 0), dim(g, mask, 1)
        seen = reshape(g, g.op("Cast", mask, to=9), batch, 1, 1, length)
        seen = g.op("Expand", seen, vector(g, batch, 1, length, length))
        return g.op("Where", seen, 0.0, np.array(np.finfo(np.float32).min))


def _attention(g: Graph, x: str, bias: str) -> str:
    with g.scope("attention"):
        q, k, v = (split_heads(g, linear(g, x, WIDTH, WIDTH, name), HEADS, SIZE) for name in ("query", "key", "value"))
        weights = g.op("Softmax", g.op("Add", scaled_scores(g, q, k, SIZE), bias), axis=-1)
        return linear(g, merge_heads(g, g.op("MatMul", weights, v), WIDTH), WIDTH, WIDTH, "out")


def _norm(g: Graph, x: str, name: str, out: str = "") -> str:
    scale = g.normal(f"{name}.weight", WIDTH, scale=0.1, mean=1.0)
    shift = g.normal(f"{name}.bias", WIDTH, scale=0.1)
    return g.op("LayerNormalization", x, scale, shift, out=out, axis=-1, epsilon=1e-12)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
