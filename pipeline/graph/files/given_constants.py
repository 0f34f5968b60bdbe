"""Inputs that the config fixes to a value: they become constants, and are inputs no more.

A value is a number, a truth value or nested lists of them; a single one fills an input whose dims are all numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, ValueInfoProto, numpy_helper

from pipeline.contracts.codec import NumberTree
from pipeline.contracts.ingest import GivenConstant
from pipeline.errors import ConfigError
from pipeline.graph.files.model_file import value_signature


def give_constants(model: ModelProto, given: Mapping[str, NumberTree]) -> dict[str, GivenConstant]:
    """Make each input that `given` names an initializer of its value; names that are no inputs are left aside.

    Returns those that are inputs by name.

    Raises:
        ConfigError: a value is not of the type or shape that the input is declared with.
    """
    found: dict[str, GivenConstant] = {}
    for declared in model.graph.input:
        if declared.name not in given:
            continue
        values = _array(given[declared.name], declared)
        for number, tensor in enumerate(model.graph.initializer):
            if tensor.name == declared.name:  # the value it has where nobody gives one
                del model.graph.initializer[number]
                break
        model.graph.initializer.append(numpy_helper.from_array(values, declared.name))
        axes = tuple(dim for dim in value_signature(declared).shape if isinstance(dim, str))
        found[declared.name] = GivenConstant(values.dtype.name, values.shape, given[declared.name], axes or None)
    return found


def constant_arrays(given: Mapping[str, GivenConstant]) -> dict[str, NDArray[Any]]:
    """What :func:`give_constants` returned, as arrays by name."""
    return {name: np.broadcast_to(np.array(each.value, each.dtype), each.shape) for name, each in given.items()}


def _array(value: NumberTree, declared: ValueInfoProto) -> NDArray[Any]:
    spec = value_signature(declared)
    dtype, shape = np.dtype(spec.dtype), spec.shape
    try:
        written = np.array(value)
    except ValueError:
        raise _unfit(declared, value, "its lists are of different lengths") from None
    if dtype.kind not in "biuf":
        raise _unfit(declared, value, "only numbers and truth values can be given")
    fitting = {"b": "b", "i": "iu", "u": "iu", "f": "iuf"}[dtype.kind]
    if written.dtype.kind not in fitting:
        kinds = {"b": "true or false", "f": "numbers"}
        raise _unfit(declared, value, f"it takes {kinds.get(dtype.kind, 'whole numbers')}")
    with np.errstate(over="ignore"):
        values = written.astype(dtype)
    if dtype.kind == "f" and not np.isfinite(values).all():
        raise _unfit(declared, value, f"it is beyond what {dtype} holds")
    if dtype.kind in "iu" and not np.array_equal(values, written):
        raise _unfit(declared, value, f"it is beyond what {dtype} holds")
    sizes = [dim if isinstance(dim, int) and dim > 0 else None for dim in shape]
    known = [size for size in sizes if size is not None]
    if values.ndim == 0 and len(known) == len(sizes):
        return np.full(known, values)
    if values.ndim == 0:
        raise _unfit(
            declared, value, "a single value fills an input whose dims are all numbers", _example(value, sizes)
        )
    if values.ndim != len(sizes) or any(
        size not in (None, have) for size, have in zip(sizes, values.shape, strict=True)
    ):
        raise _unfit(declared, value, f"the shape of what is given is {list(values.shape)}")
    return values


def _example(value: NumberTree, sizes: Sequence[int | None]) -> str:
    """How a value is written for dims of which some are not known."""
    nested = str(value).lower() if isinstance(value, bool) else str(value)
    for size in reversed(sizes):
        nested = f"[{', '.join([nested] * min(size or 2, 3))}{', …' if size and size > 3 else ''}]"
    return f"write it as often as 'fixed' has it, in lists: {nested} where each open dim is 2"


def _unfit(declared: ValueInfoProto, value: NumberTree, why: str, remedy: str = "") -> ConfigError:
    spec = value_signature(declared)
    dims = ", ".join("?" if dim is None else str(dim) for dim in spec.shape)
    shown = str(_listed(value))
    return ConfigError(
        f"input {declared.name!r} can't be fixed to {shown if len(shown) <= 60 else shown[:57] + '...'}",
        where=f"constants.{declared.name}",
        why=f"the model takes {spec.dtype} [{dims}], and {why}",
        remedy=remedy or "write a value of that type and shape: a number, true or false, or lists of them",
    )


def _listed(value: NumberTree) -> object:
    """As a config spells it."""
    return [_listed(item) for item in value] if isinstance(value, tuple) else value
