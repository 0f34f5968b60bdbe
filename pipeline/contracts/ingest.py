"""The contract of `ingest`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from pipeline.contracts.codec import Contract, NumberTree, left_out
from pipeline.contracts.language import LanguageFacts
from pipeline.contracts.values import Signature
from pipeline.frozen import dataclass


@dataclass(frozen=True)
class Params(Contract):
    """`file` is the component's name in the output of fetch; `constants` are inputs that are fixed to a value.

    `cut` are values to end at, in place of the file's own outputs, and `begin` values that become inputs.
    """

    file: str
    constants: Mapping[str, NumberTree] = field(default_factory=dict)
    cut: tuple[str, ...] = ()
    begin: tuple[str, ...] | None = left_out()


@dataclass(frozen=True)
class GivenConstant(Contract):
    """An input that became a constant: what it is declared to be, and the value as the config gives it.

    `axes` are those of its dims that have names; None if none has.
    One without elements, whose shape has a 0, has only one value; what stands for it here is of no account.
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
    """The `rows` of the smallest constant table in which an input looks rows up, and the `nodes` that do, as messages
    name them. `floats`: all tables are of floats.
    """

    rows: int
    nodes: tuple[str, ...]
    floats: bool


@dataclass(frozen=True)
class Facts(Signature):
    """Dims are sizes or names. `constants` were inputs, `axes` has the inputs that carry each, `opset` is ONNX's.

    `language` is there where it is a language model, whose output has `tokenizer.json`, too; `rounds` is the file where
    it was quantized, which rounds otherwise than the float model that was made of it. `gone` are inputs of the file
    that nothing reads in the part that the component is; `begin` is where a part does not begin with the file.
    `layers`: it has an LSTM, which takes another form where it stays in float. `tables` are of the inputs that are ids.
    """

    constants: Mapping[str, GivenConstant]
    opset: int | None
    nodes: int
    axes: Mapping[str, tuple[str, ...]]
    language: LanguageFacts | None = left_out()
    rounds: str | None = left_out()
    gone: tuple[str, ...] | None = left_out()
    begin: Begin | None = left_out()
    layers: bool | None = left_out()
    tables: Mapping[str, Table] | None = left_out()
