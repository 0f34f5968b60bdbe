"""Cases of sums, extremes, softmax and norms: every axis and rank, ties, loud and quiet rows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.conformance.cases import Case
from tests.conformance.edges import ORDINARY
from tests.conformance.formats import FORMATS
from tests.conformance.tensors import attempt, numbers, of_rank, rows

_REDUCED = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum",
            "ReduceLogSumExp", "ReduceSumSquare")  # fmt: skip
_POSITIVE = ("ReduceProd", "ReduceLogSum")


def cases() -> Iterator[Case]:
    """All of them."""
    for number_format in FORMATS:
        for family in (_reductions, _norms):
            yield from (case for case in family(number_format) if case is not None)


def _reductions(number_format: str) -> Iterator[Case | None]:
    for operator in _REDUCED:
        for rank in range(1, 6):
            x = np.abs(of_rank(rank)) / 4 + np.float32(0.5) if operator in _POSITIVE else of_rank(rank)
            chosen: list[tuple[int, ...]] = [(axis,) for axis in (*range(rank), -1)]
            chosen += [tuple(range(rank)), tuple(range(1, rank)), (0, rank - 1)] if rank > 1 else []
            for axes in chosen:
                for keepdims in (0, 1):
                    variant = f"rank {rank}, axes {axes}, keepdims {keepdims}"
                    given = [x, numbers(*axes)]
                    yield attempt(operator, number_format, "axes", variant, given, constants=(1,), keepdims=keepdims)
        for edge, values in rows(number_format):
            x = np.abs(of_rank(4, values)) if operator in _POSITIVE else of_rank(4, values)
            for axes in ((-1,), (2, 3), (1,)):
                yield attempt(operator, number_format, edge, f"axes {axes}", [x, numbers(*axes)], constants=(1,))
    for operator in ("ArgMax", "ArgMin", "Softmax", "LogSoftmax", "Hardmax", "LpNormalization"):
        for rank in range(1, 6):
            for axis in (*range(rank), -1):
                variant = f"rank {rank}, axis {axis}"
                yield attempt(operator, number_format, "axes", variant, [of_rank(rank)], axis=axis)
                tied = np.round(of_rank(rank))
                yield attempt(operator, number_format, "ties", variant, [tied], axis=axis)
        for edge, values in rows(number_format):
            yield attempt(operator, number_format, edge, "", [of_rank(4, values)], axis=-1)
    masked = np.where(np.arange(6) < 4, of_rank(4), np.float32(-1e4))
    for filler in (-100, -1e4, -65504, -1e5):
        yield attempt(
            "Softmax",
            number_format,
            f"filler {filler:g}",
            "",
            [np.where(masked < -9e3, np.float32(filler), masked)],
            axis=-1,
        )
    for rank in range(1, 6):
        for axis in (*range(rank), -1):
            for flags in ({}, {"exclusive": 1}, {"reverse": 1}):
                variant = f"rank {rank}, axis {axis}, {flags}"
                yield attempt(
                    "CumSum", number_format, "axes", variant, [of_rank(rank), np.array(axis)], constants=(1,), **flags
                )
            for largest in (0, 1):
                variant = f"rank {rank}, axis {axis}, largest {largest}"
                given = [of_rank(rank), numbers(2)]
                how = {"constants": (1,), "outputs": 2, "axis": axis, "largest": largest}
                yield attempt("TopK", number_format, "axes", variant, given, **how)
                given = [np.round(of_rank(rank)), numbers(2)]
                yield attempt("TopK", number_format, "ties", variant, given, **how)


def _norms(number_format: str) -> Iterator[Case | None]:
    for edge, values in (("ordinary", ORDINARY[:240]), *rows(number_format)):
        for rank in range(2, 6):
            x = of_rank(rank, values)
            channels = x.shape[1]
            scale, bias = (
                np.linspace(0.5, 1.5, channels, dtype=np.float32),
                np.linspace(-1, 1, channels, dtype=np.float32),
            )
            width = x.shape[-1]
            gamma, beta = np.linspace(0.5, 1.5, width, dtype=np.float32), np.linspace(-1, 1, width, dtype=np.float32)
            variant = f"rank {rank}"
            yield attempt(
                "LayerNormalization", number_format, edge, variant, [x, gamma, beta], constants=(1, 2), axis=-1
            )
            yield attempt("LayerNormalization", number_format, edge, f"{variant}, no bias", [x, gamma], constants=(1,))
            yield attempt("RMSNormalization", number_format, edge, variant, [x, gamma], constants=(1,), opset=23)
            yield attempt("InstanceNormalization", number_format, edge, variant, [x, scale, bias], constants=(1, 2))
            yield attempt(
                "BatchNormalization",
                number_format,
                edge,
                variant,
                [x, scale, bias, bias * np.float32(0.5), scale],
                constants=(1, 2, 3, 4),
            )
            if rank in (3, 4):
                groups = np.resize(x, (2, 4, *x.shape[2:]))
                four = np.linspace(0.5, 1.5, 4, dtype=np.float32)
                yield attempt(
                    "GroupNormalization",
                    number_format,
                    edge,
                    variant,
                    [groups, four, four],
                    constants=(1, 2),
                    num_groups=2,
                )
            if rank == 4:
                yield attempt("MeanVarianceNormalization", number_format, edge, variant, [x])
                yield attempt("LRN", number_format, edge, variant, [x], size=3)
    for rank in range(2, 6):
        x = of_rank(rank)
        for axis in range(rank):
            shape = x.shape[axis:]
            gamma = np.linspace(0.5, 1.5, int(np.prod(shape)), dtype=np.float32).reshape(shape)
            variant = f"rank {rank}, axis {axis}"
            yield attempt("LayerNormalization", number_format, "axes", variant, [x, gamma], constants=(1,), axis=axis)
            yield attempt(
                "RMSNormalization", number_format, "axes", variant, [x, gamma], constants=(1,), axis=axis, opset=23
            )
