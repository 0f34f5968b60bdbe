"""The reference loop: a language model's graphs run over tokens and their own cache, as an application would.

A graph takes AR tokens at a time after a cache of P positions. What is known is at the right end of the cache, unknown
positions in front of it are masked. A window that is not full has its tokens at the front and padding behind them,
which no token sees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.contracts.language import Edges, LanguageFacts, Lengths
from pipeline.graph.language.builder import MASKED
from pipeline.graph.language.names import IDS

Arrays = Mapping[str, NDArray[Any]]
Floats = NDArray[np.float32]
Run = Callable[[Arrays], Arrays]
"""Runs one graph: all inputs by name to all outputs by name."""


class Cache:
    """Keys and values of the positions so far, at most `past` of them, for each layer as its graph takes them.

    Keys are [kv_heads, 1, head_dim, past], values [kv_heads, 1, past, head_dim], of whatever type the graph has.
    """

    def __init__(self, facts: LanguageFacts, past: int, edges: Edges | None = None) -> None:
        self.known = 0
        self.past = past
        self._facts = facts
        self.arrays: dict[str, NDArray[Any]] = {}
        for layer in range(facts.layers):
            for kind, shape in (
                ("key", (facts.kv_heads, 1, facts.head_dim, past)),
                ("value", (facts.kv_heads, 1, past, facts.head_dim)),
            ):
                name = f"past_{kind}_{layer}_in"
                edge = (edges or {}).get(name)
                filler, dtype = (edge.zero_point, edge.dtype) if edge else (0, "float32")
                self.arrays[name] = np.full(shape, filler, dtype)

    def grow(self, made: Arrays, count: int) -> None:
        """Take in the first `count` positions that a run made; the oldest give way."""
        for name, array in self.arrays.items():
            new = made[f"{name.removesuffix('_in')}_out"]
            axis = 3 if "_key_" in name else 2
            kept = np.take(new, range(count), axis)
            joined = np.concatenate([array, kept.astype(array.dtype)], axis)
            self.arrays[name] = np.take(joined, range(joined.shape[axis] - self.past, joined.shape[axis]), axis)
        self.known = min(self.known + count, self.past)

    def of(self, past: int) -> Cache:
        """The same for a graph with another number of positions; what doesn't fit is forgotten."""
        other = Cache.__new__(Cache)
        other.past, other._facts, other.known = past, self._facts, min(self.known, past)
        other.arrays = {}
        for name, array in self.arrays.items():
            axis = 3 if "_key_" in name else 2
            if past <= self.past:
                other.arrays[name] = np.take(array, range(self.past - past, self.past), axis)
            else:
                widths = [(0, 0)] * 4
                widths[axis] = (past - self.past, 0)
                # What fills it is masked; zero in the encoding of a symmetric cache is in the middle.
                filler = 128 if array.dtype == np.uint8 else 0
                other.arrays[name] = np.pad(array, widths, constant_values=filler)
        return other


def feeds(
    facts: LanguageFacts, lengths: Lengths, tokens: Sequence[int], position: int, cache: Cache, edges: Edges | None
) -> dict[str, NDArray[Any]]:
    """The inputs of a run over `tokens`, at most `lengths.sequence`, the first of which stands at `position`."""
    count, width = len(tokens), lengths.sequence
    ids = np.full((1, width), facts.pad or 0, np.int32)
    ids[0, :count] = tokens
    mask = np.full((1, 1, width, lengths.total), MASKED, np.float32)
    mask[..., lengths.past - cache.known : lengths.past] = 0
    ahead = np.arange(width)[:, None] >= np.arange(width)[None, :]
    mask[0, 0, :, lengths.past :][ahead] = 0
    given: dict[str, NDArray[Any]] = {IDS: ids, "attention_mask": mask, **cache.arrays}
    positions = position + np.arange(width)
    for suffix, rotation in facts.rotations.items():
        angles = np.outer(positions, np.array(rotation.frequencies))[None, None]
        given[f"position_ids_cos{suffix}"] = np.cos(angles).astype(np.float32)
        given[f"position_ids_sin{suffix}"] = np.sin(angles).astype(np.float32)
    return {name: stored(array, edges, name) for name, array in given.items()}


def stored(array: NDArray[Any], edges: Edges | None, name: str) -> NDArray[Any]:
    """A float input as the integers that the graph takes, where it takes integers."""
    edge = (edges or {}).get(name)
    if edge is None or array.dtype != np.float32:
        return array
    limits = np.iinfo(edge.dtype)
    near = np.clip(np.rint(array / np.float32(edge.scale)) + edge.zero_point, limits.min, limits.max)
    return np.asarray(near.astype(edge.dtype))


class Walk:
    """One text through one or two graphs, each run on the cache of those before it."""

    def __init__(self, facts: LanguageFacts, past: int, edges: Edges | None = None) -> None:
        self.position = 0
        self.cache = Cache(facts, past, edges)
        self._facts = facts
        self._edges = edges

    def feed(self, lengths: Lengths, tokens: Sequence[int]) -> dict[str, NDArray[Any]]:
        """The inputs of the next run."""
        if self.cache.past != lengths.past:
            self.cache = self.cache.of(lengths.past)
        return feeds(self._facts, lengths, tokens, self.position, self.cache, self._edges)

    def took(self, tokens: Sequence[int], made: Arrays) -> Floats:
        """Take in what the run made; the logits of its tokens, float32 [tokens, vocabulary]."""
        self.went(len(tokens), made)
        return np.asarray(made["logits"], np.float32)[0, : len(tokens)]

    def went(self, count: int, made: Arrays) -> None:
        """Take in the keys and values of the first `count` positions that the run made."""
        self.cache.grow(made, count)
        self.position += count

    def run(self, run: Run, lengths: Lengths, tokens: Sequence[int]) -> Iterator[Floats]:
        """The logits of all tokens, as many at a time as the graph takes."""
        for start in range(0, len(tokens), lengths.sequence):
            window = tokens[start : start + lengths.sequence]
            yield self.took(window, run(self.feed(lengths, window)))
