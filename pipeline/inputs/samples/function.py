"""Reader `python`: takes samples from a function of the project."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.errors import CalibrationError
from pipeline.inputs.samples.request import Call, ReadRequest, Sample
from pipeline.inputs.samples.user_code import UserFunction, seed
from pipeline.plain_text import did_you_mean


def read(request: ReadRequest) -> Iterator[Call]:
    """The calls made from the items that ``run(path)`` yields; `path` is the config's `calibration.file`, or None.

    Each item maps input names to arrays, or component names to such mappings. Entries `text` and `label` that aren't
    inputs describe the sample. Arrays of an item that names no components go to every component that takes them.

    Raises:
        CalibrationError: the function raises, yields something else, or yields arrays that don't fit.
    """
    function = UserFunction(request.existing(request.code, "run"), request.calibration.run or "run")
    path = None if request.samples is None else request.existing(request.samples, "file")
    seed(0)
    limit = request.calibration.max_samples
    for index, item in enumerate(itertools.islice(_items(function, path), limit)):
        sample = Sample(index, f"{function.shown}:{function.name}[{index}]")
        if not isinstance(item, Mapping):
            raise CalibrationError(
                f"{function.name}() yielded {type(item).__name__}, not a mapping",
                where=sample.name,
                remedy="yield {'input_ids': array, ...} for each sample",
            )
        arrays, sample = request.describe(item, sample)
        if arrays and all(isinstance(value, Mapping) for value in arrays.values()):
            for component, own in arrays.items():
                yield request.given(_known(str(component), request, sample), own, sample)
        else:
            yield from request.calls(arrays, sample)


def _items(function: UserFunction, path: Any) -> Iterator[Any]:
    with function.explained(f"{function.name}() failed"):
        # Only the user's code runs in here: what the caller does with an item happens outside the generator.
        yield from function.call(path)


def _known(component: str, request: ReadRequest, sample: Sample) -> str:
    if component not in request.interfaces:
        raise CalibrationError(
            f"the model has no component {component!r}{did_you_mean(component, request.interfaces)}",
            where=sample.name,
            why=f"it has {', '.join(request.interfaces)}",
        )
    return component
