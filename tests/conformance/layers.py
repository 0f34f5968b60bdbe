"""Cases of products, convolutions, pools and recurrences: layouts, and channels of very different size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.conformance.cases import Case
from tests.conformance.edges import ORDINARY, Floats
from tests.conformance.formats import FORMATS
from tests.conformance.tensors import attempt, rows


def cases() -> Iterator[Case]:
    """All of them."""
    for number_format in FORMATS:
        for family in (_products, _convolutions, _pools, _recurrent):
            yield from (case for case in family(number_format) if case is not None)


def _products(number_format: str) -> Iterator[Case | None]:
    f = number_format
    shapes = [((4,), (4,)), ((3, 4), (4,)), ((4,), (4, 5)), ((3, 4), (4, 5)), ((2, 3, 4), (4, 5)),
              ((2, 3, 4), (2, 4, 5)),
              ((1, 2, 3, 4), (1, 2, 4, 5)), ((2, 2, 3, 4), (4, 5)), ((2, 2, 3, 4), (2, 1, 4, 5)), ((3, 4), (2, 4, 5)),
              ((1, 2, 2, 3, 4), (1, 2, 2, 4, 5)), ((1, 1, 4), (4, 1)), ((1, 64), (64, 32))]  # fmt: skip
    for first, second in shapes:
        left, right = (
            np.resize(ORDINARY, first).astype(np.float32),
            np.resize(ORDINARY[700:], second).astype(np.float32),
        )
        for name, constants in {"by a constant": (1,), "computed": (), "of a constant": (0,)}.items():
            yield attempt("MatMul", f, "rank", f"{first} {second} {name}", [left, right], constants=constants)
    left, right = (
        np.resize(ORDINARY, (8, 32)).astype(np.float32),
        np.resize(ORDINARY[700:], (32, 16)).astype(np.float32),
    )
    for edge, values in rows(f):
        yield attempt(
            "MatMul", f, edge, "by a constant", [np.resize(values, (8, 32)).astype(np.float32), right], constants=(1,)
        )
        yield attempt("MatMul", f, edge, "computed", [np.resize(values, (8, 32)).astype(np.float32), right])
    for exponent in (0, 8, 16, 20, 22, 24, 26):
        quiet = right * np.where(np.arange(16) % 4 == 0, np.float32(2.0**-exponent), np.float32(1))
        yield attempt("MatMul", f, f"channels of 2^-{exponent}", "", [left, quiet.astype(np.float32)], constants=(1,))
        yield attempt("Gemm", f, f"channels of 2^-{exponent}", "", [left, quiet.astype(np.float32)], constants=(1,))
    for ta in (0, 1):
        for tb in (0, 1):
            a, b = left.T.copy() if ta else left, right.T.copy() if tb else right
            for alpha, beta in ((1.0, 1.0), (0.5, 2.0)):
                c = ORDINARY[:16].copy()
                v = f"transposed {ta}{tb}, {alpha} {beta}"
                yield attempt(
                    "Gemm", f, "layout", v, [a, b, c], constants=(1, 2), transA=ta, transB=tb, alpha=alpha, beta=beta
                )
                yield attempt(
                    "Gemm", f, "layout", f"{v}, computed", [a, b, c], transA=ta, transB=tb, alpha=alpha, beta=beta
                )
    for equation, first, second in (
        ("ij,jk->ik", (3, 4), (4, 5)),
        ("bij,bjk->bik", (2, 3, 4), (2, 4, 5)),
        ("bhid,bhjd->bhij", (1, 2, 3, 4), (1, 2, 5, 4)),
        ("i,j->ij", (3,), (4,)),
        ("bic,bjc->bij", (1, 3, 4), (1, 5, 4)),
    ):
        yield attempt(
            "Einsum",
            f,
            "layout",
            equation,
            [np.resize(ORDINARY, first).astype(np.float32), np.resize(ORDINARY[700:], second).astype(np.float32)],
            equation=equation,
        )


def _convolutions(number_format: str) -> Iterator[Case | None]:
    f = number_format
    random = np.random.default_rng(3)

    def weight(*shape: int) -> Floats:
        return np.asarray(random.normal(size=shape) * 0.3, np.float32)

    inputs = {3: weight(1, 8, 16) * 4, 4: weight(1, 8, 8, 10) * 4, 5: weight(1, 8, 4, 5, 6) * 4}
    for rank, x in inputs.items():
        n = rank - 2
        forms: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
            "kernel 1": ((12, 8, *[1] * n), {}),
            "kernel 3": ((12, 8, *[3] * n), {}),
            "padded": ((12, 8, *[3] * n), {"pads": [1] * 2 * n}),
            "padded on one side": ((12, 8, *[3] * n), {"pads": [2] * n + [0] * n}),
            "stride 2": ((12, 8, *[3] * n), {"strides": [2] * n, "pads": [1] * 2 * n}),
            "dilated": ((12, 8, *[2] * n), {"dilations": [2] * n}),
            "two groups": ((12, 4, *[3] * n), {"group": 2}),
            "depthwise": ((8, 1, *[3] * n), {"group": 8, "pads": [1] * 2 * n}),
            "depthwise, two each": ((16, 1, *[3] * n), {"group": 8}),
            "same upper": ((12, 8, *[2] * n), {"auto_pad": "SAME_UPPER"}),
            "one channel out": ((1, 8, *[3] * n), {}),
        }
        for name, (shape, how) in forms.items():
            bias = weight(shape[0])
            yield attempt(
                "Conv", f, "layout", f"rank {rank}, {name}", [x, weight(*shape), bias], constants=(1, 2), **how
            )
            yield attempt(
                "Conv", f, "layout", f"rank {rank}, {name}, no bias", [x, weight(*shape)], constants=(1,), **how
            )
        yield attempt("Conv", f, "layout", f"rank {rank}, computed weights", [x, weight(12, 8, *[3] * n)])
        transposed: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
            "kernel 3": ((8, 12, *[3] * n), {}),
            "stride 2": ((8, 12, *[2] * n), {"strides": [2] * n}),
            "stride 2, padded": ((8, 12, *[4] * n), {"strides": [2] * n, "pads": [1] * 2 * n}),
            "output padding": ((8, 12, *[3] * n), {"strides": [2] * n, "pads": [1] * 2 * n, "output_padding": [1] * n}),
            "two groups": ((8, 6, *[3] * n), {"group": 2}),
            "depthwise": ((8, 1, *[3] * n), {"group": 8}),
            "dilated": ((8, 12, *[2] * n), {"dilations": [2] * n}),
        }
        for name, (shape, how) in transposed.items():
            given = [x, weight(*shape), weight(shape[1] * how.get("group", 1))]
            yield attempt("ConvTranspose", f, "layout", f"rank {rank}, {name}", given, constants=(1, 2), **how)
    x = inputs[4]
    for edge, values in rows(f):
        yield attempt(
            "Conv", f, edge, "", [np.resize(values, x.shape).astype(np.float32), weight(12, 8, 3, 3)], constants=(1,)
        )
    for exponent in (0, 8, 16, 20, 22, 24, 26, 30):
        for operator, shape, axis in (
            ("Conv", (12, 8, 3, 3), 0),
            ("Conv", (12, 8, 1, 1), 0),
            ("ConvTranspose", (8, 12, 2, 2), 1),
        ):
            tall = [-1 if at == axis else 1 for at in range(4)]
            factors = np.where(np.arange(12) % 4 == 0, 2.0**-exponent, 1).astype(np.float32).reshape(tall)
            variant = f"kernel {shape[2]}"
            yield attempt(
                operator, f, f"channels of 2^-{exponent}", variant, [x, weight(*shape) * factors], constants=(1,)
            )
            given = [x, weight(*shape) * factors, weight(12)]
            yield attempt(operator, f, f"channels of 2^-{exponent}", f"{variant}, bias", given, constants=(1, 2))


def _pools(number_format: str) -> Iterator[Case | None]:
    f = number_format
    for rank in (3, 4, 5):
        n = rank - 2
        x = np.resize(ORDINARY, (1, 4, *(8, 7, 6)[-n:])).astype(np.float32)
        for operator in ("MaxPool", "AveragePool", "LpPool"):
            for kernel, stride, pad in ((2, 2, 0), (3, 1, 1), (3, 2, 1), (2, 1, 0)):
                for ceil in (0, 1):
                    how: dict[str, Any] = {
                        "kernel_shape": [kernel] * n,
                        "strides": [stride] * n,
                        "pads": [pad] * 2 * n,
                        "ceil_mode": ceil,
                    }
                    variant = f"rank {rank}, {kernel} by {stride}, padded {pad}, ceil {ceil}"
                    for counted in (0, 1) if operator == "AveragePool" else (0,):
                        more = {"count_include_pad": counted} if counted else {}
                        yield attempt(operator, f, "layout", f"{variant}, {counted}", [x], **how, **more)
                        if operator == "MaxPool":
                            yield attempt(operator, f, "layout", f"{variant}, negative", [-np.abs(x) - 1], **how)
            yield attempt(
                operator,
                f,
                "layout",
                f"rank {rank}, same upper",
                [x],
                kernel_shape=[3] * n,
                strides=[2] * n,
                auto_pad="SAME_UPPER",
            )
        yield attempt("MaxPool", f, "layout", f"rank {rank}, dilated", [x], kernel_shape=[2] * n, dilations=[2] * n)
        for operator in ("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"):
            yield attempt(operator, f, "layout", f"rank {rank}", [x])
            for edge, values in rows(f):
                yield attempt(operator, f, edge, f"rank {rank}", [np.resize(values, x.shape).astype(np.float32)])


def _recurrent(number_format: str) -> Iterator[Case | None]:
    random = np.random.default_rng(5)
    for operator, gates in (("LSTM", 4), ("GRU", 3), ("RNN", 1)):
        for direction, ways in (("forward", 1), ("reverse", 1), ("bidirectional", 2)):
            for steps in (1, 5):
                given = [
                    random.normal(size=shape).astype(np.float32) * np.float32(0.5)
                    for shape in ((steps, 1, 6), (ways, gates * 8, 6), (ways, gates * 8, 8), (ways, 2 * gates * 8))
                ]
                for reset in (0, 1) if operator == "GRU" else (0,):
                    how = {"linear_before_reset": 1} if reset else {}
                    yield attempt(
                        operator,
                        number_format,
                        "layout",
                        f"{direction}, {steps} steps {reset or ''}",
                        given,
                        constants=(1, 2, 3),
                        outputs=1,
                        hidden_size=8,
                        direction=direction,
                        **how,
                    )
