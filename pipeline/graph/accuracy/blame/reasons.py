"""Why a value went wrong: a few named rules over what was measured at it, tried in order.

The rules for quantization ask first what most of the error comes from: the value's own encoding, the node's quantized
weights, or what the node was given. Only what an encoding loses by itself is then explained further.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pipeline.contracts.measures import Reason
from pipeline.graph.ir.ops import SOFTMAXES
from pipeline.graph.quantization.calibration.ranges import MIN_WIDTH, Range
from pipeline.graph.quantization.qdq.qdq_model import Encoding

ENOUGH_STEPS = 1024
"""A value whose elements have that many steps of its encoding to themselves has no problem with its range: 54 dB or
more, for elements spread evenly."""

WIDE = 4.0
"""An encoding is too wide if it covers so many times the range of nearly all elements (98 % of them)."""

_SHARE = 0.5
"""A cause of at least this share of the error energy is its reason."""


@dataclass(frozen=True)
class Evidence:
    """The measurement of one value of a QDQ model.

    SQNRs in dB, None for what is no number: `total_db` of the value, `own_db` of rounding the float value to its
    encoding, `weights_db` of the node with exact inputs and quantized constants (`has_weights` if it has any),
    `inputs_db` the lowest of the node's inputs. `observed` is the range of the float value; `bulk` that of 98 % of its
    elements, or of those around zero where elements lie at both ends of the encoding and none between. `filler` is a
    constant of about the size of the encoding that the graph puts into the value. `inputs` has the same of those
    inputs of the node that are quantized.
    """

    value: str
    op: str
    total_db: float | None
    own_db: float | None
    weights_db: float | None
    has_weights: bool
    inputs_db: float | None
    encoding: Encoding
    observed: Range
    bulk: Range
    filler: float | None
    inputs: tuple[Evidence, ...] = ()

    @property
    def steps(self) -> float:
        """How many steps of the encoding nearly all elements share."""
        return self.bulk.width / self.encoding.scale

    @property
    def waste(self) -> float:
        """How many times as wide as nearly all elements the encoding is."""
        return self.encoding.covers.width / self.bulk.width if self.bulk.width else math.inf


Rule = Callable[[Evidence], Reason | None]


def degenerate(seen: Evidence) -> Reason | None:
    """The encoding has the smallest range there is: calibration saw a constant, or next to one."""
    if seen.encoding.covers.width > 1.01 * MIN_WIDTH:
        return None
    return Reason("degenerate", f"calibrated as a constant; here it is {_spelled(seen.observed)}")


def saturated(seen: Evidence) -> Reason | None:
    """Elements lie outside of what the encoding covers, by more than its rounding."""
    covers, slack = seen.encoding.covers, seen.encoding.scale
    if seen.observed.low >= covers.low - slack and seen.observed.high <= covers.high + slack:
        return None
    return Reason("saturated", f"elements {_spelled(seen.observed)} are cut off to {_spelled(covers)}")


def mask_constant(seen: Evidence) -> Reason | None:
    """The range is that of a filler, next to which the other elements have too few steps."""
    if seen.filler is None or not _too_wide(seen):
        return None
    steps = f"{seen.steps:.0f} of {2**seen.encoding.bits} steps are left for {_spelled(seen.bulk)}"
    return Reason("mask constant", f"the constant {seen.filler:.4g} sets the range: {steps}")


def outlier_range(seen: Evidence) -> Reason | None:
    """A few elements stretch the range far beyond all others."""
    if not _too_wide(seen):
        return None
    wide = f"{_spelled(seen.encoding.covers)} is {_times(seen.waste)} as wide as 98% of its elements"
    return Reason("outlier range", f"{wide}, {_spelled(seen.bulk)}")


def low_bit_softmax(seen: Evidence) -> Reason | None:
    """Probabilities in 8 bits: those below half a step, of 1/255, are gone."""
    if seen.op not in SOFTMAXES or seen.encoding.bits > 8:
        return None
    return Reason("8 bit softmax", f"probabilities below {seen.encoding.scale / 2:.2g} become 0; give it uint16")


def few_bits(seen: Evidence) -> Reason | None:
    """The range is used evenly and there are simply too few steps in it."""
    return Reason("encoding", f"{seen.encoding.bits} bits over {_spelled(seen.encoding.covers)}")


OWN: tuple[Rule, ...] = (degenerate, saturated, low_bit_softmax, mask_constant, outlier_range, few_bits)
"""Faults of an encoding; the first that applies is reported."""


def explain(seen: Evidence) -> Reason:
    """The likely reason for the error of a value."""
    if seen.total_db is None or seen.own_db is None:
        return _not_a_number(seen)
    total, own = _noise(seen.total_db), _noise(seen.own_db)
    weights = _noise(seen.weights_db) if seen.has_weights else 0.0
    if max(own, weights) >= _SHARE * total:
        return explain_local(seen)
    if seen.inputs_db is not None and _noise(seen.inputs_db) < _SHARE * _SHARE * total:
        return _amplified(seen)
    return Reason("inherited", f"from inputs, the worst of which has {_db(seen.inputs_db)}")


def explain_local(seen: Evidence) -> Reason:
    """The likely reason for what is lost at a value itself, however little that is next to what was lost before."""
    if seen.has_weights and _noise(seen.weights_db) >= _noise(seen.own_db):
        return Reason("weight", f"the node's quantized constants alone give {_db(seen.weights_db)}")
    return next(reason for rule in OWN if (reason := rule(seen)) is not None)


PADDING: Mapping[str, str] = {
    **dict.fromkeys(("Pad",), "copies the padded tail into valid positions, unless its mode is 'constant'"),
    **dict.fromkeys(
        ("GRU", "LSTM", "RNN"), "runs over the padded tail, first if it runs backwards; give it sequence_lens"
    ),
    **dict.fromkeys(
        ("Conv", "ConvTranspose", "AveragePool", "MaxPool"),
        "its kernel reaches into the padded tail, which should be zero there: mask its input",
    ),
    **dict.fromkeys(
        ("Gather", "GatherElements", "GatherND", "Slice", "Split"),
        "takes places from the end of the bucket, where the padding is: end the component at {given!r} with cut, and"
        " take the last that a sample has in the application",
    ),
    **dict.fromkeys(
        (
            "BatchNormalization", "CumSum", "GlobalAveragePool", "GlobalMaxPool", "GroupNormalization",
            "InstanceNormalization", "LayerNormalization", "LogSoftmax", "MatMul", "ReduceL2", "ReduceMax",
            "ReduceMean", "ReduceMin", "ReduceSum", "ReduceSumSquare", "Resize", "Softmax", "TopK",
        ),
        "computes over padded positions as over data: mask them, or build exact lengths",
    ),
}  # fmt: skip
"""The effect of operators on padding, for the first value that differs; `given` is the node's first input."""

COMPILE: Mapping[str, str] = dict.fromkeys(
    ("Div", "Mul", "Pow", "ReduceMean", "Reciprocal", "Sqrt", "Sub"),
    "HTP rounds each step of a formula to its encoding; a norm or activation spelt out is better as one operator",
)
"""The behaviour of HTP's operators, for the first value that differs from the CPU."""


def _amplified(seen: Evidence) -> Reason:
    """The inputs have an error that is small next to their largest elements, and the node needs the small ones."""
    for given in seen.inputs:
        for rule in (mask_constant, outlier_range):
            if (reason := rule(given)) is not None:
                return Reason(reason.name, f"of its input {given.value!r}: {reason.text}")
    return Reason("amplified", f"inputs of {_db(seen.inputs_db)} or more; the node makes their errors larger")


def _too_wide(seen: Evidence) -> bool:
    return seen.waste >= WIDE and seen.steps < ENOUGH_STEPS


def _not_a_number(seen: Evidence) -> Reason:
    if seen.inputs_db is None:
        return Reason("inherited", "its inputs are no numbers, or all zero")
    return Reason("not a number", f"the float value is {_spelled(seen.observed)}; the error has no measure")


def _noise(db: float | None) -> float:
    """Energy of the error over that of the signal."""
    return math.inf if db is None else 10 ** (-db / 10)


def _db(value: float | None) -> str:
    return "no number" if value is None else f"{value:.1f} dB"


def _times(factor: float) -> str:
    return f"{factor:.3g} times" if math.isfinite(factor) else "infinitely many times"


def _spelled(values: Range) -> str:
    return f"{values.low:.4g} to {values.high:.4g}"
