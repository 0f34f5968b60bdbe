"""What a choice of precision takes: bytes of weights, and work.

Bytes are known: they are shipped, and read in each run. What work takes on a chip, and what conversions between 8 and
16 bits cost there, nobody could time here. So bytes go first, unless a configuration prefers `speed`: then both count
as they take time by a chip's published figures, one after the other. A model that runs on few tokens reads its weights
for little work, and is cheaper with fewer bytes; one that convolves a picture, with fewer bits to multiply.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pipeline.contracts.precision import Prefer
from pipeline.graph.accuracy.search.sensitivity import BLOCK, Choice, Trials
from pipeline.graph.ir.index import is_op
from pipeline.graph.ir.inference import shape_of
from pipeline.graph.quantization.qdq.packed_tables import packed_bytes
from pipeline.graph.shapes.cost import macs_of, shapes_of

_LOW, _WIDE, _FLOAT = range(3)

NEGLIGIBLE = 1e-6
"""Too little to lower a group for, relative to w8a16: on a handful of numbers it only adds a conversion."""

WORK_OF_A_BYTE: Mapping[Prefer, float] = {"size": 1e5, "speed": 167.0}
"""How many products of 8 by 8 bits a byte of weights counts for. For size so many that work matters where bytes are
equal. For speed as many as a chip does while it reads one: 22.5e12 a second and 135e9 bytes, which the product brief of
Snapdragon X Elite (2023) gives as 45 TOPS and 135 GB/s; no other target publishes both."""


@dataclass(frozen=True)
class Price:
    """`work` counts products of 8 by 8 bits: 16 by 8 bits are two of them, 16 by 16 bits four.

    `share_8bit` is the share of multiply-accumulates on activations of 8 bits; a node without any counts its results.
    """

    weight_bytes: int
    work: float
    share_8bit: float


@dataclass(frozen=True)
class _Passage:
    """A value of `elements` from one group to others: a conversion for each other type that it is read in."""

    elements: int
    maker: int
    readers: frozenset[int]


class Pricing:
    """The price of every choice for one model."""

    def __init__(self, trials: Trials, prefer: Prefer) -> None:
        self._of_a_byte = WORK_OF_A_BYTE[prefer]
        index = trials.index
        self._trials = trials
        self._passages = list(_passages(trials))
        count = len(trials.groups)
        self._macs = [0] * count
        self._work = [[0.0] * count for _ in (_LOW, _WIDE, _FLOAT)]
        shapes = shapes_of(index.model)
        for node in index.model.graph.node:
            number = trials.group_of.get(node.name)
            if number is None:
                continue
            macs = macs_of(node, shapes)
            multiplies = is_op(node, "MatMul", "Gemm", "Conv", "ConvTranspose")
            by_weight = multiplies and any(name in index.initializers for name in node.input[:2])
            self._macs[number] += macs
            self._work[_LOW][number] += macs
            self._work[_WIDE][number] += macs * (4 if multiplies and not by_weight else 2)
            self._work[_FLOAT][number] += macs * (4 if multiplies else 2)
        self._reference = self.price(Choice())

    def price(self, choice: Choice) -> Price:
        """What a choice takes."""
        levels = [_level(number, choice) for number in range(len(self._macs))]
        work = sum(self._work[level][number] for number, level in enumerate(levels))
        for passage in self._passages:
            others = {levels[reader] for reader in passage.readers} - {levels[passage.maker]}
            work += 2 * passage.elements * len(others)
        low = sum(macs for macs, level in zip(self._macs, levels, strict=True) if level == _LOW)
        return Price(self._bytes(choice), work, low / sum(self._macs))

    def relative(self, choice: Choice) -> float:
        """One figure to order choices by: the work of a choice and that of its bytes, over those of w8a16."""
        price = self.price(choice)
        return self._share(price.weight_bytes, price.work)

    def is_dearer(self, price: Price, other: Price) -> bool:
        """Whether one is worth noting above another, by work alone, too: where bytes go first, that hardly counts."""
        work = price.work - other.work
        added = self._share(price.weight_bytes - other.weight_bytes, work)
        return added > NEGLIGIBLE or work > NEGLIGIBLE * self._reference.work

    def of_group(self, group: int) -> float:
        """What 16 bits in place of 8 add for a group, as :meth:`relative` counts; conversions and lookups aside."""
        trials = self._trials
        added = [name for name in trials.tables if name not in trials.lookups]
        saved = sum(size // 2 for name, size in self._constants(group) if name in added)
        return self._share(saved, self._work[_WIDE][group] - self._work[_LOW][group])

    def of_float(self, group: int) -> float:
        """What float in place of w8a16 adds for a group."""
        added = sum(2 * math.prod(self._trials.shapes[name]) - size for name, size in self._constants(group))
        return self._share(added, self._work[_FLOAT][group] - self._work[_WIDE][group])

    def of_weight(self, name: str) -> float:
        """What 8 bits in place of 4 add for a weight, or 16 in place of 8 for a table."""
        return self._share(self._trials.stored_bytes[name] // 2, 0)

    def of_packed(self, name: str) -> float:
        """What 8 bits in place of 4 add for a table."""
        packed = packed_bytes(self._trials.shapes[name], BLOCK)
        return self._share((self._trials.stored_bytes[name] + 1) // 2 - packed, 0)

    def _constants(self, group: int) -> list[tuple[str, int]]:
        return [(name, self._trials.stored_bytes[name]) for name, of in self._trials.constants.items() if of == group]

    def _share(self, added_bytes: int, work: float) -> float:
        reference = self._reference
        return (added_bytes * self._of_a_byte + work) / (reference.weight_bytes * self._of_a_byte + reference.work)

    def _bytes(self, choice: Choice) -> int:
        trials = self._trials
        total = 0
        for name, size in trials.stored_bytes.items():
            group = trials.constants.get(name)
            if group in choice.exact:
                total += 2 * math.prod(trials.shapes[name])
            elif name in choice.packed:
                total += packed_bytes(trials.shapes[name], BLOCK)
            elif name in choice.narrow or (name in trials.tables and group in choice.low):
                total += (size + 1) // 2
            else:
                total += size
        return total


def _level(group: int, choice: Choice) -> int:
    return _FLOAT if group in choice.exact else _LOW if group in choice.low else _WIDE


def _passages(trials: Trials) -> Iterator[_Passage]:
    index = trials.index
    for name, maker in index.makers.items():
        made = trials.group_of.get(maker.name)
        readers = frozenset(
            trials.group_of[node.name] for node in index.readers.get(name, []) if node.name in trials.group_of
        )
        if made is not None and readers - {made} and name in trials.values:
            yield _Passage(math.prod(shape_of(index.types[name])), made, readers)
