"""How a component is quantized, as values: types for all of it, and rules for places where it differs.

Imports neither onnx nor numpy, so that a configuration can be judged before any work starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Final

from pipeline.contracts.codec import Contract
from pipeline.frozen import dataclass

ACTIVATIONS: Final = ("uint8", "uint16")
"""Types an activation may be stored in."""
WEIGHTS: Final = ("uint8", "int8", "int4", "int16")
"""Types a constant weight may be stored in; int4 only where HTP takes it, else 8 bits; int16 from HTP v73 on."""
FP16: Final = "fp16"
"""The precision of nodes that stay in float, which HTP computes in 16 bits."""


def bits(kind: str) -> int:
    """The width of a type: 4 for ``int4``."""
    return int(kind.lstrip("uint"))


@dataclass(frozen=True)
class Rule(Contract):
    """What differs at some places of a graph, which are named by exactly one of `ops`, `nodes` and `tensors`."""

    ops: tuple[str, ...] = ()
    """Operators, such as ``Softmax``."""
    nodes: tuple[str, ...] = ()
    """Names of nodes, with ``*`` and ``?``."""
    tensors: tuple[str, ...] = ()
    """Names of values, with ``*`` and ``?``; what is set then holds for the encoding of these alone."""
    activations: str | None = None
    """Type the nodes compute in: of their float inputs and outputs."""
    weights: str | None = None
    """Type of the nodes' constant weights."""
    per_channel: bool | None = None
    """Whether those weights get a scale for each output channel."""
    precision: str | None = None
    """``fp16``: the nodes stay in float."""

    @property
    def places(self) -> tuple[str, ...]:
        """What the rule names: operators, nodes or values."""
        return self.ops or self.nodes or self.tensors

    @property
    def kind(self) -> str:
        """``ops``, ``nodes`` or ``tensors``."""
        return "ops" if self.ops else "nodes" if self.nodes else "tensors"

    def matches_node(self, op_type: str, name: str) -> bool:
        """Whether the rule is about a node of this operator and name. Letter case counts."""
        return op_type in self.ops or _matches(name, self.nodes)

    def matches_tensor(self, name: str) -> bool:
        """Whether the rule is about a value of this name."""
        return _matches(name, self.tensors)


@dataclass(frozen=True)
class Scheme(Contract):
    """Types of activations (uint8, uint16) and weights (uint8, int8, int4), scales per channel, and exceptions."""

    activations: str
    weights: str
    per_channel: bool
    wide_products: bool = False
    """Whether 16 bit activations may be multiplied with each other at full width: HTP does so from v73 on."""
    overrides: tuple[Rule, ...] = ()
    """Where rules meet, the later one wins, key by key."""

    @property
    def name(self) -> str:
        """The short name people use: ``w8a16``; with rules, ``w8a16 mixed``; with all of it in float, ``fp16``."""
        if self.overrides == (Rule(nodes=("*",), precision=FP16),):
            return FP16
        short = f"w{bits(self.weights)}a{bits(self.activations)}"
        return f"{short} mixed" if self.overrides else short

    def with_rules(self, rules: Sequence[Rule]) -> Scheme:
        """The same scheme with more rules, which win over those it has."""
        return replace(self, overrides=(*self.overrides, *rules))


def _matches(name: str, globs: Sequence[str]) -> bool:
    """A bracket stands for itself, unlike in fnmatch: exporters write them in names."""
    return any(fnmatchcase(name, glob.replace("[", "[[]")) for glob in globs)
