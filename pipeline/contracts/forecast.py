"""The rows of a forecast: one for each thing that HTP will compute wrongly, told before anything is compiled."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final, Literal

from pipeline.contracts.codec import Contract
from pipeline.frozen import dataclass

Rule = Literal[
    "fp16_overflow", "fp16_flush", "requantize_underflow", "saturation", "unequal_comparison", "exponent",
    "integer_function", "integer_overflow", "negative_index", "quiet_logarithm", "loud_stream", "rescale_overflow",
    "integer_divisor", "row_number",
]  # fmt: skip
OF_WHOLE_NUMBERS: Final[tuple[Rule, ...]] = ("integer_overflow",)
"""The rules about whole numbers, which no precision changes."""
Instead = Literal["", "uint16", "fp16"]
INTEGERS: Final = "uint16"
FP16: Final = "fp16"


@dataclass(frozen=True)
class Forecast(Contract):
    """One thing that will go wrong, or would have gone wrong: `mended` says that the encodings already avoid it.

    `figure` is beyond `limit`, both in the unit of the rule. `channels` is how many channels of a weight are concerned,
    0 if the rule is not about channels. Computing `nodes` in the precision `instead` would avoid it; both are empty if
    no precision does. `share` is the part of a logarithm's range that is lost, 0 for other rules.
    """

    rule: Rule
    value: str
    node: str
    figure: float
    limit: float
    channels: int = 0
    mended: bool = False
    nodes: tuple[str, ...] = ()
    instead: Instead = ""
    share: float = 0.0

    @property
    def effect(self) -> str:
        """What happens on the chip."""
        lost = f", {self.share:.0%} of its range, up to {self.beyond:.1f} off" if self.share else ""
        return f"{_TOLD[self.rule][0]}{lost}"

    @property
    def remedy(self) -> str:
        """What to do about it."""
        return "mended: their scales were raised" if self.mended else _TOLD[self.rule][1]

    @property
    def beyond(self) -> float:
        """How far the figure is beyond the limit: the logarithm of their ratio, or the figure if one of them is 0."""
        return abs(math.log(max(self.figure, 1e-300) / self.limit)) if self.limit else abs(self.figure)

    def line(self) -> str:
        """The forecast in one line, for a log or a message."""
        channels = f", {self.channels} channels" if self.channels else ""
        where = f"{self.value!r} of {self.node}{channels}"
        return f"{self.rule}: {where}: {self.figure:.4g}, limit {self.limit:.4g}: {self.effect}; {self.remedy}"


_TOLD: Mapping[str, tuple[str, str]] = {
    "fp16_overflow": (
        "is cut off in float16, at 65504 or 131008, or rounded too far for this operator",
        "keep these nodes in 16 bit integers",
    ),
    "fp16_flush": (
        "what it divides by, or takes the logarithm or sine of, is 0 in float16 or has too few steps",
        "raise the floor in the model to 1e-4, scale the value before, or keep these nodes in 16 bit integers",
    ),
    "requantize_underflow": ("these channels come out as the end of their encoding", "keep the node in float16"),
    "saturation": (
        "elements beyond the encoding are cut off",
        "calibrate with method: minmax, or give the value a wider type",
    ),
    "unequal_comparison": (
        "its two sides are rounded differently, so that equal numbers compare as unequal",
        "keep it and what makes its two sides in float16, or compare integers",
    ),
    "integer_function": (
        "the function of these integers is computed with steps that show",
        "scale the value before and after in the model, or keep a node that is named in float16",
    ),
    "integer_overflow": (
        "integers beyond int32 become the largest int32, and sums beyond 2^24 are rounded",
        "give the model smaller integers: hash, offset or scale them before, or take this part out of it",
    ),
    "negative_index": (
        "a lookup in integers takes no index from the end: it gives the lowest number of its encoding",
        "add the size of the table to negative ones before, or keep the lookup in float16",
    ),
    "quiet_logarithm": (
        "the quiet part of what a logarithm is taken of is below half a step of this encoding",
        "keep these nodes in float16",
    ),
    "rescale_overflow": (
        "one step of what it reads is so many of its result that HTP multiplies by less, or gives the largest number",
        "keep the node in float16, or cut off in the model what makes its input so wide",
    ),
    "integer_divisor": (
        "what it divides by is less than half a step of its encoding at times: 0, and the quotient anything",
        "raise the divisor's floor in the model, or keep these nodes in float16",
    ),
    "row_number": (
        "row numbers of a table that are floats: neighbours become one, and another row is looked up",
        "give the model integers, or floats of which nothing is computed before they are cast",
    ),
    "loud_stream": (
        "steps of 16 bits over what a few tokens reach leave nothing of the others, which a norm reads by themselves",
        "keep these nodes in float16, in which the stream is scaled down",
    ),
    "exponent": ("results this far below the largest become 0", "keep these nodes in float16"),
}


def harmful(forecasts: Iterable[Forecast]) -> tuple[Forecast, ...]:
    """The forecasts that no encoding avoids yet."""
    return tuple(each for each in forecasts if not each.mended)
