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
"""The name of the field of :class:`Facts` by which a plan knows that a component came out in float."""


@dataclass(frozen=True, kw_only=True)
class Params(OverBuckets):
    """`scheme` is None if `precision` finds it.

    `on_host` says that the host looks up a language model's token embeddings, and graphs take these as an input.
    """

    scheme: Scheme | None
    on_host: bool | None = left_out()


FLOAT16 = "float16"
"""The type under which constants that stay in float are counted, as HTP stores them in it."""


@dataclass(frozen=True)
class ConstantCount(Contract):
    """How many constants are stored in one type, and their bytes."""

    tensors: int
    bytes: int


@dataclass(frozen=True)
class PartFacts(Signature):
    """The figures of a bucket's QDQ model. `nodes` counts nodes without QuantizeLinear and DequantizeLinear.

    `float_nodes` are those that still compute in float. `constants` are counted by type. `forecasts` is what HTP will
    compute wrongly. `edges` has the encodings of inputs and outputs that the graph has as integers.
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
    """What was made for a bucket: `files` of the step, each by the name that readers know it by, and facts."""

    files: Mapping[str, str]
    facts: PartFacts


@dataclass(frozen=True)
class Facts(Contract):
    """The name of the `scheme`, and what was made for each bucket.

    `unchanged` says that all is in float and every model has the nodes of the rewritten one; None if not.
    """

    scheme: str
    parts: Mapping[str, Part]
    unchanged: bool | None = left_out()
