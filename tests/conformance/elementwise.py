"""Cases of operators that work on each element alone: every edge of the format, every rank, types and constants."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.conformance.cases import OPSET, Case, single
from tests.conformance.edges import ORDINARY, SATURATED, SIZE, Floats, edges, mixed
from tests.conformance.formats import FORMATS, FP16

_Domain = Callable[[Floats], NDArray[np.bool_]]

_ANY: _Domain = lambda x: np.ones(x.shape, bool)  # noqa: E731
_POSITIVE: _Domain = lambda x: x > 0  # noqa: E731
_NOT_NEGATIVE: _Domain = lambda x: (x >= 0) | (np.abs(x) < 3e-8)  # noqa: E731
_UNIT: _Domain = lambda x: np.abs(x) <= 1  # noqa: E731
_ABOVE_ONE: _Domain = lambda x: x >= 1  # noqa: E731
_NOT_ZERO: _Domain = lambda x: np.abs(x) > 3e-8  # noqa: E731

_EVERYWHERE = (
    "Abs", "Asinh", "Atan", "Ceil", "Cos", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish",
    "Identity", "IsInf", "IsNaN", "LeakyRelu", "Mish", "Neg", "Relu", "Round", "Selu", "Sigmoid", "Sign", "Sin",
    "Sinh", "Cosh", "Softplus", "Softsign", "Tan", "Tanh", "ThresholdedRelu", "Celu", "Swish",
)  # fmt: skip

UNARY: Mapping[str, _Domain] = {
    **dict.fromkeys(_EVERYWHERE, _ANY),
    "Acos": _UNIT, "Asin": _UNIT, "Acosh": _ABOVE_ONE, "Atanh": lambda x: np.abs(x) < 1,
    "Log": _POSITIVE, "Sqrt": _NOT_NEGATIVE, "Reciprocal": _NOT_ZERO,
}  # fmt: skip
_OPSETS = {"Swish": 24}

BINARY = ("Add", "Sub", "Mul", "Div", "Max", "Min", "PRelu")
COMPARISONS = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")

CLIPS = {"floor 1e-10": (1e-10, None), "floor 1e-5": (1e-5, None), "0 to 6": (0, 6), "1e-6 to 1e6": (1e-6, 1e6),
         "up to inf": (-1, np.inf), "-inf up": (-np.inf, 1)}  # fmt: skip
POWERS = (0, 1, 2, 3, 4, 8, 9, 0.5, 1.5, 2.5, 0.3, -0.5, -1, -2)


def cases() -> Iterator[Case]:
    """All of them."""
    for number_format in FORMATS:
        for name, values in edges(number_format).items():
            yield from _unary(number_format, name, values)
            yield from _binary(number_format, name, values)
            yield from _comparisons(number_format, name, values)
        yield from _ranks(number_format)
    yield from _integers()


def _case(
    operator: str, number_format: str, edge: str, variant: str, inputs: list[Any], *, saturated: str = "x0", **how: Any
) -> Case:
    model, feeds = single(operator, inputs, **how)
    ranges = {saturated: SATURATED} if edge == "saturation" and saturated in feeds else {}
    return Case(operator, number_format, edge, variant, model, feeds, ranges)


def _unary(number_format: str, edge: str, values: Floats) -> Iterator[Case]:
    for operator, domain in UNARY.items():
        x = _within(domain, values)
        if x is not None:
            opset = _OPSETS.get(operator, OPSET)
            yield _case(operator, number_format, edge, "", [x], opset=opset)
    plain = mixed(values)[None]
    for name, (low, high) in CLIPS.items():
        bounds = [None if end is None else np.array(end, np.float32) for end in (low, high)]
        yield _case("Clip", number_format, edge, name, [plain, *bounds], constants=(1, 2))
    for exponent in POWERS:
        domain = (
            _ANY if exponent in (1, 2, 3, 4, 8, 9, 0) else _NOT_ZERO if float(exponent).is_integer() else _NOT_NEGATIVE
        )
        x = _within(domain, values)
        if x is not None and (exponent > 0 or (x != 0).all()):
            yield _case(
                "Pow", number_format, edge, f"to {exponent}", [x, np.array(exponent, np.float32)], constants=(1,)
            )
    for kind in (np.int32, np.bool_):
        # Beyond int32 the result is nobody's.
        x = plain if kind is np.bool_ else np.clip(plain, -2e9, 2e9)
        yield _case("Cast", number_format, edge, np.dtype(kind).name, [x], to=6 if kind is np.int32 else 9)


def _binary(number_format: str, edge: str, values: Floats) -> Iterator[Case]:
    a = mixed(values)[None]
    b = ORDINARY[SIZE : 2 * SIZE][None]
    for operator in BINARY:
        left = a
        if operator == "Div":
            b = np.where(np.abs(b) < 0.1, np.float32(0.5), b)
        yield _case(operator, number_format, edge, "on the left", [left, b])
        yield _case(operator, number_format, edge, "by a constant", [left, b], constants=(1,))
        right = _within(_NOT_ZERO, values) if operator == "Div" else a
        if right is not None and operator != "PRelu":
            yield _case(operator, number_format, edge, "on the right", [b, right], saturated="x1")
            yield _case(operator, number_format, edge, "by a number", [b, right[:, :1]], constants=(1,))
            yield _case(operator, number_format, edge, "both", [left, right[:, ::-1].copy()])
    x = _within(_POSITIVE, values)
    if x is not None:
        yield _case("Pow", number_format, edge, "computed", [x, np.clip(b, -2, 2)])


def _comparisons(number_format: str, edge: str, values: Floats) -> Iterator[Case]:
    a = mixed(values)[None]
    near = np.where(np.arange(a.size) % 3 == 0, a, np.roll(a, 1, 1))
    zero = np.zeros((1, 1), np.float32)
    for operator in COMPARISONS:
        yield _case(operator, number_format, edge, "many ties", [a, near])
        yield _case(operator, number_format, edge, "ties, other encodings", [a, np.minimum(near, a.max() / 2)])
        yield _case(operator, number_format, edge, "with zero", [a, zero], constants=(1,))
    condition = np.arange(a.size)[None] % 2 == 0
    yield _case("Where", number_format, edge, "", [condition, a, near], saturated="x1")
    yield _case("Where", number_format, edge, "or a constant", [condition, a, zero], constants=(2,), saturated="x1")


def _ranks(number_format: str) -> Iterator[Case]:
    for rank in range(1, 6):
        dims = (2, 3, 4, 5, 6)[-rank:]
        x = ORDINARY[: int(np.prod(dims))].reshape(dims)
        for operator, domain in UNARY.items():
            opset = _OPSETS.get(operator, OPSET)
            good = _within(domain, ORDINARY, x.size)
            if good is not None:
                yield _case(operator, number_format, "rank", str(rank), [good.reshape(dims)], opset=opset)
        for operator in (*BINARY, *COMPARISONS, "Pow"):
            left = np.abs(x) + np.float32(0.1) if operator in ("Pow", "Div") else x
            for axis in range(rank) if number_format == FP16 else {0, rank - 1}:
                kept = [size if at == axis else 1 for at, size in enumerate(dims)]
                other = np.abs(ORDINARY[100 : 100 + dims[axis]]).reshape(kept) + np.float32(0.2)
                variant = f"{rank}, broadcast to all but {axis}"
                yield _case(operator, number_format, "rank", variant, [left, other], constants=(1,))
                yield _case(operator, number_format, "rank", f"{variant}, computed", [left, other])
                if operator != "PRelu":
                    yield _case(operator, number_format, "rank", f"{variant}, turned", [other, left])


_WHOLE: Mapping[str, tuple[int, ...]] = {
    "small": (0, 1, 2, 3, 7, 100, 127, 255),
    "above 2048": (2047, 2048, 2049, 2051, 4097, 65503, 65505),
    "above 65504": (65535, 65537, 70001, 131071, 1000003),
    "above 2^24": (2**24 + 1, 2**24 + 3, 2**30 + 1, 2**31 - 1),
}


def _integers() -> Iterator[Case]:
    for kind in (np.int32, np.int64, np.uint8):
        for name, numbers in _WHOLE.items():
            signed = [*numbers] if kind is np.uint8 else [*numbers, *(-number for number in numbers)]
            if kind is np.uint8 and max(numbers) > 255:
                continue
            a = np.resize(np.array(signed, kind), (1, 64))
            edge = f"{np.dtype(kind).name} {name}"
            yield from _whole(edge, a)


def _whole(edge: str, a: NDArray[Any]) -> Iterator[Case]:
    kind = a.dtype
    small = np.resize(np.array([1, 2, 3, 5, 7], kind), a.shape)
    near = np.where(np.arange(a.size) % 3 == 0, a, np.roll(a, 1, 1))
    fits = np.iinfo(kind).max // 2
    summands = np.clip(a, -fits, fits)
    factors = np.clip(a, -(np.iinfo(kind).max // 8), np.iinfo(kind).max // 8)
    pairs: dict[str, tuple[NDArray[Any], NDArray[Any]]] = {
        "Add": (summands, small), "Sub": (summands if kind != np.uint8 else a | 8, small), "Mul": (factors, small),
        "Div": (a, small), "Mod": (a, small), "Max": (a, near), "Min": (a, near),
        **dict.fromkeys(COMPARISONS, (a, near)),
    }  # fmt: skip
    for operator, (left, right) in pairs.items():
        for variant, constants in (("", ()), ("by a constant", (1,))):
            try:
                yield _case(operator, FP16, edge, variant, [left, right.astype(kind)], constants=constants)
            except Exception:  # an operator that does not take this type
                continue
    yield _case("Where", FP16, edge, "", [np.arange(a.size)[None] % 2 == 0, a, near])
    yield _case("Cast", FP16, edge, "to float", [a], to=1)
    yield _case("Cast", FP16, edge, "to bool", [a], to=9)
    if kind != np.uint8:
        yield _case("Abs", FP16, edge, "", [a])
        yield _case("Neg", FP16, edge, "", [a])
        yield _case("Sign", FP16, edge, "", [a])
        yield _case("ReduceSum", FP16, edge, "", [summands // 64 if kind == np.int32 else summands], keepdims=1)
        yield _case("ReduceMax", FP16, edge, "", [a, np.array([1])], constants=(1,))
        yield _case("ArgMax", FP16, edge, "", [a], axis=1)
        yield _case("CumSum", FP16, edge, "", [summands // 64, np.array(1)], constants=(1,))
        yield _case("Clip", FP16, edge, "", [a, np.array(-2050, kind), np.array(70000, kind)], constants=(1, 2))
        yield _case("TopK", FP16, edge, "", [a, np.array([5])], constants=(1,), outputs=2)


def _within(domain: _Domain, values: Floats, size: int = SIZE) -> Floats | None:
    """A row of values that an operator is defined for, of these if there are any."""
    kept = values[domain(values)]
    if not kept.size:
        return None
    filler = ORDINARY[domain(ORDINARY)]
    row = np.resize(kept, size)
    if kept.size < size and filler.size:
        row[size // 2 :] = np.resize(filler, size - size // 2)
    return row[None].astype(np.float32)
