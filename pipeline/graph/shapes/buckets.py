"""Which bucket a sample goes to, and how it is padded to that bucket's shape."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.contracts.values import TensorSpec
from pipeline.errors import CalibrationError
from pipeline.graph.shapes.axes import DimError, axis_names, dim_size

Arrays = Mapping[str, NDArray[Any]]
"""One call of a component: an array per input."""


def axis_lengths(sample: Arrays, inputs: Sequence[TensorSpec]) -> dict[str, int]:
    """The length of every axis that is a dim by itself, in a sample whose arrays have the inputs' ranks.

    Raises:
        CalibrationError: two inputs give one axis different lengths, or a dim is not what its expression says.
    """
    dims = [
        (dim, sample[spec.name].shape[position], spec.name)
        for spec in inputs
        for position, dim in enumerate(spec.shape)
        if isinstance(dim, str)
    ]
    seen: dict[str, tuple[int, str]] = {}
    for axis, length, name in dims:
        if axis_names(axis) == (axis,):
            known, giver = seen.setdefault(axis, (length, name))
            if known != length:
                raise _disagreement(axis, f"it is {known} in {giver!r} and {length} in {name!r}")
    lengths = {axis: length for axis, (length, _) in seen.items()}
    for dim, length, name in dims:
        if (due := _size(dim, lengths)) not in (None, length):
            raise _disagreement(dim, f"with {spelled(lengths)} it is {due}, in {name!r} it is {length}")
    return lengths


def smallest_bucket(lengths: Mapping[str, int], buckets: Mapping[str, Mapping[str, int]]) -> str | None:
    """The name of the smallest bucket that holds these axis lengths, or None.

    Smallest is fewest elements (the product of the bucket's axes); of equals, the one that `buckets` lists first.
    """
    holding = [
        name for name, axes in buckets.items() if all(lengths.get(axis, 0) <= size for axis, size in axes.items())
    ]
    return min(holding, key=lambda name: math.prod(buckets[name].values()), default=None)


def fits_no_bucket(
    sample: str, lengths: Mapping[str, int], buckets: Mapping[str, Mapping[str, int]]
) -> CalibrationError:
    """The error for a sample that :func:`smallest_bucket` finds no bucket for; `sample` is its name."""
    bucketed = {axis for axes in buckets.values() for axis in axes}
    largest = max(buckets.values(), key=lambda axes: math.prod(axes.values()), default={})
    return CalibrationError(
        f"{sample} fits no bucket: {spelled({axis: lengths[axis] for axis in lengths if axis in bucketed})}",
        why=f"the largest bucket is {spelled(largest)}",
        remedy="shorten this sample, take it out, or add a bucket that holds it",
    )


def pad(
    sample: Arrays, inputs: Sequence[TensorSpec], axes: Mapping[str, int], rules: Mapping[str, float]
) -> dict[str, NDArray[Any]]:
    """Pad each input at the end of its axes to the lengths in `axes`.

    An axis that `axes` doesn't name keeps its length. `rules` gives the padding value of an input, 0 otherwise.

    Raises:
        CalibrationError: a sample is longer than `axes` allows, or a padding value isn't one of the input's dtype.
    """
    padded = {}
    sizes = axis_lengths(sample, inputs) | dict(axes)
    for spec in inputs:
        array = sample[spec.name]
        widths = []
        for dim, length in zip(spec.shape, array.shape, strict=True):
            target = _size(dim, sizes) if isinstance(dim, str) else None
            target = length if target is None else target
            if length > target:
                raise CalibrationError(
                    f"input {spec.name!r} is {length} long on axis {dim!r}, the bucket has {target}",
                    remedy="shorten this sample, take it out, or add a bucket that holds it",
                )
            widths.append((0, target - length))
        if any(after for _, after in widths):
            array = np.pad(array, widths, constant_values=_padding_value(spec.name, rules.get(spec.name, 0), array))
        padded[spec.name] = array
    return padded


def refilled(arrays: Mapping[str, NDArray[Any]], padded: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """The inputs of a sample that were padded, with the sample itself over and over in place of the padding."""
    found = {}
    for name, array in arrays.items():
        behind = [(0, size - own) for size, own in zip(padded[name].shape, array.shape, strict=True)]
        if array.size and any(more for _, more in behind):
            found[name] = np.pad(array, behind, mode="wrap")
    return found


def spelled(lengths: Mapping[str, int]) -> str:
    """Axis lengths as a message shows them: ``sequence 140, batch 1``."""
    return ", ".join(f"{axis} {length}" for axis, length in lengths.items()) or "no axes"


def _size(dim: str, axes: Mapping[str, int]) -> int | None:
    try:
        return dim_size(dim, axes)
    except DimError:
        return None


def _disagreement(axis: str, why: str) -> CalibrationError:
    return CalibrationError(
        f"the inputs of one sample disagree about axis {axis!r}",
        why=why,
        remedy="make all arrays from the same sample, with nothing cut or padded in one of them only; if the model"
        " calls sizes by this name that have nothing to do with each other, give one a name of its own:"
        " docs/troubleshooting.md",
    )


def _padding_value(name: str, value: float, array: NDArray[Any]) -> NDArray[Any]:
    exact = np.asarray(value)
    if not np.isfinite(exact) or (array.dtype.kind in "biu" and exact.astype(array.dtype) != exact):
        raise CalibrationError(
            f"padding value {value} of input {name!r} is not a {array.dtype} value",
            remedy=f"set padding.{name} in the config to a value of that type",
        )
    return exact.astype(array.dtype)
