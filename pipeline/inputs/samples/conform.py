"""Checks that the arrays of a sample are what a component takes: names, dtypes, ranks, dims and values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pipeline.contracts.values import TensorSpec
from pipeline.errors import CalibrationError
from pipeline.graph.shapes.buckets import axis_lengths, fits_no_bucket, smallest_bucket
from pipeline.plain_text import did_you_mean

_INTEGERS = frozenset("biu")


class ComputedMiddle(Protocol):
    """Values in the middle of a file, as :class:`pipeline.inputs.samples.middle.Middle` computes them."""

    @property
    def names(self) -> Sequence[str]:
        """The values."""

    @property
    def inputs(self) -> Sequence[str]:
        """What the file computes them from."""

    def values(self, arrays: Mapping[str, ArrayLike]) -> Mapping[str, NDArray[Any]]:
        """The values for `arrays` of the inputs, by name."""


@dataclass(frozen=True)
class Interface:
    """What a component takes: its inputs, its buckets by name, and the axes and inputs that the config fixes.

    `gone` are inputs of the file that nothing reads where the component is a part of it: samples may have them. If it
    begins in the `middle` of the file, the values there are computed from them for samples that don't have these.
    `takes_nan` are inputs in which the model itself replaces a NaN.
    """

    inputs: tuple[TensorSpec, ...]
    buckets: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    fixed: Mapping[str, int] = field(default_factory=dict)
    constants: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    gone: tuple[str, ...] = ()
    middle: ComputedMiddle | None = None
    takes_nan: frozenset[str] = frozenset()

    @property
    def names(self) -> tuple[str, ...]:
        """The inputs of the original, those that the config fixes or leaves out included."""
        return (*(spec.name for spec in self.inputs), *self.constants, *self.gone)

    def takes(self, arrays: Mapping[str, ArrayLike]) -> bool:
        """Whether all that the component takes is there, or follows from what is."""
        missing = {spec.name for spec in self.inputs if spec.name not in arrays}
        return not missing or (
            self.middle is not None and missing.issubset(self.middle.names) and arrays.keys() >= {*self.middle.inputs}
        )

    def filled(self, arrays: Mapping[str, ArrayLike]) -> Mapping[str, ArrayLike]:
        """The arrays, with values in the middle of the file where these are missing and follow from the rest.

        Raises:
            CalibrationError: the file can't compute them.
        """
        if self.middle is None or all(spec.name in arrays for spec in self.inputs) or not self.takes(arrays):
            return arrays
        return {**self.middle.values(arrays), **arrays}

    def longest(self, axis: str) -> int:
        """The largest value of an axis over all buckets, or its fixed one; 1 if the config doesn't mention it."""
        return max((axes[axis] for axes in self.buckets.values() if axis in axes), default=self.fixed.get(axis, 1))


def conform(arrays: Mapping[str, ArrayLike], interface: Interface, *, where: str) -> dict[str, NDArray[Any]]:
    """Fresh, contiguous copies in the model's order and dtypes.

    They are copies, since an application may go on writing into the buffers that it passed. An array is converted
    between integer types if no value changes, and between float types if all values stay finite, but never between
    integers and floats. An input that the config fixes may be there with that value, and is left out.

    Raises:
        CalibrationError: an input is unknown or missing, or has another value than the config fixes, the wrong kind of
            dtype, rank or dim, no elements, an infinity, or a NaN that the model does not replace; or an axis has two
            lengths or is longer than in any bucket. The error names `where`, the sample.
    """
    inputs = interface.inputs
    arrays = interface.filled(arrays)
    specs = {spec.name: spec for spec in inputs}
    try:
        for name in arrays:
            if name in interface.constants:
                _check_constant(name, arrays[name], interface.constants[name])
            elif name not in specs and name not in interface.gone:
                raise _unknown(str(name), specs)
        missing = [str(spec) for spec in inputs if spec.name not in arrays]
        if missing:
            own = "" if interface.middle is None else f", or for {', '.join(interface.middle.inputs)} of the whole file"
            raise CalibrationError(
                f"the sample has no array for {_listed(missing)}",
                remedy=f"give an array for every input of the model{own}",
            )
        taking = interface.takes_nan
        checked = {spec.name: _conform_array(arrays[spec.name], spec, takes_nan=spec.name in taking) for spec in inputs}
        _check_lengths(axis_lengths(checked, inputs), interface)
    except CalibrationError as error:
        raise error.but(where=where) from None
    return checked


def _check_constant(name: str, value: ArrayLike, fixed: NDArray[Any]) -> None:
    given = np.asarray(value)
    if given.size == fixed.size and np.array_equal(given.ravel().astype(fixed.dtype), fixed.ravel()):
        return
    found, kept = (
        array.item() if array.size == 1 else f"{array.dtype} {list(array.shape)}" for array in (given, fixed)
    )
    raise CalibrationError(
        f"input {name!r} is {found} here, and the config fixes it to {kept}",
        why="'constants' says that it has that value wherever the model is used, and the model is built for it alone",
        remedy=f"leave {name!r} out of the samples and take out those that need another, or take it out of 'constants'",
    )


def _unknown(name: str, specs: Mapping[str, TensorSpec]) -> CalibrationError:
    return CalibrationError(
        f"the component has no input {name!r}{did_you_mean(name, specs)}",
        why=f"it takes {_listed(map(str, specs.values()))}",
        remedy="name the arrays like the inputs",
    )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)


def _conform_array(value: ArrayLike, spec: TensorSpec, *, takes_nan: bool) -> NDArray[Any]:
    try:
        array = np.asarray(value)
    except Exception as error:  # an object of the application's own may raise anything
        raise CalibrationError(f"input {spec.name!r} is no array", why=str(error)) from None
    array = _converted(array, spec)
    if array.ndim != len(spec.shape):
        raise CalibrationError(
            f"input {spec.name!r} has rank {array.ndim}, shape {list(array.shape)}",
            why=f"the model takes {spec}",
            remedy="reshape it; a batch of one is a dim too",
        )
    for position, (dim, length) in enumerate(zip(spec.shape, array.shape, strict=True)):
        if isinstance(dim, int) and dim != length:
            raise CalibrationError(
                f"input {spec.name!r} has {length} in dim {position}, shape {list(array.shape)}",
                why=f"the model takes {spec}",
            )
    if array.size == 0:
        raise CalibrationError(
            f"input {spec.name!r} is empty, shape {list(array.shape)}", remedy="take this sample out of the set"
        )
    if array.dtype.kind == "f" and (np.isinf(array) if takes_nan else ~np.isfinite(array)).any():
        raise CalibrationError(
            f"input {spec.name!r} holds NaN or infinity",
            why="the NPU would take it for a number, and the model does not replace it before it computes with it",
            remedy="give the number that is meant, in the application too, such as -100 in a mask; a NaN is taken where"
            " the model has a guard on the input itself, such as Where(IsNaN(x), 0, x)",
        )
    return array


def _converted(array: NDArray[Any], spec: TensorSpec) -> NDArray[Any]:
    try:
        dtype = np.dtype(spec.dtype)
    except TypeError:
        dtype = np.dtype(np.void)
    if dtype.kind not in "biuf":
        raise CalibrationError(
            f"input {spec.name!r} is {spec.dtype}, which samples can't hold",
            remedy="export the model with integer, bool or float16/32/64 inputs",
        )
    same_kind = array.dtype.kind == dtype.kind or {array.dtype.kind, dtype.kind} <= _INTEGERS
    if same_kind:
        with np.errstate(over="ignore"):
            converted = np.array(array, dtype, order="C", copy=True)
        if dtype.kind == "f" or np.array_equal(converted, array):
            return converted
    raise CalibrationError(
        f"input {spec.name!r} is {array.dtype}, the model takes {spec.dtype}",
        why="some values don't fit that type" if same_kind else "one is whole numbers and the other isn't",
        remedy=f"pass the right array, or convert it: array.astype('{spec.dtype}')",
    )


def _check_lengths(lengths: Mapping[str, int], interface: Interface) -> None:
    bucketed = {axis for axes in interface.buckets.values() for axis in axes}
    for axis, length in lengths.items():
        limit = interface.longest(axis)
        if axis in interface.fixed and length != limit:
            raise CalibrationError(
                f"axis {axis!r} is {length}, and the config fixes it to {limit}",
                why="samples are padded to 'buckets' alone, and taken apart nowhere",
                remedy=f"give samples of just that length (of a batch, {limit} in one array), or "
                + _other_size(axis, length, limit),
            )
        if axis not in bucketed and length > limit:
            raise CalibrationError(
                f"axis {axis!r} is {length}, and it must be {limit}",
                why=f"the config {f'fixes it to {limit}' if axis in interface.fixed else 'has no bucket for it'}",
                remedy=f"give one sample at a time, or name {axis!r} under 'buckets' or 'fixed'",
            )
    if interface.buckets and smallest_bucket(lengths, interface.buckets) is None:
        raise fits_no_bucket("the sample", lengths, interface.buckets)


def _other_size(axis: str, length: int, limit: int) -> str:
    """What to write in place of a fixed size: what is longer fits into no bucket of it, and what is shorter does."""
    key = axis if re.fullmatch(r"\w+", axis) else f"'{axis}'"
    if length > limit:
        return f"write what the model is given in use, if that is {length}: fixed: {{{key}: {length}}}"
    return (
        "put the axis under 'buckets' in place of 'fixed' so that shorter ones are padded:"
        f" buckets: {{{key}: [{limit}]}}"
    )
