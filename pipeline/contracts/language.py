"""What later steps know of a language model, and the figures by which one is judged."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.contracts.codec import Contract, left_out
from pipeline.frozen import dataclass


@dataclass(frozen=True)
class Rotation(Contract):
    """A rotary embedding: `theta` as the source gives it, and the angle of each pair at position 1, in radians."""

    theta: float
    frequencies: tuple[float, ...]


@dataclass(frozen=True)
class LanguageFacts(Contract):
    """The sizes and special tokens of a language model.

    `rotations` has for each rotary embedding the suffix of the inputs that take its cosines and sines: "" and, if some
    layers have a rotation of their own, "_local". `stops` are the tokens that end an answer; `bos` begins every text if
    it is not None. `context` is the most tokens that the model was made for. `named` has the texts of the tokens that a
    chat template may call `bos_token` and `eos_token`, as far as the source names them.
    """

    architecture: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    context: int
    rotations: Mapping[str, Rotation]
    stops: tuple[int, ...] = ()
    bos: int | None = left_out()
    pad: int | None = left_out()
    named: Mapping[str, str] | None = left_out()


@dataclass(frozen=True)
class LanguageFigures(Contract):
    """How far the next-token distributions of a rung are from the original's, over `tokens` positions.

    `kl` is their mean Kullback-Leibler divergence, D(original || rung), in nats; `top1` is the share of positions at
    which both find the same token likeliest; `perplexity` is that of the text by the rung, `reference` by the original.
    None stands for what is no finite number.
    """

    tokens: int
    kl: float | None
    top1: float | None
    perplexity: float | None
    reference: float | None

    @property
    def change(self) -> float | None:
        """The difference of the perplexity from the original's, as a share of that; None if one is unknown."""
        if self.perplexity is None or not self.reference:
            return None
        return abs(self.perplexity / self.reference - 1)


@dataclass(frozen=True)
class Edge(Contract):
    """The encoding of an input or output that the graph has as integers: `real = scale * (stored - zero_point)`."""

    dtype: str
    scale: float
    zero_point: int


Edges = Mapping[str, Edge]
"""Encodings by the name of the input or output."""


@dataclass(frozen=True)
class Lengths(Contract):
    """The shape of a language model's graph: tokens that a run takes, and positions of the cache before them."""

    sequence: int
    past: int

    @property
    def total(self) -> int:
        """How many positions attention sees."""
        return self.sequence + self.past
