"""What an architecture is built from: its sizes, and weights that are read one at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from pipeline.contracts.language import Rotation
from pipeline.errors import ModelError
from pipeline.graph.files.stored_form import StoredWeight
from pipeline.graph.ir.tensor_chunks import Pieces

_LARGEST = 1 << 24
"""What no size of a model reaches."""


@dataclass(frozen=True)
class Hyper:
    """Sizes of a decoder-only transformer. `window`: most positions that some layers see; None for no such limit.

    `local` has the layers whose rotation is that of the suffix `_local`.
    """

    architecture: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    context: int
    epsilon: float
    rotations: Mapping[str, Rotation]
    window: int | None = None
    local: frozenset[int] = frozenset()

    @property
    def group(self) -> int:
        """Heads that share keys and values."""
        return self.heads // self.kv_heads


class Weights(Protocol):
    """Weights by the names that GGUF gives them, `blk.0.attn_q.weight`; matrices are [outputs, inputs]."""

    def shape(self, name: str) -> tuple[int, ...] | None:
        """The shape of a tensor; None if there is none of that name."""

    def stored(self, name: str) -> StoredWeight:
        """Where a tensor is, and in which form."""

    def pieces(self, name: str) -> Pieces:
        """The elements of a tensor as float32; of norms what they multiply by."""

    def unread(self) -> Iterable[str]:
        """The source's own names of tensors that nobody has asked for, and that may change what the model computes."""


def checked_size(found: float | None, key: str, where: str) -> int:
    """A size that a file claims, as a number; `key` is its name in the file `where`.

    Raises:
        ModelError: it is missing, or none that a model has.
    """
    if found is None or not 1 <= found <= _LARGEST or found != int(found):
        raise ModelError(
            f"{where} does not say a size of its model",
            why=f"{key!r} is {'missing, or no number' if found is None else f'{found:g}'}",
            remedy="fetch the file again; if it is whole, convert the model again",
        )
    return int(found)


def frequencies(theta: float, head_dim: int) -> tuple[float, ...]:
    """The angles of a plain rotary embedding at position 1 (https://arxiv.org/abs/2104.09864), [head_dim / 2]."""
    return tuple(float(theta ** (-2 * pair / head_dim)) for pair in range(head_dim // 2))
