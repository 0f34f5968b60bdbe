"""Finds the bucket for an input, pads the input to it, and cuts outputs back to the input.

This runs in every call, so whatever depends on the component alone is computed once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import InputError, RunError, TooLongError, spelled
from .index import Component, Dim, Tensor

Arrays = dict[str, NDArray[Any]]
Lengths = dict[str, int]


class Fitting:
    """The shapes of one component, and of each of its buckets."""

    def __init__(self, component: Component) -> None:
        self._name = component.name
        self._inputs = component.inputs
        self._names = frozenset(tensor.name for tensor in component.inputs)
        self._constants = {constant.name: constant.value for constant in component.constants}
        self._buckets = [bucket.axes for bucket in component.buckets]
        self._limits = component.limits
        self._ids = [(tensor, *tensor.range) for tensor in component.inputs if tensor.range is not None]
        self._tells = list(_tells(component))
        self._known = {tensor.name: _known(tensor) for tensor in component.inputs}
        self._padded = [
            [(tensor.name, tensor.dtype, _shape(tensor, axes), tensor.padding) for tensor in component.inputs]
            for axes in self._buckets
        ]
        self._outputs = component.outputs
        self.output_names = [tensor.name for tensor in component.outputs]
        self._follows = [
            [(number, tensor) for number, tensor in enumerate(component.outputs) if _grows(tensor, axes)]
            for axes in self._buckets
        ]

    def lengths(self, inputs: Mapping[str, NDArray[Any]]) -> Lengths:
        """The length of every axis in these inputs; raises InputError if they are not the component's.

        An input that the release gives a fixed value may be among them if it has this value.
        """
        if inputs.keys() != self._names:
            self._check_names(inputs)
        for tensor in self._inputs:
            array = inputs[tensor.name]
            if array.dtype != tensor.dtype or array.ndim != len(tensor.dims):
                raise self._other_kind(tensor, array)
            shape = array.shape
            for place, size in self._known[tensor.name]:
                if shape[place] != size:
                    raise self._wrong(
                        tensor, f"dim {place} is {shape[place]}, not {size}", "give an array of this shape"
                    )
        for tensor, least, most in self._ids:
            array = inputs[tensor.name]
            if array.size and (array.min() < least or array.max() > most):
                raise self._no_such_row(tensor, array, least, most)
        lengths: Lengths = {}
        for axis, name, place, dim in self._tells:
            size = inputs[name].shape[place]
            length = dim.length(size)
            if lengths.setdefault(axis, -1 if length is None else length) != length or length < 1:
                raise self._disagreement(axis, inputs)
        return lengths

    def bucket(self, lengths: Lengths) -> int:
        """The number of the smallest bucket that holds these lengths; raises TooLongError if none does."""
        for number, axes in enumerate(self._buckets):
            for axis, size in axes.items():
                if lengths[axis] > size:
                    break
            else:
                return number
        remedy = "shorten it, give a splitter=, or build a release with a bucket that holds it"
        raise TooLongError(self._name, lengths, self._limits, remedy)

    def pad(self, inputs: Mapping[str, NDArray[Any]], bucket: int) -> Arrays:
        """The inputs at their sizes in a bucket, padded at the end of axes; one with the right size is not copied."""
        padded: Arrays = {}
        for name, dtype, shape, value in self._padded[bucket]:
            array = inputs[name]
            if array.shape != shape:
                buffer = np.empty(shape, dtype)
                buffer.fill(value)
                buffer[tuple(map(slice, array.shape))] = array
                array = buffer
            padded[name] = array
        return padded

    def crop(self, outputs: Sequence[NDArray[Any]], lengths: Lengths, bucket: int) -> Arrays:
        """Outputs by name, as views of the parts that belong to the input. A dim with an unknown rule is not cut.

        Raises:
            RunError: an output has another rank than release.json says, or a dim is shorter than it should be.
        """
        named = {tensor.name: array for tensor, array in zip(self._outputs, outputs)}
        if lengths == self._buckets[bucket]:
            return named
        for number, tensor in self._follows[bucket]:
            array = outputs[number]
            wanted = [dim.at(lengths) for dim in tensor.dims]
            if len(wanted) != array.ndim or any(
                have < size for have, size in zip(array.shape, wanted) if size is not None
            ):
                raise self._other_output(tensor, array, wanted)
            named[tensor.name] = array[tuple(map(slice, wanted))]
        return named

    def valid_share(self, lengths: Lengths, bucket: int) -> float:
        """The share of the bucket that the input fills, 0 to 1: the product over its axes of length by size."""
        share = 1.0
        for axis, size in self._buckets[bucket].items():
            share *= lengths[axis] / size
        return share

    def _check_names(self, inputs: Mapping[str, NDArray[Any]]) -> None:
        if inputs.keys() - self._constants.keys() != self._names:
            raise self._other_names(inputs)
        for name in sorted(inputs.keys() & self._constants.keys()):
            fixed, given = self._constants[name], np.asarray(inputs[name])
            if given.size != fixed.size or (given.ravel() != fixed.ravel()).any():
                shown = fixed.item() if fixed.size == 1 else f"one {fixed.dtype} {list(fixed.shape)}"
                raise InputError(
                    f"input {name} of {self._name} is fixed to {shown} in this release",
                    where=f"{self._name}, {name}",
                    why="the model was built for that value alone, and takes no other",
                    next=f"leave {name} out, or use a release that was built for the value you need",
                )

    def _other_names(self, inputs: Mapping[str, NDArray[Any]]) -> InputError:
        missing = sorted(self._names - inputs.keys())
        more = sorted(map(str, inputs.keys() - self._names - self._constants.keys()))
        why = [f"{', '.join(missing)} missing"] if missing else []
        why += [f"{', '.join(more)} unknown"] if more else []
        return InputError(
            f"these are not the inputs of {self._name}",
            where=self._name,
            why="; ".join(why),
            next=f"give {'; '.join(map(described, self._inputs))}",
        )

    def _other_kind(self, tensor: Tensor, array: NDArray[Any]) -> InputError:
        if array.dtype != tensor.dtype:
            remedy = f"convert it, for example array.astype({str(tensor.dtype)!r})"
            return self._wrong(tensor, f"its type is {array.dtype}, not {tensor.dtype}", remedy)
        return self._wrong(tensor, f"its rank is {array.ndim}, not {len(tensor.dims)}", "give an array of this shape")

    def _wrong(self, tensor: Tensor, why: str, remedy: str) -> InputError:
        what = f"input {tensor.name} is not as {self._name} takes it"
        return InputError(what, where=f"{self._name}, {described(tensor)}", why=why, next=remedy)

    def _no_such_row(self, tensor: Tensor, array: NDArray[Any], least: int, most: int) -> InputError:
        beyond = (array < least) | (array > most)
        place = [int(at) for at in np.argwhere(beyond)[0]]
        value = int(array[tuple(place)])
        remedy = f"give ids from {least} to {most}"
        if -most - 1 <= value < 0:
            remedy += f"; ONNX counts a negative one from the end: that is {value + most + 1}"
        return self._wrong(
            tensor,
            f"{value} at {place} is beyond {least} to {most}, the rows of its table"
            + (f"; so are {more - 1} more" if (more := int(beyond.sum())) > 1 else ""),
            remedy,
        )

    def _disagreement(self, axis: str, inputs: Mapping[str, NDArray[Any]]) -> InputError:
        told = [
            f"{name} has {inputs[name].shape[place]} on dim {place}"
            + ("" if dim == Dim(axis=axis) else f", {dim_text(dim)}")
            for other, name, place, dim in self._tells
            if other == axis
        ]
        empty = any(
            dim.length(inputs[name].shape[place]) == 0 for other, name, place, dim in self._tells if other == axis
        )
        what = "the input is empty" if empty else f"the inputs of {self._name} disagree about axis {axis}"
        remedy = f"give at least one place of {axis}" if empty else "give arrays of one and the same input"
        return InputError(what, where=f"{self._name}, axis {axis}", why="; ".join(told), next=remedy)

    def _other_output(self, tensor: Tensor, array: NDArray[Any], wanted: list[int | None]) -> RunError:
        return RunError(
            f"{self._name} returned something else than the release says",
            where=f"{self._name}, output {tensor.name}",
            why=f"its shape is {list(array.shape)}, of which {wanted} should be the input's",
            next="get the release again, or report it to those who made it",
        )


def described(tensor: Tensor) -> str:
    """An input as messages show it: `input_ids: int64 [1, sequence]`."""
    return f"{tensor.name}: {tensor.dtype} [{', '.join(map(dim_text, tensor.dims))}]"


def dim_text(dim: Dim) -> str:
    """A dim as messages show it: `64`, `sequence`, `320*frames+1`, `samples//320`, `?`."""
    if dim.axis is None:
        return "?" if dim.size is None else str(dim.size)
    grown = (f"{dim.times}*" if dim.times != 1 else "") + dim.axis + (f"{dim.offset:+}" if dim.offset else "")
    if dim.per == 1:
        return grown
    return f"({grown})//{dim.per}" if dim.offset else f"{grown}//{dim.per}"


def _tells(component: Component) -> Iterator[tuple[str, str, int, Dim]]:
    """The dims from which lengths of axes are read, each as axis, input, place of the dim, and dim."""
    for tensor in component.inputs:
        for place, dim in enumerate(tensor.dims):
            if dim.axis is not None and dim.per == 1:
                yield dim.axis, tensor.name, place, dim


def _known(tensor: Tensor) -> list[tuple[int, int]]:
    return [(place, dim.size) for place, dim in enumerate(tensor.dims) if dim.size is not None]


def _shape(tensor: Tensor, axes: Mapping[str, int]) -> tuple[int, ...]:
    sizes = [dim.at(axes) for dim in tensor.dims]
    assert all(size is not None for size in sizes), spelled(axes)  # the index refuses such an input
    return tuple(size for size in sizes if size is not None)


def _grows(tensor: Tensor, axes: Mapping[str, int]) -> bool:
    return any(dim.axis in axes for dim in tensor.dims if dim.axis is not None)
