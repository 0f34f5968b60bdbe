"""Weights of a source that has some matrices in one: those of queries, keys and values, or of gate and product.

    blk.0.attn_qkv.weight  [(heads + 2 kv_heads) head_dim, hidden]  ->  attn_q, attn_k, attn_v
    blk.0.ffn_up.weight    [2 inner, hidden]                        ->  ffn_gate, ffn_up

Each is a few rows of what is stored, and stays where it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from pipeline.graph.files.stored_form import StoredWeight
from pipeline.graph.ir.tensor_chunks import Pieces
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
