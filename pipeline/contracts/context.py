"""The contract of `context`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pipeline.contracts.codec import Contract, left_out
from pipeline.contracts.cost import CostFacts
from pipeline.contracts.measures import OverBuckets
from pipeline.contracts.packing import Form
from pipeline.contracts.target import HtpTarget
from pipeline.contracts.values import TensorSpec
from pipeline.frozen import dataclass

Compiler = Literal["onnxruntime-qnn", "qairt"]
"""What makes context binaries: QNN's execution provider, or the tools of the QAIRT SDK on a host that has it."""


@dataclass(frozen=True, kw_only=True)
class Params(OverBuckets):
    """`compile: device` says that contexts are compiled on the device.

    The plan sees to that; it is in the key, so that those of another host are not taken for them. `parts` is there for
    a language model: into how many it is split by layers; 0 is as few as hold its weights. `compiler` is there where
    it is not that of onnxruntime-qnn.
    """

    form: Form
    targets: tuple[HtpTarget, ...]
    compile: Literal["device"] | None = left_out()
    parts: int | None = left_out()
    compiler: Compiler | None = left_out()


@dataclass(frozen=True)
class CpuNode(Contract):
    """A node that QNN left to the CPU, and why, in QNN's words; the reason is empty where it gave none.

    `edge`: it converts an input or output of the graph from or to its encoding, or a type that HTP has not, which is
    meant to happen there.
    """

    name: str
    op: str
    reason: str
    edge: bool = False


@dataclass(frozen=True, kw_only=True)
class CompiledModel(Contract):
    """A context model and its binaries as they are on disk, after all checks.

    A model that was split by layers has a binary for each part, in order; `cuts` are the values between them. The
    figures of `targets` are the binaries' own. `compatibility` is the string by which ONNX Runtime decides whether
    a device can load the context, see :class:`pipeline.qnn.format.context_model.Compatibility`. `work` is a digest of
    what a context for one target computes: that of another target with the same digest computes the same.
    """

    context_model: str
    binaries: tuple[str, ...]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    partitions: int
    cpu_nodes: tuple[CpuNode, ...]
    targets: tuple[HtpTarget, ...]
    sdk: str
    compatibility: str
    cost: CostFacts
    cuts: tuple[str, ...] | None = left_out()
    work: str | None = left_out()

    @property
    def fallbacks(self) -> tuple[CpuNode, ...]:
        """The nodes that run on the CPU, conversions at the graph's edge not counted."""
        return tuple(node for node in self.cpu_nodes if not node.edge)

    @property
    def refused(self) -> tuple[str, ...]:
        """The names of those that compute: the conversions around such a node stay with it."""
        return tuple(node.name for node in self.fallbacks if node.op not in ("QuantizeLinear", "DequantizeLinear"))


@dataclass(frozen=True, kw_only=True)
class PartFacts(CompiledModel):
    """What was compiled for a bucket."""

    bucket: str
    axes: Mapping[str, int]


@dataclass(frozen=True)
class Part(Contract):
    """What was made for a bucket: the step's files, and facts."""

    files: Mapping[str, str]
    facts: PartFacts

    @classmethod
    def of(cls, made: CompiledModel, bucket: str, axes: Mapping[str, int]) -> Part:
        """What was compiled for a bucket, in files of its own names."""
        facts = PartFacts.from_json({**made.to_json(), "bucket": bucket, "axes": {**axes}})
        return cls({name: name for name in (made.context_model, *made.binaries)}, facts)


@dataclass(frozen=True)
class Facts(Contract):
    """The `form` of the binaries, and what was made for each bucket: nothing where another form was chosen."""

    form: Form
    parts: Mapping[str, Part]
