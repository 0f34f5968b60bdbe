"""Axes: the named dims of a model's inputs, and the values a bucket gives them.

A dim may be an expression over axes, as exporters write them (``past + sequence``, ``2*text_length``). A dim without a
name goes by its place, ``pixel_values[2]``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction

from onnx import ModelProto, TensorShapeProto

from pipeline.errors import ConfigError
from pipeline.plain_text import did_you_mean

# A hyphen between letters belongs to a name (seq-len); exporters put spaces around their minus signs.
_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d{1,18})(?!\w)|(?P<name>[A-Za-z_$](?:[\w.:$]|-(?=[A-Za-z]))*)|(?P<sign>//|[-+*/(),]))"
)
_FUNCTIONS: Mapping[str, Callable[[Sequence[Fraction]], Fraction]] = {
    "floor": lambda values: Fraction(math.floor(values[0])),
    "ceil": lambda values: Fraction(math.ceil(values[0])),
    "ceiling": lambda values: Fraction(math.ceil(values[0])),
    "max": max,
    "min": min,
}
_DEEPEST = 50
_LONGEST = 300


class DimError(ValueError):
    """A dim expression has no value for these axes; the text says why."""


def axis_names(dim: str) -> tuple[str, ...]:
    """The axes a dim is made of: those of an expression, or the text itself if it isn't one.

    >>> axis_names("past + sequence"), axis_names("batch"), axis_names("seq-len!")
    (('past', 'sequence'), ('batch',), ('seq-len!',))
    """
    try:
        parser = _Parser(dim, None)
        parser.value()
    except _NotAnExpressionError:
        return (dim,)
    return tuple(dict.fromkeys(parser.names))


def dim_size(dim: str, axes: Mapping[str, int]) -> int:
    """The size of a dim, an axis name or an expression of axes.

    Raises:
        DimError: an axis has no value, or the result is no positive whole number.
    """
    if dim in axes:
        return axes[dim]
    missing = [name for name in axis_names(dim) if name not in axes]
    if missing:
        raise DimError(f"{missing[0]} has no value")
    try:
        size = _Parser(dim, axes).value()
    except ZeroDivisionError:
        raise DimError("it divides by zero") from None
    if size.denominator != 1 or size < 1:
        raise DimError(f"it comes to {size}")
    return int(size)


def name_dims(model: ModelProto) -> None:
    """Give every input dim without a name or a size its place as a name: ``pixel_values[2]``."""
    for value in model.graph.input:
        for position, dim in enumerate(value.type.tensor_type.shape.dim):
            named = dim.HasField("dim_param") and any(char.isalpha() for char in dim.dim_param)
            if not named and (dim.dim_value < 0 or not dim.HasField("dim_value")):
                dim.dim_param = f"{value.name}[{position}]"


def model_axes(model: ModelProto) -> dict[str, list[str]]:
    """Each axis of the model's inputs, and the inputs that carry it, in the model's order."""
    carriers: dict[str, list[str]] = {}
    for value in model.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            for axis in _dim_axes(dim):
                if value.name not in carriers.setdefault(axis, []):
                    carriers[axis].append(value.name)
    return carriers


def fix_inputs(model: ModelProto, axes: Mapping[str, int]) -> None:
    """Replace every dim of the inputs by its size. Axes that the model doesn't have are left aside.

    Raises:
        ConfigError: an axis has no value, or a dim that is an expression has no size for these values.
    """
    carriers = model_axes(model)
    unfixed = [axis for axis in carriers if axis not in axes]
    if unfixed:
        raise _nobody_fixed({axis: carriers[axis] for axis in unfixed}, axes, carriers)
    for value in model.graph.input:
        for position, dim in enumerate(value.type.tensor_type.shape.dim):
            if not dim.HasField("dim_param"):
                continue
            try:
                dim.dim_value = dim_size(dim.dim_param, axes)
            except DimError as error:
                raise ConfigError(
                    f"dim {position} of input {value.name!r} has no size: {dim.dim_param!r}",
                    where=", ".join(f"{axis} = {axes[axis]}" for axis in axis_names(dim.dim_param)),
                    why=str(error),
                    remedy="choose axis values for which it is a positive whole number",
                ) from None


def _dim_axes(dim: TensorShapeProto.Dimension) -> tuple[str, ...]:
    return axis_names(dim.dim_param) if dim.HasField("dim_param") else ()


def _nobody_fixed(unfixed: Mapping[str, Iterable[str]], axes: Mapping[str, int], known: Iterable[str]) -> ConfigError:
    listed = ", ".join(f"{axis!r} (of {', '.join(map(repr, inputs))})" for axis, inputs in unfixed.items())
    strangers = [axis for axis in axes if axis not in set(known)]
    meant = "".join(f"; {axis!r} is no axis of this component{did_you_mean(axis, unfixed)}" for axis in strangers)
    example = next(iter(unfixed))
    spelled = f"'{example}'" if "[" in example else example
    return ConfigError(
        f"{'an axis has' if len(list(unfixed)) == 1 else 'axes have'} no value: {listed}",
        why=f"HTP runs fixed shapes only, so every axis needs one{meant}",
        remedy=f"give each a value under 'fixed', or a list of values under 'buckets', such as fixed: {{{spelled}: 1}}",
    )


class _NotAnExpressionError(Exception):
    pass


class _Parser:
    """Recursive descent over + - * / // ( ) floor ceil max min; with no axes given, every name counts as 1."""

    def __init__(self, text: str, axes: Mapping[str, int] | None) -> None:
        self._tokens = list(_tokens(text))
        self._axes = axes
        self._depth = 0
        self.names: list[str] = []

    def value(self) -> Fraction:
        result = self._sum()
        if self._tokens:
            raise _NotAnExpressionError
        return result

    def _sum(self) -> Fraction:
        result = self._product()
        while self._next_is("+", "-"):
            sign = self._tokens.pop(0)
            right = self._product()
            result = result + right if sign == "+" else result - right
        return result

    def _product(self) -> Fraction:
        result = self._factor()
        while self._next_is("*", "/", "//"):
            sign = self._tokens.pop(0)
            right = self._factor()
            if sign == "*":
                result *= right
            elif self._axes is None:
                continue
            else:
                result = result / right if sign == "/" else Fraction(result // right)
        return result

    def _factor(self) -> Fraction:
        self._depth += 1
        if not self._tokens or self._depth > _DEEPEST:
            raise _NotAnExpressionError
        token = self._tokens.pop(0)
        if token == "-":
            result = -self._factor()
        elif token == "(":
            result = self._sum()
            self._expect(")")
        elif token.isdigit():
            result = Fraction(int(token))
        elif self._next_is("(") and token.lower() in _FUNCTIONS:
            result = self._call(token.lower())
        elif token[0].isalpha() or token[0] in "_$":
            self.names.append(token)
            result = Fraction(1 if self._axes is None else self._axes[token])
        else:
            raise _NotAnExpressionError
        self._depth -= 1
        return result

    def _call(self, function: str) -> Fraction:
        self._expect("(")
        values = [self._sum()]
        while self._next_is(","):
            self._tokens.pop(0)
            values.append(self._sum())
        self._expect(")")
        if len(values) > 1 and function not in ("max", "min"):
            raise _NotAnExpressionError
        return _FUNCTIONS[function](values)

    def _next_is(self, *signs: str) -> bool:
        return bool(self._tokens) and self._tokens[0] in signs

    def _expect(self, sign: str) -> None:
        if not self._next_is(sign):
            raise _NotAnExpressionError
        self._tokens.pop(0)


def _tokens(text: str) -> Iterator[str]:
    position, text = 0, text.rstrip()
    if len(text) > _LONGEST:
        raise _NotAnExpressionError
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise _NotAnExpressionError
        yield match[match.lastgroup or 0]
        position = match.end()
