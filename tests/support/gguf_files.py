"""GGUF files of our own: whatever a test wants in them, and a whole language model of a few thousand weights."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.graph.files.blocks import FORMATS, BlockFormat

Floats = NDArray[np.float32]
Value = bool | int | float | str | list[str] | list[int] | list[float]
F32, Q4_1, Q8_0 = 0, 3, 8
ALIGNMENT = 32
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def string(text: str) -> bytes:
    """A string as the format has it."""
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def value(item: Value) -> bytes:
    """A value of metadata with its type before it."""
    match item:
        case bool():
            return struct.pack("<I?", 7, item)
        case int():
            return struct.pack("<II", 4, item) if item >= 0 else struct.pack("<Ii", 5, item)
        case float():
            return struct.pack("<If", 6, item)
        case str():
            return struct.pack("<I", 8) + string(item)
        case list():
            if all(isinstance(each, str) for each in item):
                return struct.pack("<IIQ", 9, 8, len(item)) + b"".join(string(str(each)) for each in item)
            if all(isinstance(each, int) for each in item):
                return struct.pack("<IIQ", 9, 5, len(item)) + np.array(item, "<i4").tobytes()
            return struct.pack("<IIQ", 9, 6, len(item)) + np.array(item, "<f4").tobytes()


def q8_0(array: Floats) -> bytes:
    """Blocks of 32 with a scale each."""
    blocks = array.reshape(-1, 32)
    scale = np.maximum(np.abs(blocks).max(axis=1) / 127, 1e-8).astype("<f2")
    stored = np.clip(np.rint(blocks / scale.astype(np.float32)[:, None]), -127, 127).astype(np.int8)
    return b"".join(each.tobytes() + row.tobytes() for each, row in zip(scale, stored, strict=True))


def q4_1(array: Floats) -> bytes:
    """Blocks of 32 with a scale and a minimum each, 16 steps apart."""
    blocks = array.reshape(-1, 32)
    low = blocks.min(axis=1).astype("<f2")
    scale = np.maximum((blocks.max(axis=1) - low.astype(np.float32)) / 15, 1e-4).astype("<f2")
    off = (blocks - low.astype(np.float32)[:, None]) / scale.astype(np.float32)[:, None]
    stored = np.clip(np.rint(off), 0, 15).astype(np.uint8)
    packed = stored[:, :16] | stored[:, 16:] << 4
    return b"".join(a.tobytes() + b.tobytes() + row.tobytes() for a, b, row in zip(scale, low, packed, strict=True))


def random_blocks(form: BlockFormat, elements: int, seed: int = 0) -> bytes:
    """Blocks of a form with random numbers of about 0.05, whatever the form."""
    rng = np.random.default_rng(seed)
    count = elements // form.elements
    if form.elements == 1:
        values = (rng.standard_normal(count) / 16).astype(np.float32)
        return (
            values.tobytes()
            if form.nbytes == 4
            else values.astype("<f2").tobytes()
            if form.name == "F16"
            else (values.view(np.uint32) >> 16).astype("<u2").tobytes()
        )
    raw = rng.integers(0, 256, (count, form.nbytes), np.uint8)
    halves = {"Q6_K": (208,), "Q8_0": (0,), "Q4_0": (0,), "Q5_0": (0,)}.get(form.name, (0, 2))
    size = {
        "Q4_0": 1 / 80, "Q4_1": 1 / 120, "Q5_0": 1 / 160, "Q5_1": 1 / 240, "Q8_0": 1 / 1200, "Q4_K": 1 / 10000,
        "Q5_K": 1 / 20000, "Q6_K": 1 / 600000,
    }[form.name]  # fmt: skip
    for at in halves:
        # The second half is a minimum: it takes what is added to integers of 0 or more back to around 0.
        scale = rng.uniform(0.5, 1.5, count) * size
        if at and form.elements == 32:
            scale *= -8 if form.name == "Q4_1" else -16
        elif at:
            scale *= 8 if form.name == "Q4_K" else 16
        raw[:, at : at + 2] = scale.astype("<f2").view(np.uint8).reshape(count, 2)
    return raw.tobytes()


def write(path: Path, metadata: Mapping[str, Value], tensors: Mapping[str, tuple[tuple[int, ...], int, bytes]]) -> None:
    """A file with this metadata and these tensors: shape as numpy has it, number of the form, bytes."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    head += b"".join(string(key) + value(item) for key, item in metadata.items())
    data = b""
    for name, (shape, kind, raw) in tensors.items():
        head += string(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape[::-1])
        head += struct.pack("<IQ", kind, len(data))
        data += raw + b"\0" * (-len(raw) % ALIGNMENT)
    path.write_bytes(head + b"\0" * (-len(head) % ALIGNMENT) + data)


@dataclass(frozen=True)
class TinySizes:
    """Sizes of a tiny model."""

    layers: int = 2
    hidden: int = 64
    heads: int = 4
    kv_heads: int = 2
    inner: int = 96

    @property
    def head_dim(self) -> int:
        """Elements of a head."""
        return self.hidden // self.heads


def byte_tokens() -> list[str]:
    """The letters that stand for bytes in byte-level BPE, in the order of GPT-2."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [number for number in range(256) if number not in plain]
    letters = {number: chr(number) for number in plain} | {number: chr(256 + at) for at, number in enumerate(others)}
    return [letters[number] for number in range(256)]


def tiny_tokens() -> tuple[list[str], list[str], list[int]]:
    """Tokens, merges, and types: the bytes, a few words, and what marks messages."""
    tokens, merges = byte_tokens(), []
    for left, right in (("t", "h"), ("th", "e"), ("a", "n"), ("an", "d"), ("Ġ", "the"), ("i", "n"), ("e", "r")):
        tokens.append(left + right)
        merges.append(f"{left} {right}")
    marks = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    types = [1] * len(tokens) + [3] * len(marks)
    tokens += marks
    tokens += [f"<unused{number}>" for number in range(-len(tokens) % 32)]
    return tokens, merges, types + [1] * (len(tokens) - len(types))


def tiny_weights(sizes: TinySizes, vocabulary: int, *, architecture: str = "llama", seed: int = 0) -> dict[str, Floats]:
    """Random weights by the names of GGUF, matrices as [outputs, inputs], heads not interleaved."""
    rng = np.random.default_rng(seed)

    def matrix(outputs: int, inputs: int) -> Floats:
        return np.asarray(rng.standard_normal((outputs, inputs)) / np.sqrt(inputs), np.float32)

    def gamma(size: int) -> Floats:
        return (1 + 0.1 * rng.standard_normal(size)).astype(np.float32)

    found = {"token_embd.weight": matrix(vocabulary, sizes.hidden) * 4, "output_norm.weight": gamma(sizes.hidden)}
    kv = sizes.kv_heads * sizes.head_dim
    for layer in range(sizes.layers):
        blk = f"blk.{layer}"
        found |= {
            f"{blk}.attn_norm.weight": gamma(sizes.hidden),
            f"{blk}.attn_q.weight": matrix(sizes.hidden, sizes.hidden),
            f"{blk}.attn_k.weight": matrix(kv, sizes.hidden),
            f"{blk}.attn_v.weight": matrix(kv, sizes.hidden),
            f"{blk}.attn_output.weight": matrix(sizes.hidden, sizes.hidden),
            f"{blk}.ffn_norm.weight": gamma(sizes.hidden),
            f"{blk}.ffn_gate.weight": matrix(sizes.inner, sizes.hidden),
            f"{blk}.ffn_up.weight": matrix(sizes.inner, sizes.hidden),
            f"{blk}.ffn_down.weight": matrix(sizes.hidden, sizes.inner),
        }
        if architecture == "qwen2":
            for name, size in (("q", sizes.hidden), ("k", kv), ("v", kv)):
                found[f"{blk}.attn_{name}.bias"] = (rng.standard_normal(size) / 4).astype(np.float32)
        if architecture in ("qwen3", "gemma3"):
            found |= {f"{blk}.attn_{name}_norm.weight": gamma(sizes.head_dim) for name in "qk"}
        if architecture == "gemma3":
            found |= {f"{blk}.post_{name}_norm.weight": gamma(sizes.hidden) for name in ("attention", "ffw")}
    return joined(found, sizes.layers) if architecture == "phi3" else found


def joined(weights: dict[str, Floats], layers: int) -> dict[str, Floats]:
    """The same with queries, keys and values of a layer in one matrix, and gate and product."""
    for layer in range(layers):
        blk = f"blk.{layer}"
        parts = [weights.pop(f"{blk}.attn_{name}.weight") for name in "qkv"]
        weights[f"{blk}.attn_qkv.weight"] = np.concatenate(parts)
        gate = weights.pop(f"{blk}.ffn_gate.weight")
        weights[f"{blk}.ffn_up.weight"] = np.concatenate([gate, weights[f"{blk}.ffn_up.weight"]])
    return weights


def interleaved(matrix: Floats, heads: int) -> Floats:
    """Queries or keys with the halves of each head interleaved, as files of architecture llama have them."""
    halves = matrix.reshape(heads, 2, matrix.shape[0] // heads // 2, -1)
    turned: Floats = np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(matrix.shape)
    return turned


def tiny_metadata(sizes: TinySizes, architecture: str = "llama") -> dict[str, Value]:
    """The metadata of a tiny model."""
    tokens, merges, types = tiny_tokens()
    return {
        "general.architecture": architecture,
        f"{architecture}.block_count": sizes.layers,
        f"{architecture}.context_length": 2048,
        f"{architecture}.embedding_length": sizes.hidden,
        f"{architecture}.feed_forward_length": sizes.inner,
        f"{architecture}.attention.head_count": sizes.heads,
        f"{architecture}.attention.head_count_kv": sizes.kv_heads,
        f"{architecture}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{architecture}.rope.freq_base": 10000.0,
        **({"gemma3.attention.sliding_window": 1024} if architecture == "gemma3" else {}),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": tokens.index("<|im_start|>"),
        "tokenizer.ggml.eos_token_id": tokens.index("<|im_end|>"),
        "tokenizer.ggml.padding_token_id": tokens.index("<|endoftext|>"),
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": TEMPLATE,
    }


def tiny_gguf(
    path: Path,
    *,
    architecture: str = "llama",
    sizes: TinySizes | None = None,
    in_fours: bool = False,
    form: int = F32,
    changed: Mapping[str, Value | None] | None = None,
    added: Mapping[str, Floats] | None = None,
) -> dict[str, Floats]:
    """Write a tiny language model, with the matrices of its layers in Q4_1 if `in_fours`.

    Matrices are random blocks of another `form` by its number; metadata are `changed`, or left out for None; tensors of
    float32 are `added`. Returns the weights as they were before that, heads not interleaved.
    """
    sizes = sizes or TinySizes()
    given = {**tiny_metadata(sizes, architecture), **(changed or {})}
    metadata = {key: item for key, item in given.items() if item is not None}
    vocabulary = metadata.get("tokenizer.ggml.tokens")
    count = len(vocabulary) if isinstance(vocabulary, list) and vocabulary else len(tiny_tokens()[0])
    weights = tiny_weights(sizes, count, architecture=architecture)
    stored = {}
    for name, array in weights.items():
        kept = array
        if architecture == "llama" and (".attn_q." in name or ".attn_k." in name):
            kept = interleaved(array, sizes.heads if "_q." in name else sizes.kv_heads)
        fours = in_fours and name.startswith("blk.") and array.ndim > 1
        stored[name] = (array.shape, Q4_1, q4_1(kept)) if fours else (array.shape, F32, kept.tobytes())
        if form != F32 and array.ndim > 1:
            stored[name] = (array.shape, form, random_blocks(FORMATS[form], array.size, seed=len(stored)))
    stored |= {name: (array.shape, F32, array.tobytes()) for name, array in (added or {}).items()}
    write(path, metadata, stored)
    return weights
