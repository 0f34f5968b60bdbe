"""The contract of `converse`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from pipeline.contracts.codec import Contract, left_out
from pipeline.contracts.measures import Buckets, OverBuckets, SamplePart
from pipeline.contracts.target import HtpTarget
from pipeline.frozen import dataclass


@dataclass(frozen=True, kw_only=True)
class Params(OverBuckets):
    """`twins` are the small graphs that answer, in the order of `buckets`. `most_seconds` limits what is emulated."""

    target: HtpTarget
    twins: Buckets
    part: SamplePart
    most_seconds: int


@dataclass(frozen=True, kw_only=True)
class Spoken(Contract):
    """What one engine showed on the emulator.

    `opened`: it opened the contexts of the shipped shapes (their unshared form, where the shipped ones share a binary).
    `tokens` are those that followed the prompt; `texts` are how many conversations its own tokenizer split as the
    model's does, of how many, where it has one. `refused` is what it said where it did not do what it was asked.
    """

    version: str
    opened: bool = False
    tokens: tuple[int, ...] = ()
    texts: tuple[int, int] | None = left_out()
    refused: str | None = left_out()


@dataclass(frozen=True, kw_only=True)
class Facts(Contract):
    """`prompt` tokens were given to graphs of the axes `twin`; `expected` is what the reference loop made of them.

    `twin` says it where the weights are other than the shipped ones, `emulated` whether the loop ran on the emulator,
    as it does where an engine says something else than the loop on the CPU.

    `differences` are between a shared binary and its unshared form, in sentences; None where none is shared. `unasked`
    says of an engine, or of the loop, why it was not asked.
    """

    prompt: int
    twin: str
    expected: tuple[int, ...]
    emulated: bool = False
    engines: Mapping[str, Spoken]
    differences: tuple[str, ...] | None = left_out()
    unasked: Mapping[str, str] = field(default_factory=dict)
