"""How a component is quantized: types for all of it, and rules for places that differ.

Imports neither onnx nor numpy, so that a configuration can be judged before any work starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Final, Literal

from pipeline.contracts.codec import Contract, left_out
from pipeline.frozen import dataclass

BLOCKS: Final = (16, 32, 64)
"""The sizes of blocks: how many inputs of a weight may share a scale."""
Rounding = Literal["nearest", "gptq"]
Clip = Literal["none", "mse", "hessian"]
ROOM: Final = 0.25
"""How much further 16 bit encodings reach than calibration saw: a share of that range, at each end that isn't zero."""
FP16: Final = "fp16"
"""The precision of nodes that stay in float, which HTP computes in 16 bits."""


def bits(kind: str) -> int:
    """The width of a type: 4 for ``int4``."""
    return int(kind.lstrip("uint"))


@dataclass(frozen=True)
class Rule(Contract):
    """What differs at some places of a graph. Exactly one of `ops`, `nodes` and `tensors` names the places."""

    ops: tuple[str, ...] = ()
    """Operators, such as ``Softmax``."""
    nodes: tuple[str, ...] = ()
    """Names of nodes, with ``*`` and ``?``."""
    tensors: tuple[str, ...] = ()
    """Names of values, with ``*`` and ``?``; what is set then holds for the encoding of these alone."""
    activations: str | None = None
    """Type that the nodes compute in: the type of their float inputs and outputs."""
    weights: str | None = None
    """Type of the nodes' constant weights."""
    block: int | None = left_out()
    """With `weights`: how many inputs share a scale; None for all of a channel."""
    per_channel: bool | None = None
    """Whether those weights get a scale for each output channel."""
    precision: str | None = None
    """``fp16``: the nodes stay in float."""

    @property
    def places(self) -> tuple[str, ...]:
        """The operators, nodes or values that the rule names."""
        return self.ops or self.nodes or self.tensors

    @property
    def kind(self) -> str:
        """``ops``, ``nodes`` or ``tensors``."""
        return "ops" if self.ops else "nodes" if self.nodes else "tensors"

    def matches_node(self, op_type: str, name: str) -> bool:
        """Whether the rule is about a node of this operator and name. Upper and lower case differ."""
        return op_type in self.ops or _matches(name, self.nodes)

    def matches_tensor(self, name: str) -> bool:
        """Whether the rule is about a value of this name."""
        return _matches(name, self.tensors)


@dataclass(frozen=True)
class Scheme(Contract):
    """Types of activations (uint8, uint16) and weights (uint8, int8, int4, int16), their scales, and exceptions."""

    activations: str
    weights: str
    per_channel: bool
    wide_products: bool = False
    """Whether 16 bit activations may be multiplied with each other at full width: HTP does so from v73 on."""
    overrides: tuple[Rule, ...] = ()
    """Where rules meet, the later one wins, key by key; a rule's `weights` and `block` go together."""
    block: int | None = left_out()
    """How many inputs of a weight share a scale, if its operator takes blocks; None for all of a channel."""
    rounding: Rounding = "nearest"
    """How weights are rounded: ``gptq`` makes up for the errors of some by others, going by calibration samples."""
    clip: Clip = "mse"
    """How scales of weights are chosen: to hold all values (``none``), for the least squared error (``mse``), or for
    the least squared error with each input weighted by its size in calibration samples (``hessian``)."""
    states: str | None = left_out()
    """Type of a state that a run hands to the next one, from output `<name>_out` to input `<name>_in`. Both, and values
    between them that are only moved, have one symmetric encoding, and the graph takes and gives integers. With None,
    states are encoded as any other value."""

    room: float | None = left_out()
    """A share in place of :data:`ROOM`, for models whose other samples go further beyond calibration."""

    @property
    def name(self) -> str:
        """The usual short name: ``w8a16``, ``w4a16 in blocks of 32``, with rules ``w8a16 mixed``, in float ``fp16``."""
        if self.overrides == (Rule(nodes=("*",), precision=FP16),):
            return FP16
        short = f"w{bits(self.weights)}a{bits(self.activations)}"
        short += f" in blocks of {self.block}" if self.block else ""
        return f"{short} mixed" if self.overrides else short

    def with_rules(self, rules: Sequence[Rule]) -> Scheme:
        """The same scheme with more rules, which win over those it has."""
        return replace(self, overrides=(*self.overrides, *rules))


def _matches(name: str, globs: Sequence[str]) -> bool:
    """Whether a name matches one of the globs. Unlike in fnmatch, brackets mean themselves: exporters write them."""
    return any(fnmatchcase(name, glob.replace("[", "[[]")) for glob in globs)
