"""Computes the user's own score, with a function of the project's `calibration/` folder."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from pipeline.errors import CalibrationError, VerificationError
from pipeline.inputs.samples.held_out import ScoredSample
from pipeline.inputs.samples.user_code import UserFunction

Outputs = Mapping[str, NDArray[Any]]


def score(
    file: Path, name: str, samples: Sequence[ScoredSample], outputs: Sequence[Outputs], reference: Sequence[Outputs]
) -> float:
    """What `name(samples, outputs)` in `file` returns, or `name(samples, outputs, reference)` if it takes three.

    `outputs` has a model's outputs for each sample, `reference` the original model's; both without padding.

    Raises:
        VerificationError: the function fails, or returns no finite number.
    """
    try:
        function = UserFunction(file, name)
        with function.explained(f"score function {name}() failed"):
            takes_reference = _positional(function.call) > 2
            given = (samples, outputs, reference) if takes_reference else (samples, outputs)
            value = float(function.call(*given))
            if not math.isfinite(value):
                raise ValueError(f"it returned {value}")
    except CalibrationError as error:
        raise VerificationError(error.what, where=error.where, why=error.why, remedy=error.remedy) from error
    return float(format(value, ".6g"))


def _positional(function: Callable[..., Any]) -> int:
    """How many arguments a function must be given by position."""
    parameters = inspect.signature(function).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(parameter.kind in kinds and parameter.default is parameter.empty for parameter in parameters)
