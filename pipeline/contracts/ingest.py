"""The contract of `ingest`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Literal

from pipeline.contracts.codec import Contract, NumberTree, left_out
from pipeline.contracts.language import LanguageFacts
from pipeline.contracts.values import Signature
from pipeline.frozen import dataclass


@dataclass(frozen=True)
class SpeechPart(Contract):
    """The part of a speech model that a component is; the decoder remembers `tokens` tokens, with that of the run."""

    part: Literal["encoder", "decoder"]
    tokens: int


@dataclass(frozen=True)
class Params(Contract):
    """`file` is the component's graph file in the output of `fetch`; `constants` are inputs that get a fixed value.

    `cut` has the values that become the outputs in place of the file's own, `begin` those that become inputs.
    """

    file: str
    constants: Mapping[str, NumberTree] = field(default_factory=dict)
    cut: tuple[str, ...] = ()
    begin: tuple[str, ...] | None = left_out()
    speech: SpeechPart | None = left_out()


@dataclass(frozen=True)
class GivenConstant(Contract):
    """An input that became a constant: what it is declared to be, and the value as the config gives it.

    `axes` are the names of its dims that have one; None if none has. If the shape has a 0, there are no elements and
    `value` does not matter.
    """

    dtype: str
    shape: tuple[int, ...]
    value: NumberTree
    axes: tuple[str, ...] | None = left_out()


@dataclass(frozen=True)
class Begin(Contract):
    """The values in the middle of the source's `file` that a component begins at; `constants` fix the file's inputs."""

    file: str
    values: tuple[str, ...]
    constants: Mapping[str, GivenConstant]


@dataclass(frozen=True)
class Table(Contract):
    """The constant tables in which an input looks up rows: `rows` is the number of rows of the smallest.

    `nodes` are those that look up, as messages name them. `floats` says whether all tables are of floats.
    """

    rows: int
    nodes: tuple[str, ...]
    floats: bool


@dataclass(frozen=True)
class Facts(Signature):
    """The signature, with dims that are sizes or names, and what later steps ask about a component.

    `constants` were inputs. `opset` is the version of ONNX's operators. `axes` has for each axis the inputs with it.
    `language` is set for a language model, for which the step also writes `tokenizer.json`. `gone` are inputs of the
    file that nothing reads in the component's part of it. `begin` is set for a component that begins in the middle of
    the file. `layers` says whether there is an LSTM, which is rewritten in another way if the component stays in float.
    `tables` has an entry for each input that holds ids.
    """

    constants: Mapping[str, GivenConstant]
    opset: int | None
    nodes: int
    axes: Mapping[str, tuple[str, ...]]
    language: LanguageFacts | None = left_out()
    gone: tuple[str, ...] | None = left_out()
    begin: Begin | None = left_out()
    layers: bool | None = left_out()
    tables: Mapping[str, Table] | None = left_out()
