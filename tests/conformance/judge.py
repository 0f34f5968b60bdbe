"""Whether what came out is right, for the number format it was computed in.

In float16 the reference is ONNX Runtime in float32, on inputs and constants rounded to float16. What a change of half a
float16 step in the inputs would do to the result is allowed, and what four of a value between two operators would, as
is flushing what is below float16's normal numbers. In
QDQ the reference is the QDQ model on ONNX Runtime's CPU, and a few steps of the output's encoding are allowed, behind
what these few steps of a value in front do to it (:mod:`tests.conformance.same_rounding`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, numpy_helper

from pipeline.graph.cpu import unoptimized_session
from tests.conformance.same_rounding import between, computed_between, exposed, moved, nudged, scaled

Arrays = Mapping[str, NDArray[Any]]

AGREES, COARSE, FORMAT, WRONG = "agrees", "coarse", "format", "wrong"
"""Verdicts, mildest first: coarse is further off than the format's rounding, and less than `COARSE_AT_MOST`; format is
an overflow or a NaN, which no float16 holds."""
_WORST_LAST = (AGREES, COARSE, FORMAT, WRONG)

COARSE_AT_MOST = 1 / 64
"""Of the larger of the right value and the output's root mean square."""
FP16_STEPS = 4
QDQ_STEPS = {"u16": 8, "u8": 1}
"""Steps of the output's encoding that may be off."""
COARSE_STEPS = {"u16": 256, "u8": 3}
"""Steps from which it is wrong: 16 bits are then worse than 8."""

FP16_MAX, FP16_LEAST = 65504.0, 2.0**-14
HTP_MAX = 131008.0
"""The largest number of HTP's float16, which has neither infinity nor NaN (emulator, 2.51)."""

EXACT = frozenset(
    [
        "Abs",
        "And",
        "ArgMax",
        "ArgMin",
        "BitShift",
        "BitwiseAnd",
        "BitwiseNot",
        "BitwiseOr",
        "BitwiseXor",
        "Cast",
        "Ceil",
        "Clip",
        "Concat",
        "DepthToSpace",
        "Equal",
        "Expand",
        "Flatten",
        "Floor",
        "Gather",
        "GatherElements",
        "GatherND",
        "Greater",
        "GreaterOrEqual",
        "Identity",
        "Less",
        "LessOrEqual",
        "Max",
        "MaxPool",
        "Min",
        "Mod",
        "Neg",
        "Not",
        "Or",
        "Pad",
        "ReduceMax",
        "ReduceMin",
        "Relu",
        "Reshape",
        "Round",
        "ScatterElements",
        "ScatterND",
        "Sign",
        "Slice",
        "SpaceToDepth",
        "Split",
        "Squeeze",
        "Tile",
        "TopK",
        "Transpose",
        "Trilu",
        "Unsqueeze",
        "Where",
        "Xor",
    ]
)
"""Operators that round nothing: their inputs are not moved to see what rounding may do."""

_BELOW_MAX = 60000.0
"""Behind the largest number of float16, the next is infinity."""
_EXAMPLES = 5
_NOTHING = 1e-8
"""An output that is zero all the time has steps of less."""
_MOVES = 4


@dataclass(frozen=True)
class Verdict:
    """The worst verdict on an element, how many elements got it, of how many, and some of them as text."""

    kind: str
    count: int = 0
    of: int = 0
    examples: tuple[str, ...] = ()


def judge(
    operator: str, number_format: str, model: ModelProto, feeds: Arrays, outputs: Sequence[NDArray[Any]]
) -> Verdict:
    """The verdict on `outputs`, which the chip made of `model` as it was compiled, and of `feeds`."""
    with np.errstate(all="ignore"):
        if number_format == "fp16":
            found = _judge_fp16(operator, model, feeds, outputs)
        else:
            found = _judge_qdq(number_format, model, feeds, outputs)
        verdicts = [_summed(kinds, feeds, right, given) for kinds, right, given in found]
    return max(verdicts, key=lambda verdict: _WORST_LAST.index(verdict.kind))


_Found = Iterator[tuple[NDArray[Any], NDArray[Any], NDArray[Any]]]


def _judge_fp16(operator: str, model: ModelProto, feeds: Arrays, outputs: Sequence[NDArray[Any]]) -> _Found:
    """For each output a verdict for each element (a place in `_WORST_LAST`), what is right, and what came out."""
    runs = [
        _run(_changed(model, change), {name: change(array) for name, array in feeds.items()})
        for change in _changes(operator, model, feeds)
    ]
    inner = computed_between(model)
    if inner:
        inside = dict(zip(inner, _run(exposed(model, inner), feeds), strict=True))
        runs += [_run(each, feeds) for each in scaled(model, inside, FP16_STEPS * 2.0**-11)]
    for position, given in enumerate(outputs):
        possible = np.stack([run[position] for run in runs])
        right = possible[0]
        if right.dtype.kind != "f":
            yield np.where((possible == given).any(0), 0, 3), right, given
            continue
        low, high = np.nanmin(possible, 0), np.nanmax(possible, 0)
        size = np.abs(right)
        finite = np.isfinite(possible).all(0) & (np.abs(possible).max(0) <= FP16_MAX)
        step = np.spacing(np.minimum(size, _BELOW_MAX).astype(np.float16)).astype(np.float64)
        slack = (high - low) + FP16_STEPS * step
        fits = (given >= low - slack) & (given <= high + slack)
        flushed = (size <= FP16_LEAST) & (np.abs(given) <= 2 * FP16_LEAST)
        scale = np.sqrt(np.mean(np.square(right[finite], dtype=np.float64))) if finite.any() else 0.0
        off = np.abs(given.astype(np.float64) - right)
        coarse = off <= COARSE_AT_MOST * np.maximum(size, scale)
        signs = np.isnan(possible).any(0) | (np.sign(given) == np.sign(right)) | ~np.isfinite(given)
        beyond = ~finite & ((np.isnan(possible).any(0)) | (signs & ~(np.abs(given) < FP16_MAX * 0.98)))
        yield np.select([fits | flushed, beyond, finite & coarse], [0, 2, 1], 3), right, given


def _judge_qdq(number_format: str, model: ModelProto, feeds: Arrays, outputs: Sequence[NDArray[Any]]) -> _Found:
    names = [node.output[0] for node in between(model)]
    inside = dict(zip(names, _run(exposed(model, names), feeds), strict=True)) if names else {}
    alike = [model, *(moved(model, inside, QDQ_STEPS[number_format]) if inside else ()), *nudged(model)]
    runs = [_run(each, feeds) for each in alike]
    for position, (value, given) in enumerate(zip(model.graph.output, outputs, strict=True)):
        possible = np.stack([run[position] for run in runs])
        right = possible[0]
        if right.dtype.kind != "f":
            yield np.where((possible == given).any(0), 0, 3), right, given
            continue
        off = np.maximum(np.maximum(possible.min(0) - given, given - possible.max(0)), 0).astype(np.float64)
        step = _scale(model, value.name)
        if step is None:
            size = np.abs(right)
            near = COARSE_AT_MOST * np.maximum(size, np.sqrt(np.mean(right**2)))
            yield np.select([off <= near / 8, off <= near], [0, 1], 3), right, given
            continue
        steps = np.where(off < _NOTHING, 0, np.round(off / step))
        fits, coarse = steps <= QDQ_STEPS[number_format], steps <= COARSE_STEPS[number_format]
        yield np.select([fits, coarse], [0, 1], 3), right, given


def _summed(kinds: NDArray[Any], feeds: Arrays, right: NDArray[Any], given: NDArray[Any]) -> Verdict:
    if not kinds.size:
        return Verdict(AGREES)
    worst = int(kinds.max())
    if not worst:
        return Verdict(AGREES, 0, kinds.size)
    where = np.argwhere(np.atleast_1d(kinds) == worst)
    chosen = [where[at] for at in np.unique(np.linspace(0, len(where) - 1, _EXAMPLES, dtype=int))]
    return Verdict(
        _WORST_LAST[worst], len(where), kinds.size, tuple(_example(tuple(at), feeds, right, given) for at in chosen)
    )


def _example(at: tuple[int, ...], feeds: Arrays, right: NDArray[Any], given: NDArray[Any]) -> str:
    """An element: what went in, where that can be told, what came out, and what is right."""
    same = [array for array in feeds.values() if array.shape == right.shape]
    source = ", ".join(f"{np.atleast_1d(array)[at]:.6g}" for array in same) if same else f"at {[int(i) for i in at]}"
    return f"{source}: {np.atleast_1d(given)[at]:.6g}, right {np.atleast_1d(right)[at]:.6g}"


_Change = Callable[[NDArray[Any]], NDArray[Any]]


def _changes(operator: str, model: ModelProto, feeds: Arrays) -> Iterator[_Change]:
    """The ways in which float16 may take inputs and constants; the first is the usual one."""
    arrays = [*feeds.values(), *(numpy_helper.to_array(tensor) for tensor in model.graph.initializer)]
    sizes = np.concatenate([np.abs(array).ravel() for array in arrays if array.dtype == np.float32] or [np.zeros(1)])
    yield _floats(lambda array: _half(np.clip(array, -FP16_MAX, FP16_MAX)))
    yield lambda array: array
    if (sizes < FP16_LEAST).any():
        yield _floats(lambda array: np.where(np.abs(array) < FP16_LEAST, np.copysign(0, array), _half(array)))
    if (sizes > FP16_MAX).any():
        yield _floats(_half)
        yield _floats(lambda array: np.clip(array, -HTP_MAX, HTP_MAX))
    if operator not in EXACT:
        for seed in range(_MOVES):
            yield _floats(lambda array, seed=seed: _moved(array, seed))  # type: ignore[misc]


def _floats(change: _Change) -> _Change:
    return lambda array: change(array).astype(np.float32) if array.dtype == np.float32 else array


def _half(array: NDArray[Any]) -> NDArray[Any]:
    return array.astype(np.float16).astype(np.float32)


def _moved(array: NDArray[Any], seed: int) -> NDArray[Any]:
    direction = np.random.default_rng(seed).choice([-1.0, 1.0], array.shape)
    return _half(np.clip(array, -FP16_MAX, FP16_MAX)) * (1 + direction * 2.0**-11)


def _changed(model: ModelProto, change: _Change) -> ModelProto:
    copy = ModelProto()
    copy.CopyFrom(model)
    # The scales and the crop of a Resize are read by the compiler, and never rounded.
    kept = {name for node in model.graph.node if node.op_type == "Resize" for name in node.input[1:]}
    for tensor in copy.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT and tensor.name not in kept:
            tensor.CopyFrom(numpy_helper.from_array(change(numpy_helper.to_array(tensor)), tensor.name))
    return copy


def _run(model: ModelProto, feeds: Arrays) -> list[NDArray[Any]]:
    return [np.asarray(array) for array in unoptimized_session(model, Path()).run(None, dict(feeds))]


def _scale(model: ModelProto, output: str) -> float | None:
    """The step of a quantized output; None if it is not quantized."""
    maker = next(node for node in model.graph.node if output in node.output)
    if maker.op_type != "DequantizeLinear":
        return None
    scale = next(tensor for tensor in model.graph.initializer if tensor.name == maker.input[1])
    return float(numpy_helper.to_array(scale).max())
