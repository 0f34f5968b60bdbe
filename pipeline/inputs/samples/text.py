"""Reader `text`: makes inputs from lines of text with the model's own tokenizer or vocabulary, as applications do."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer

from pipeline.contracts.samples import Reading, TokenInputs
from pipeline.contracts.values import TensorSpec
from pipeline.errors import CalibrationError
from pipeline.inputs.samples.conform import ComputedMiddle, Interface
from pipeline.inputs.samples.lines import TextLine, read_texts
from pipeline.inputs.samples.request import Call, ReadRequest
from pipeline.inputs.samples.vocabulary import check_known, vocabulary_tokenizer
from pipeline.plain_text import did_you_mean

_Maker = Callable[[Encoding], list[int]]
_MADE: Mapping[str, _Maker] = {
    "input_ids": lambda encoding: encoding.ids,
    "attention_mask": lambda encoding: encoding.attention_mask,
    "token_type_ids": lambda encoding: encoding.type_ids,
    "position_ids": lambda encoding: list(range(len(encoding.ids))),
}
"""The inputs that come from an encoded text, by the names that Hugging Face exports give them."""

_LARGEST_TOKENIZER = 1 << 28
"""The most bytes of a tokenizer; one with a vocabulary of 256,000 tokens has some 35 million."""


def read(request: ReadRequest) -> Iterator[Call]:
    """One call for each line and component, unpadded, cut to `max_length` and the largest bucket.

    In a pair of texts, the longer one is cut. In a file of JSON lines, fields named like inputs give their values.

    Raises:
        CalibrationError: the tokenizer can't be loaded, an input can't be made from text, or a line has no tokens.
    """
    file = request.existing(request.samples, "file")
    table = request.calibration.vocabulary
    tokenizer = _load(request) if table is None else vocabulary_tokenizer(table, request.source)
    has_values = file.suffix.lower() == ".jsonl"
    made = _takers(request, has_values)
    longest = {name: _longest(name, each, made[name], has_values) for name, each in request.interfaces.items()}
    for line in read_texts(file, request.calibration.fields, request.calibration.max_samples):
        for component, interface in request.interfaces.items():
            limit = min(longest[component], request.calibration.max_length or math.inf)
            encoding = _encode(tokenizer, line, limit, request.calibration)
            arrays = {
                spec.name: _array(makes(encoding), spec, interface)
                if (makes := made[component].get(spec.name))
                else _value(line, spec)
                for spec in interface.inputs
            }
            yield request.call(component, arrays, replace(line.sample, cut=bool(encoding.overflowing)))


def _takers(request: ReadRequest, has_values: bool) -> dict[str, dict[str, _Maker]]:
    """The inputs of each component that are made from tokens: those with known names, and those that the config names.

    If there are none, the only input of whole numbers takes the ids, unless lines may give its values.
    """
    said = request.calibration.tokens_to or TokenInputs()
    named: dict[str, _Maker] = {}
    for key, name, makes in (
        ("ids", said.ids, _MADE["input_ids"]),
        ("mask", said.mask, _MADE["attention_mask"]),
        ("length", said.length, _count),
    ):
        if name is not None:
            known = {each: None for interface in request.interfaces.values() for each in interface.names}
            if name not in known:
                raise CalibrationError(
                    f"calibration.{key} names no input: {name!r}{did_you_mean(name, known)}", remedy="correct its name"
                )
            named[name] = makes
    made: dict[str, dict[str, _Maker]] = {}
    for component, interface in request.interfaces.items():
        taken = {
            spec.name: {**_MADE, **named}[spec.name] for spec in interface.inputs if spec.name in {**_MADE, **named}
        }
        whole = [
            spec.name for spec in interface.inputs if spec.dtype.startswith(("int", "uint")) and spec.name not in taken
        ]
        if said.ids is None and "input_ids" not in taken and len(whole) == 1 and not has_values:
            taken[whole[0]] = _MADE["input_ids"]
        made[component] = taken
    return made


def _count(encoding: Encoding) -> list[int]:
    return [len(encoding.ids)]


def _load(request: ReadRequest) -> Tokenizer:
    name = request.calibration.tokenizer or "tokenizer.json"
    path = request.source / name
    if not path.is_file():
        files = sorted(found.relative_to(request.source).as_posix() for found in request.source.rglob("*.json"))
        raise CalibrationError(
            f"the source has no tokenizer {name!r}{did_you_mean(name, files)}",
            remedy="set calibration.tokenizer to the model's tokenizer.json",
        )
    remedy = "name a tokenizer.json (one file, as save_pretrained of a fast tokenizer writes it)"
    if path.stat().st_size > _LARGEST_TOKENIZER:
        raise CalibrationError(
            f"{name} is too large",
            why=f"it has {path.stat().st_size} bytes; {_LARGEST_TOKENIZER} are the most that are read",
            remedy=remedy,
        )
    with _explained(partial(_no_tokenizer, name, remedy)):
        tokenizer: Tokenizer = Tokenizer.from_str(path.read_text("utf-8"))
        tokenizer.no_padding()
    return tokenizer


def _no_tokenizer(name: str, remedy: str, why: str) -> CalibrationError:
    return CalibrationError(f"{name} is not a tokenizer of the tokenizers library", why=why, remedy=remedy)


def _not_encoded(where: str, file: str, why: str) -> CalibrationError:
    return CalibrationError(
        "the tokenizer can't encode a text",
        where=where,
        why=why,
        remedy=f"check that it is the model's own {file}, and undamaged",
    )


@contextmanager
def _explained(explain: Callable[[str], CalibrationError]) -> Iterator[None]:
    """Turn what the tokenizers library raises into the error that `explain` makes of its words."""
    try:
        yield
    except BaseException as error:  # a panic of its Rust code is no Exception, and has no class to be imported
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise explain(str(error)) from error


def _value(line: TextLine, spec: TensorSpec) -> NDArray[Any]:
    """The value of an input that a line gives by name: a number, which fills it, or lists of all its elements."""
    where = line.sample.name
    try:
        value = np.asarray(line.values[spec.name])
    except KeyError:
        raise CalibrationError(
            f"the line has no field {spec.name!r}{did_you_mean(spec.name, line.values)}",
            where=where,
            why=f"the model takes {spec}, which text does not give",
            remedy="write it into every line, or under 'constants' if it never changes",
        ) from None
    except (ValueError, OverflowError) as error:
        raise CalibrationError(f"field {spec.name!r} is no array", where=where, why=str(error)) from None
    if value.dtype.kind in "iu" and spec.dtype.startswith("float"):
        value = value.astype(np.float64)
    return value.reshape([1] * len(spec.shape)) if value.ndim == 0 else value


def _encode(tokenizer: Tokenizer, line: TextLine, limit: float, reading: Reading) -> Encoding:
    where, table = line.sample.name, reading.vocabulary
    if table is not None:
        for part in filter(None, (line.text, line.pair)):
            check_known(tokenizer, part, where, table)
    with _explained(partial(_not_encoded, where, table.file if table else reading.tokenizer or "tokenizer.json")):
        tokenizer.no_truncation()
        if limit < math.inf:
            tokenizer.enable_truncation(int(limit))
        encoding = tokenizer.encode(line.text, line.pair)
    if not encoding.ids:
        raise CalibrationError(
            "a text has no tokens", where=where, why=f"it is {line.text[:60]!r}", remedy="take the line out"
        )
    if len(encoding.ids) > limit:  # the library gives up cutting where special tokens alone take all the room
        raise CalibrationError(
            f"a text can't be cut to {limit} tokens",
            where=where,
            why="the tokenizer's special tokens take up that many",
            remedy="raise calibration.max_length, or the largest bucket",
        )
    return encoding


def _longest(component: str, interface: Interface, made: Mapping[str, _Maker], has_values: bool) -> float:
    """The most tokens that the component takes. Refuses other inputs, unless samples give their values."""
    limits = []
    for spec in interface.inputs:
        if made.get(spec.name) is _count or (spec.name not in made and has_values):
            continue
        if spec.name not in made:
            arrays = "" if interface.middle is None else _arrays_of(interface.middle)
            raise CalibrationError(
                f"the text reader can't make input {str(spec)!r}",
                where=f"component {component!r}",
                why=f"text gives {', '.join(_MADE)}",
                remedy=f"{arrays}name it under calibration.ids, mask or length if it takes that;"
                " or write its values into a file of JSON lines (file: samples.jsonl), under its name; or make"
                " samples yourself: {reader: python, run: 'calibration/<file>.py:<function>'},"
                " or reader: record for a model of several components",
            )
        limits.append(_size(spec.shape[_token_dim(spec, interface)], interface))
    return min(limits, default=math.inf)


def _arrays_of(middle: ComputedMiddle) -> str:
    return f"give arrays for {', '.join(middle.inputs)} with reader: npz, of which the file computes this; or "


def _token_dim(spec: TensorSpec, interface: Interface) -> int:
    """The position of the one dim that is not of size 1."""
    free = [position for position, dim in enumerate(spec.shape) if _size(dim, interface) != 1]
    if len(free) != 1:
        raise CalibrationError(
            f"the text reader can't tell which dim of input {str(spec)!r} counts tokens",
            why=f"{'none' if not free else 'more than one'} of its dims can be other than 1 with this config",
            remedy="put the token axis, and it alone, under 'buckets', and fix the others to 1; for a larger batch,"
            " make the samples yourself with reader: python",
        )
    return free[0]


def _size(dim: int | str | None, interface: Interface) -> float:
    if dim is None:
        return math.inf
    return dim if isinstance(dim, int) else interface.longest(dim)


def _array(given: list[int], spec: TensorSpec, interface: Interface) -> NDArray[Any]:
    # Some exports take the mask as float; which width is up to the check.
    values = np.array(given, np.float32 if spec.dtype.startswith("float") else np.int64)
    if all(_size(dim, interface) == 1 for dim in spec.shape):  # a number of tokens
        return values.reshape([1] * len(spec.shape))
    position = _token_dim(spec, interface)
    dim = spec.shape[position]
    if isinstance(dim, int):  # the model itself has one length only
        values = np.pad(values, (0, dim - values.size))
    shape = [1] * len(spec.shape)
    shape[position] = values.size
    return values.reshape(shape)
