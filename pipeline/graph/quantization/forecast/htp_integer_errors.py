"""Rules of the forecast for operators that compute in integers: where HTP's steps inside are too coarse, or end."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from onnx import NodeProto

from pipeline.contracts.forecast import FP16, Forecast
from pipeline.graph.ir.index import is_op
from pipeline.graph.ir.loudness import floor_below
from pipeline.graph.ir.traverse import label
from pipeline.graph.quantization.calibration.ranges import Range
from pipeline.graph.quantization.chip_limits import (
    GELU_WIDTH,
    LARGEST_OF_INTEGERS,
    LARGEST_RESCALE,
    LARGEST_ZERO_POINT,
    LEAST_OF_INTEGERS,
    NARROWEST_OF_INTEGERS,
    RESCALED_IN_8_BITS,
    RESCALED_WITH_ZERO_POINT,
    RESCALED_WITHOUT,
    TANGENT_LARGEST,
)
from pipeline.graph.quantization.forecast.known_encodings import KnownEncodings
from pipeline.graph.quantization.qdq.qdq_model import Encoding


def _is_coarse_in_integers(known: KnownEncodings) -> Iterator[Forecast]:
    """Functions of 16 bit integers that HTP computes in a coarser format inside."""
    for node in known.nodes:
        stored = known.encoding(node) if node.output else None
        if stored is None or stored[1].bits < 16 or known.in_float(node):
            continue
        given, made = known.largest(node.input[0]), known.largest(node.output[0])
        least, narrowest = LEAST_OF_INTEGERS.get(node.op_type, 0.0), NARROWEST_OF_INTEGERS.get(node.op_type, 0.0)
        width = _width(known, node.input[0]) if narrowest else math.inf
        if 0 < given <= least:
            yield Forecast("integer_function", stored[0], label(node), given, least, nodes=(node.name,), instead=FP16)
        elif given > 0 and width < narrowest:
            yield Forecast(
                "integer_function", stored[0], label(node), width, narrowest, nodes=(node.name,), instead=FP16
            )
        elif is_op(node, "Tan") and made > TANGENT_LARGEST:
            yield Forecast("integer_function", stored[0], label(node), made, TANGENT_LARGEST)
        elif is_op(node, "Gelu") and 0 < stored[1].covers.width < GELU_WIDTH:
            yield Forecast("integer_function", stored[0], label(node), stored[1].covers.width, GELU_WIDTH)


def _width(known: KnownEncodings, name: str) -> float:
    """How much the encoding of a value covers; without limit where it has none."""
    encoding = known.given(name)
    return encoding.covers.width if encoding is not None else math.inf


def _goes_too_far_in_integers(known: KnownEncodings) -> Iterator[Forecast]:
    """Functions of integers of any width that HTP computes wrongly where their input is large."""
    for node in known.nodes:
        limit = LARGEST_OF_INTEGERS.get(node.op_type, math.inf)
        stored = known.encoding(node) if limit < math.inf else None
        if stored is not None and not known.in_float(node) and known.largest(node.input[0]) > limit:
            figure = known.largest(node.input[0])
            yield Forecast("integer_function", stored[0], label(node), figure, limit, nodes=(node.name,), instead=FP16)


def _rescales_too_far(known: KnownEncodings) -> Iterator[Forecast]:
    """Operators that turn integers of one encoding into those of a much finer one."""
    for node in known.nodes:
        stored = known.encoding(node) if node.output else None
        if stored is None or known.in_float(node):
            continue
        for name in node.input:
            given = known.given(name) if name in known.index.makers else None
            limit = _rescale_limit(node, given) if given is not None else math.inf
            if given is not None and given.scale / stored[1].scale > limit:
                figure = given.scale / stored[1].scale
                yield Forecast(
                    "rescale_overflow", stored[0], label(node), figure, limit, nodes=(node.name,), instead=FP16
                )


def _rescale_limit(node: NodeProto, given: Encoding) -> float:
    """By how much a node may multiply the integers of an input."""
    limit = LARGEST_RESCALE.get(given.bits, math.inf)
    if given.bits < 16:
        return limit if is_op(node, *RESCALED_IN_8_BITS) else math.inf
    if is_op(node, *RESCALED_WITH_ZERO_POINT):
        return min(limit, LARGEST_ZERO_POINT / max(given.zero_point, 1))
    return limit if is_op(node, *RESCALED_WITHOUT) else math.inf


def _divides_by_nothing(known: KnownEncodings) -> Iterator[Forecast]:
    """Quotients so large that what they are by must be 0 in its encoding."""
    for node in known.nodes:
        if not is_op(node, "Div", "Reciprocal") or known.encoding(node) is None or known.in_float(node):
            continue
        divisor, results = node.input[-1], known.largest(node.output[0])
        given, encoding = _most(known, node.input[0]) if is_op(node, "Div") else 1.0, known.given(divisor)
        maker = known.maker(divisor)
        if encoding is None or not given or not results:
            continue
        smallest, limit = given / results, encoding.scale / 2
        if smallest < limit and floor_below(known.index, divisor) < limit:
            nodes = (*((maker.name,) if maker is not None else ()), node.name)
            value = known.origin(divisor)
            yield Forecast("integer_divisor", value, label(node), smallest, limit, nodes=nodes, instead=FP16)


def _most(known: KnownEncodings, name: str) -> float:
    """The largest magnitude of a value, or what the encoding of a constant ends at."""
    encoding = known.given(name)
    ends = encoding.covers if encoding is not None else Range(0.0, 0.0)
    return known.largest(name) or max(-ends.low, ends.high)


OF_INTEGERS: tuple[Callable[[KnownEncodings], Iterator[Forecast]], ...] = (
    _is_coarse_in_integers, _goes_too_far_in_integers, _rescales_too_far, _divides_by_nothing,
)  # fmt: skip
