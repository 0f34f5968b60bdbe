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
"""The program that makes context binaries: QNN's execution provider, or the tools of the QAIRT SDK."""


@dataclass(frozen=True, kw_only=True)
class Params(OverBuckets):
    """`compile` is "device" if contexts must be compiled on a device. The plan then picks the host.

    It is a parameter so that the step has another key than one on another host. `parts`, set for language models only,
    is the number of parts that the layers are split into; 0 stands for as few as can hold the weights. `compiler` is
    None for that of onnxruntime-qnn.
    """

    form: Form
    targets: tuple[HtpTarget, ...]
    compile: Literal["device"] | None = left_out()
    parts: int | None = left_out()
    compiler: Compiler | None = left_out()


@dataclass(frozen=True)
class CpuNode(Contract):
    """A node that QNN left to the CPU. `reason` is in QNN's words, "" if it gave none.

    `edge` says that the node belongs on the CPU: it only converts an input or output of the graph, from or to its
    encoding or a type that HTP lacks.
    """

    name: str
    op: str
    reason: str
    edge: bool = False


@dataclass(frozen=True, kw_only=True)
class CompiledModel(Contract):
    """A context model and its binaries as they are on disk, after all checks.

    A model that was split by layers has a binary for each part, in order; `cuts` are the values between them. `targets`
    are read from the binaries. `partitions` counts the parts of the graph that run on QNN. `compatibility` is the
    string by which ONNX Runtime decides whether a device can load the context, see
    :class:`pipeline.qnn.format.context_model.Compatibility`. `work` is a digest of what a context for one target
    computes: contexts for two targets with equal digests compute the same.
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
        """The nodes that run on the CPU, without conversions at the graph's edge."""
        return tuple(node for node in self.cpu_nodes if not node.edge)

    @property
    def refused(self) -> tuple[str, ...]:
        """The names of fallback nodes that compute, without the conversions around them, which only stay with them."""
        return tuple(node.name for node in self.fallbacks if node.op not in ("QuantizeLinear", "DequantizeLinear"))


@dataclass(frozen=True, kw_only=True)
class PartFacts(CompiledModel):
    """What was compiled for a bucket, whose `axes` have their sizes by name."""

    bucket: str
    axes: Mapping[str, int]


@dataclass(frozen=True)
class Part(Contract):
    """What was made for a bucket: `files` of the step, each by the name that readers know it by, and facts."""

    files: Mapping[str, str]
    facts: PartFacts

    @classmethod
    def of(cls, made: CompiledModel, bucket: str, axes: Mapping[str, int]) -> Part:
        """The part for a bucket whose files are already named as its readers know them."""
        facts = PartFacts.from_json({**made.to_json(), "bucket": bucket, "axes": {**axes}})
        return cls({name: name for name in (made.context_model, *made.binaries)}, facts)


@dataclass(frozen=True)
class Facts(Contract):
    """The `form` of the binaries, and what was made for each bucket: nothing if `packing` chose another form."""

    form: Form
    parts: Mapping[str, Part]
