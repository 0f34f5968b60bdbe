"""Which architectures can be built, by the names that sources give them, and in what each differs from the plain decoder.

| architecture | models | differs by | source |
|---|---|---|---|
| llama, mistral | Llama 1 to 3, SmolLM2, Mistral | the plain decoder | https://arxiv.org/abs/2307.09288 |
| qwen2 | Qwen 2, 2.5 | biases of queries, keys and values: the builder adds a bias wherever the source has one | https://arxiv.org/abs/2407.10671 |
| qwen3 | Qwen 3 | queries and keys are normed head by head before they are turned | https://arxiv.org/abs/2505.09388 |
| gemma3, gemma3_text | Gemma 3, its text model | norms behind each part and in each head, two rotations, scaled embeddings | https://arxiv.org/abs/2503.19786 |
| phi3 | Phi 3 | queries, keys and values are one matrix, and gate and product | https://arxiv.org/abs/2404.14219 |

Five of six layers of Gemma 3 see a window of the text and have a rotation of their own; contexts beyond the window are
refused, so that one mask serves all layers. Norm weights are those of GGUF: 1 is in them.

Weights of a source that has some matrices in one: those of queries, keys and values, or of gate and product.

    blk.0.attn_qkv.weight  [(heads + 2 kv_heads) head_dim, hidden]  ->  attn_q, attn_k, attn_v
    blk.0.ffn_up.weight    [2 inner, hidden]                        ->  ffn_gate, ffn_up

Each is a few rows of what is stored, and stays where it is.
"""  # noqa: E501 - a table

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

from pipeline.errors import ModelError
from pipeline.graph.files.stored_form import StoredWeight
from pipeline.graph.ir.tensor_chunks import Pieces
from pipeline.graph.language.builder import GraphBuilder
from pipeline.graph.language.decoder import Variant, build_decoder
from pipeline.graph.language.hyper import Hyper, Weights


class JoinedWeights:
    """The weights of such a source by the names that graphs are built by; what is not joined is as it was."""

    def __init__(self, weights: Weights, hyper: Hyper) -> None:
        self._weights = weights
        query, other = hyper.heads * hyper.head_dim, hyper.kv_heads * hyper.head_dim
        self._of_attention = {
            "attn_q": (0, query),
            "attn_k": (query, other),
            "attn_v": (query + other, other),
        }

    def shape(self, name: str) -> tuple[int, ...] | None:
        """The shape of a tensor; None if there is none, that of the joined one if that has other rows than are due."""
        joined, _, count = self._place(name)
        found = self._weights.shape(joined)
        if found is None or not count or found[0] != self._rows(joined, count):
            return found
        return (count, *found[1:])

    def stored(self, name: str) -> StoredWeight:
        """Where a tensor is, and in which form."""
        joined, first, count = self._place(name)
        found = self._weights.stored(joined)
        if not count:
            return found
        row = replace(found.form, rows=1).nbytes
        shape = (count, *found.shape[1:])
        return StoredWeight(found.path, found.offset + first * row, replace(found.form, rows=count), shape)

    def pieces(self, name: str) -> Pieces:
        """The elements of a tensor."""
        joined, _, count = self._place(name)
        return self.stored(name).pieces() if count else self._weights.pieces(joined)

    def unread(self) -> Iterable[str]:
        """The source's own names of tensors that nobody has asked for."""
        return self._weights.unread()

    def _rows(self, joined: str, count: int) -> int:
        return sum(rows for _, rows in self._of_attention.values()) if "attn_qkv" in joined else 2 * count

    def _place(self, name: str) -> tuple[str, int, int]:
        """The tensor that another one is in, its first row there, and how many it has; none of a tensor by itself."""
        stem, _, kind = name.rpartition(".")
        layer, _, part = stem.rpartition(".")
        if part in self._of_attention:
            return f"{layer}.attn_qkv.{kind}", *self._of_attention[part]
        if part in ("ffn_gate", "ffn_up"):
            joined = f"{layer}.ffn_up.{kind}"
            found = self._weights.shape(joined)
            half = found[0] // 2 if found else 0
            return joined, half if part == "ffn_up" else 0, half
        return name, 0, 0


_SHRUNK = 16.0
"""The residual stream of Gemma 3 270M reaches 104,000 (layer 14), and float16 ends at 65,504."""


def _plain(builder: GraphBuilder) -> None:
    build_decoder(builder, Variant())


def _qwen3(builder: GraphBuilder) -> None:
    build_decoder(builder, Variant(head_norms=True))


def _gemma3(builder: GraphBuilder) -> None:
    scale = math.sqrt(builder.hyper.hidden)
    variant = Variant(head_norms=True, output_norms=True, gelu=True, embedding_scale=scale, shrunk=_SHRUNK)
    build_decoder(builder, variant)


def _phi3(builder: GraphBuilder) -> None:
    builder.weights = JoinedWeights(builder.weights, builder.hyper)
    build_decoder(builder, Variant())


BUILDERS: Mapping[str, Callable[[GraphBuilder], None]] = {
    "llama": _plain,
    "mistral": _plain,
    "qwen2": _plain,
    "qwen3": _qwen3,
    "gemma3": _gemma3,
    "gemma3_text": _gemma3,
    "phi3": _phi3,
}
"""What puts the graph of an architecture into a builder; ModelError as :func:`.decoder.build_decoder`."""


def check_architecture(name: str, where: str, known: Collection[str]) -> None:
    """Refuse an architecture that is not one of those `known` by the names of the source's kind.

    Raises:
        ModelError: with the names of those that can be built.
    """
    if name not in known:
        raise ModelError(
            f"language models of architecture {name!r} can't be built",
            where=where,
            why=f"those that can are {', '.join(sorted(known))}",
            remedy="take a model of one of these; of another, bring an ONNX export and describe its axes as usual",
        )
