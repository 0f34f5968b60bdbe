"""The contract of `quantize`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from pipeline.contracts.codec import Contract, left_out
from pipeline.contracts.forecast import Forecast
from pipeline.contracts.language import Edges
from pipeline.contracts.measures import OverBuckets
from pipeline.contracts.scheme import Scheme
from pipeline.contracts.values import Signature
from pipeline.frozen import dataclass

UNCHANGED = "unchanged"
"""The fact of :class:`Facts` by which a plan knows what came out in float."""


@dataclass(frozen=True, kw_only=True)
class Params(OverBuckets):
    """`scheme` is None where a search finds it. `on_host`: a language model's graphs take rows of a table on it."""

    scheme: Scheme | None
    on_host: bool | None = left_out()


FLOAT16 = "float16"
"""The type by which constants are counted that stay in float, as HTP has them."""


@dataclass(frozen=True)
class ConstantCount(Contract):
    """How many constants are stored in a type, and their bytes."""

    tensors: int
    bytes: int


@dataclass(frozen=True)
class PartFacts(Signature):
    """`nodes` without Q and DQ; `float_nodes` still compute in float; `constants` by type.

    `forecasts` is what HTP will compute wrongly. `edges` are inputs and outputs that the graph has as integers.
    """

    scheme: str
    nodes: int
    float_nodes: tuple[str, ...]
    constants: Mapping[str, ConstantCount]
    forecasts: tuple[Forecast, ...]
    edges: Edges = field(default_factory=dict)

    @property
    def constant_bytes(self) -> int:
        """The bytes of all constants."""
        return sum(count.bytes for count in self.constants.values())


@dataclass(frozen=True)
class Part(Contract):
    """What was made for a bucket: the step's files by the names that readers know them by, and facts."""

    files: Mapping[str, str]
    facts: PartFacts


@dataclass(frozen=True)
class Facts(Contract):
    """The name of the `scheme`, and what was made for each bucket.

    `unchanged`: all is in float, and every model has the nodes of the rewritten one; None if not.
    """

    scheme: str
    parts: Mapping[str, Part]
    unchanged: bool | None = left_out()
