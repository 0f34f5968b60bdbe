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
    """`twins` are the small graphs that answer in place of `buckets`, in their order.

    `most_seconds` limits the emulation.
    """

    target: HtpTarget
    twins: Buckets
    part: SamplePart
    most_seconds: int


@dataclass(frozen=True, kw_only=True)
class Spoken(Contract):
    """What one engine did on the emulator.

    `opened` says whether it opened the contexts of the shipped shapes, or their unshared form if the shipped ones share
    a binary. `tokens` are those that it put after the prompt. `texts`, if the engine has a tokenizer of its own, is how
    many conversations this splits as the model's does, and of how many. `refused` is what it said if it failed.
    """

    version: str
    opened: bool = False
    tokens: tuple[int, ...] = ()
    texts: tuple[int, int] | None = left_out()
    refused: str | None = left_out()


@dataclass(frozen=True, kw_only=True)
class Facts(Contract):
    """A prompt of `prompt` tokens was given to graphs whose axes `twin` spells; the reference loop gave `expected`.

    `twin` also says so if the weights are not the shipped ones. `emulated` says whether the loop ran on the emulator,
    which is done if an engine gives other tokens than the loop on the CPU.

    `differences` are sentences about a shared binary and its unshared form; None if no binary is shared. `unasked` has
    the reason for each engine, or the loop, that was not asked.
    """

    prompt: int
    twin: str
    expected: tuple[int, ...]
    emulated: bool = False
    engines: Mapping[str, Spoken]
    differences: tuple[str, ...] | None = left_out()
    unasked: Mapping[str, str] = field(default_factory=dict)
