"""Cases of operators that move data: every axis and rank, forms and modes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations
from typing import Any

import numpy as np

from tests.conformance.cases import Case
from tests.conformance.edges import ORDINARY, Floats
from tests.conformance.formats import FORMATS
from tests.conformance.tensors import attempt, numbers, of_rank


def cases() -> Iterator[Case]:
    """All of them."""
    for number_format in FORMATS:
        for family in (_movers, _lookups):
            yield from (case for case in family(number_format) if case is not None)


def _movers(number_format: str) -> Iterator[Case | None]:
    f = number_format
    for rank in range(1, 6):
        x, other = of_rank(rank), of_rank(rank, ORDINARY[500:] * np.float32(0.3))
        for order in [*permutations(range(rank))][1:]:
            if rank < 5 or order in (
                (0, 1, 2, 4, 3),
                (0, 2, 1, 3, 4),
                (4, 3, 2, 1, 0),
                (1, 2, 3, 4, 0),
                (0, 3, 1, 4, 2),
            ):
                yield attempt("Transpose", f, "axes", f"{order}", [x], perm=list(order))
        for axis in (*range(rank), -1):
            v = f"rank {rank}, axis {axis}"
            size = x.shape[axis]
            yield attempt("Concat", f, "axes", v, [x, other], axis=axis)
            yield attempt("Concat", f, "axes", f"{v}, a constant", [x, other], axis=axis, constants=(1,))
            yield attempt("Split", f, "axes", v, [x, numbers(1, size - 1)], axis=axis, constants=(1,), outputs=2)
            yield attempt("Slice", f, "axes", v, [x, numbers(1), numbers(size), numbers(axis)], constants=(1, 2, 3))
            given = [x, numbers(-1), numbers(-size - 1), numbers(axis), numbers(-1)]
            yield attempt("Slice", f, "axes", f"{v}, backwards", given, constants=(1, 2, 3, 4))
            given = [x, numbers(0), numbers(size), numbers(axis), numbers(2)]
            yield attempt("Slice", f, "axes", f"{v}, every second", given, constants=(1, 2, 3, 4))
            yield attempt("Flatten", f, "axes", v, [x], axis=axis)
            yield attempt("Unsqueeze", f, "axes", v, [x, numbers(axis)], constants=(1,))
            kept = x[tuple(slice(0, 1) if at == axis % rank else slice(None) for at in range(rank))].copy()
            yield attempt("Squeeze", f, "axes", v, [kept, numbers(axis)], constants=(1,))
            yield attempt("Expand", f, "axes", v, [kept, numbers(*x.shape)], constants=(1,))
            repeats = numbers(*(2 if at == axis % rank else 1 for at in range(rank)))
            yield attempt("Tile", f, "axes", v, [x, repeats], constants=(1,))
            for mode in ("constant", "reflect", "edge", "wrap"):
                pads = [0] * 2 * rank
                pads[axis % rank], pads[rank + axis % rank] = 1, 1
                yield attempt("Pad", f, "axes", f"{v}, {mode}", [x, numbers(*pads)], constants=(1,), mode=mode)
            pads = [0] * 2 * rank
            pads[axis % rank] = 1
            yield attempt(
                "Pad", f, "axes", f"{v}, with -5", [x, numbers(*pads), np.array(-5, np.float32)], constants=(1, 2)
            )
        yield attempt("Reshape", f, "axes", f"rank {rank}, to one", [x, numbers(-1)], constants=(1,))
        yield attempt(
            "Reshape", f, "axes", f"rank {rank}, first two", [x, numbers(*x.shape[1:], x.shape[0])], constants=(1,)
        )
    image = np.resize(ORDINARY, (1, 8, 4, 6)).astype(np.float32)
    for mode in ("DCR", "CRD"):
        yield attempt("DepthToSpace", f, "layout", mode, [image], blocksize=2, mode=mode)
    yield attempt("SpaceToDepth", f, "layout", "", [image], blocksize=2)
    for mode in ("nearest", "linear", "cubic"):
        for where in ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"):
            for sizes in ((1, 8, 8, 12), (1, 8, 7, 9), (1, 8, 2, 3)):
                for nearest in (
                    ("round_prefer_floor", "floor", "ceil", "round_prefer_ceil") if mode == "nearest" else ("",)
                ):
                    how = {"nearest_mode": nearest} if nearest else {}
                    variant = f"{mode}, {where}, {sizes[2:]}, {nearest}"
                    how["coordinate_transformation_mode"] = where
                    given = [image, None, None, numbers(*sizes)]
                    yield attempt("Resize", f, "layout", variant, given, constants=(3,), mode=mode, **how)
    yield from _other_resizes(f, image)
    grid = np.random.default_rng(1).uniform(-1.2, 1.2, (1, 3, 5, 2)).astype(np.float32)
    for mode in ("linear", "nearest"):
        for padding in ("zeros", "border", "reflection"):
            for corners in (0, 1):
                yield attempt("GridSample", f, "layout", f"{mode}, {padding}, {corners}", [image, grid], mode=mode,
                            padding_mode=padding, align_corners=corners)  # fmt: skip
    for upper in (0, 1):
        for k in (-1, 0, 1):
            yield attempt(
                "Trilu", f, "layout", f"upper {upper}, {k}", [of_rank(4), np.array(k)], constants=(1,), upper=upper
            )


def _other_resizes(f: str, image: Floats) -> Iterator[Case | None]:
    """Factors, dims and options beside those that every exporter writes."""
    where = "coordinate_transformation_mode"
    shapes: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
        ((8, 6), (16, 9)),
        ((1, 8, 6), (1, 8, 12)),
        ((1, 4, 6, 8), (1, 8, 9, 8)),
        ((1, 3, 4, 4, 6), (1, 3, 4, 8, 9)),
        ((1, 3, 4, 4, 6), (1, 3, 8, 4, 6)),
    ]
    for coordinates in ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"):
        how: dict[str, Any] = {where: coordinates}
        for sides in ((16, 24), (8, 24), (16, 12), (8, 6), (4, 24)):
            given, variant = [image, None, None, numbers(1, 8, *sides)], f"cubic, {coordinates}, {sides}, "
            yield attempt("Resize", f, "layout", variant, given, constants=(3,), mode="cubic", **how)
        for dims, sizes in shapes:
            given, variant = [np.resize(image, dims), None, None, numbers(*sizes)], f"{dims} to {sizes}"
            named = f"linear, {coordinates}, {variant}"
            yield attempt("Resize", f, "layout", named, given, constants=(3,), mode="linear", **how)
    for coordinates, nearest in (("asymmetric", "floor"), ("half_pixel", "round_prefer_ceil")):
        how = {where: coordinates, "nearest_mode": nearest, "mode": "nearest"}
        given = [np.resize(image, (1, 2, 11, 11)), None, np.array([1, 1, 1.3, 1.7], np.float32)]
        yield attempt(
            "Resize", f, "layout", f"nearest, {coordinates}, {nearest}, by scales", given, constants=(2,), **how
        )
    crop = np.array([0, 0, -0.2, 0.1, 1, 1, 0.8, 0.9], np.float32)
    options: dict[str, dict[str, Any]] = {
        "antialias": {"antialias": 1},
        "outside excluded": {"exclude_outside": 1},
        "symmetric": {where: "half_pixel_symmetric"},
        "a crop": {where: "tf_crop_and_resize"},
        "not larger": {"keep_aspect_ratio_policy": "not_larger", "axes": [2, 3]},
        "by scales": {},
    }
    for mode in ("linear", "cubic"):
        for name, how in options.items():
            if (mode, name) == ("linear", "outside excluded"):  # onnxruntime has it for cubic ones alone
                continue
            roi = crop if name == "a crop" else None
            rest: list[Any] = [None, numbers(8, 11) if name == "not larger" else numbers(1, 8, 7, 9)]
            rest = [np.array([1, 1, 1.7, 1.3], np.float32)] if name == "by scales" else rest
            given = [image, roi, *rest]
            yield attempt("Resize", f, "layout", f"{mode}, {name}", given, constants=(1, 2, 3), mode=mode, **how)


def _lookups(number_format: str) -> Iterator[Case | None]:
    f = number_format
    for rank in range(1, 6):
        x = of_rank(rank)
        for axis in (*range(rank), -1):
            size = x.shape[axis]
            v = f"rank {rank}, axis {axis}"
            for name, indices in {
                "": numbers(1, 0, 1),
                "negative": numbers(-1, 0, -size),
                "one": np.array(1),
                "square": numbers(1, 0, 1, 1).reshape(2, 2),
            }.items():
                yield attempt("Gather", f, "axes", f"{v} {name}", [x, indices], constants=(1,), axis=axis)
                yield attempt("Gather", f, "axes", f"{v} {name} computed", [x, indices], axis=axis)
                yield attempt("Gather", f, "axes", f"{v} {name} of a constant", [x, indices], constants=(0,), axis=axis)
            where = np.argsort(x, axis)[tuple(slice(0, 2) if at == axis % rank else slice(None) for at in range(rank))]
            for name, indices in {"": where, "negative": where - size}.items():
                yield attempt("GatherElements", f, "axes", f"{v} {name}", [x, indices], constants=(1,), axis=axis)
                yield attempt("GatherElements", f, "axes", f"{v} {name} computed", [x, indices], axis=axis)
                updates = np.resize(ORDINARY[900:], where.shape)
                for reduction in ("none", "add", "mul", "max", "min"):
                    yield attempt(
                        "ScatterElements",
                        f,
                        "axes",
                        f"{v} {name} {reduction}",
                        [x, indices, updates],
                        constants=(1,),
                        axis=axis,
                        reduction=reduction,
                    )
        for depth in range(1, rank + 1):
            for batch in range(rank):
                if batch + depth <= rank and batch < 2:
                    shape = (*x.shape[:batch], 2, depth)
                    places = np.resize(numbers(1, 0, 1, 1, 0), shape)
                    yield attempt(
                        "GatherND",
                        f,
                        "axes",
                        f"rank {rank}, {depth} deep, batch {batch}",
                        [x, places],
                        constants=(1,),
                        batch_dims=batch,
                    )
                    if not batch:
                        updates = np.resize(ORDINARY[900:], (2, *x.shape[depth:]))
                        for name, indices in {
                            "": np.stack([np.zeros(depth, np.int64), np.ones(depth, np.int64)]),
                            "twice": np.zeros((2, depth), np.int64),
                            "negative": np.stack([np.zeros(depth, np.int64), np.full(depth, -1)]),
                        }.items():
                            for reduction in ("none", "add", "max"):
                                yield attempt(
                                    "ScatterND",
                                    f,
                                    "axes",
                                    f"rank {rank}, {depth} deep, {name} {reduction}",
                                    [x, indices, updates],
                                    constants=(1,),
                                    reduction=reduction,
                                )
    yield attempt(
        "OneHot", f, "axes", "", [numbers(0, 2, 1), numbers(4), np.array([0, 1], np.float32)], constants=(1, 2)
    )
