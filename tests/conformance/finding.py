"""What a finding is: where HTP is wrong, what shows it, and what the project does about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from tests.conformance.cases import Case, single
from tests.conformance.sweep import Outcome

FORECASTS = (
    "fp16_overflow", "fp16_flush", "requantize_underflow", "saturation", "unequal_comparison", "exponent",
    "integer_function", "integer_overflow", "negative_index", "rescale_overflow", "integer_divisor",
)  # fmt: skip
"""The rules of the forecast, which tells from ranges and encodings before anything is compiled."""


@dataclass(frozen=True)
class Finding:
    """Where HTP is wrong. `operators` and `edges` are patterns, of `edge/variant` the latter; `done` is what is done.

    `condition` is what was measured of where it begins. `done` is `rewrite NAME`, `refused`, `forecast RULE`,
    `option KEY` of a config, `encoded alike` or `clamped apart` (the quantizer does), `missed on the CPU` (rounding has
    spoiled it before the chip does), `judged in dB` (the format's rounding of what becomes an integer), `judged as near
    ties` (legitimate; the ladder looks at the margin) or `open`.
    """

    id: str
    operators: tuple[str, ...]
    formats: tuple[str, ...]
    edges: tuple[str, ...]
    comes_out: str
    right: str
    condition: str
    done: str
    canary: Callable[[], Case] | None = None

    def covers(self, outcome: Outcome) -> bool:
        """Whether this explains what became of a case."""
        place = f"{outcome.edge}/{outcome.variant}"
        return (
            any(fnmatchcase(outcome.operator, pattern) for pattern in self.operators)
            and outcome.number_format in self.formats
            and any(fnmatchcase(place, pattern) for pattern in self.edges)
        )


def canary(operator: str, number_format: str, inputs: Sequence[Any], **how: Any) -> Callable[[], Case]:
    """A case of these inputs; floats become rows of float32."""

    def build() -> Case:
        arrays = [np.array(given, np.float32) if isinstance(given, float | list) else given for given in inputs]
        model, feeds = single(operator, arrays, **how)
        return Case(operator, number_format, "canary", "", model, feeds)

    return build
