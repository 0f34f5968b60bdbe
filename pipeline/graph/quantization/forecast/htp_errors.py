"""What HTP will compute wrongly in a QDQ model, told from its encodings and the calibrated ranges before it compiles.

Each rule names a value, what was found there, and the limit that it is beyond. A rule fires only where the ranges prove
that the limit is passed on calibration samples: what might go wrong on others is for the emulator to find.

Rules of the forecast for operators that compute in integers: where HTP's steps inside are too coarse, or end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

from onnx import NodeProto

from pipeline.contracts.forecast import FP16, INTEGERS, Forecast
from pipeline.graph.ir.index import GraphIndex, is_float, is_op
from pipeline.graph.ir.loudness import floor_below, heard_by_logarithms, scalings
from pipeline.graph.ir.ops import COMPARISONS, PRODUCTS
from pipeline.graph.ir.traverse import label
from pipeline.graph.quantization.bounds.embedding_indices import BY_ELEMENT, cast_as_given
from pipeline.graph.quantization.calibration.ranges import Range
from pipeline.graph.quantization.chip_limits import (
    COUNTED_IN_FLOAT,
    FP16_ARGUMENTS,
    FP16_BITS,
    FP16_LARGEST,
    FP16_SMALLEST,
    FP16_SMALLEST_ANGLE,
    FP16_SMALLEST_NORMAL,
    FP16_SMALLEST_SHARE,
    GELU_WIDTH,
    LARGEST_INTEGER,
    LARGEST_OF_INTEGERS,
    LARGEST_RESCALE,
    LARGEST_ZERO_POINT,
    LEAST_OF_INTEGERS,
    NARROWEST_OF_INTEGERS,
    NORM_LARGEST,
    REQUANTIZE,
    RESCALED_IN_8_BITS,
    RESCALED_WITH_ZERO_POINT,
    RESCALED_WITHOUT,
    SOFTMAX_LARGEST,
    TANGENT_LARGEST,
)
from pipeline.graph.quantization.forecast.known_encodings import KnownEncodings
from pipeline.graph.quantization.operand_rules import TABLES, moves_data
from pipeline.graph.quantization.qdq.qdq_model import Encoding, computing_node


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

_RAISED = 1.01 * REQUANTIZE
"""A scale this close to the limit was raised to it."""
_CUT_OFF = 0.01
"""The part of a range that may be cut off before it is worth a word."""
_OUTWARD = 0.9
"""Ends of ranges are moved outward by up to 0.4 %: of a logarithm of 2^-24 that is a 15th of what it is taken of."""
_STEPS = 2**16
_SUMS = ("CumSum", "ReduceSum")


def forecast(
    index: GraphIndex, ranges: Mapping[str, Range], integers: Mapping[str, Range] | None = None
) -> list[Forecast]:
    """All that the ranges of the float model prove about the QDQ model of `index`, in the graph's order by rule.

    A model without Q and DQ nodes is one that runs in float16. `integers` has ranges of values of int32 and int64.
    """
    known = KnownEncodings(index, ranges, integers or {})
    rules: tuple[Callable[[KnownEncodings], Iterator[Forecast]], ...] = (
        _overflows, _overflows_inside, _flushes, _underflows, _saturates, _compares_unequal, _spans_exponents,
        _rounds_quiet_away, *OF_INTEGERS, _counts_too_far, _looks_up_from_the_end,
        _rounds_row_numbers,
    )  # fmt: skip
    return [found for rule in rules for found in rule(known)]


def _overflows(known: KnownEncodings) -> Iterator[Forecast]:
    for value in known.index.model.graph.input:
        readers = known.readers_in_float(value.name) if is_float(known.index, value.name) else ()
        if readers and known.largest(value.name) > FP16_LARGEST:
            yield Forecast(
                "fp16_overflow", value.name, "an input of the model", known.largest(value.name), FP16_LARGEST,
                nodes=readers, instead=INTEGERS,
            )  # fmt: skip
    for node in filter(known.in_float, known.nodes):
        for name in node.output:
            if known.largest(name) > FP16_LARGEST:
                nodes = (node.name, *known.readers_in_float(name))
                yield Forecast(
                    "fp16_overflow", name, label(node), known.largest(name), FP16_LARGEST, nodes=nodes,
                    instead=INTEGERS,
                )  # fmt: skip


def _overflows_inside(known: KnownEncodings) -> Iterator[Forecast]:
    """Operators whose inputs and results float16 holds, and whose steps in between it does not."""
    for node in known.nodes:
        limit = FP16_ARGUMENTS.get(node.op_type)
        if limit is not None and known.in_float(node) and known.largest(node.input[0]) > limit:
            figure = known.largest(node.input[0])
            yield Forecast(
                "fp16_overflow", node.input[0], label(node), figure, limit, nodes=(node.name,), instead=INTEGERS
            )
        elif is_op(node, "Softmax") and known.in_float(node) and known.highest(node.input[0]) > SOFTMAX_LARGEST:
            figure = known.highest(node.input[0])
            yield Forecast(
                "fp16_overflow", node.input[0], label(node), figure, SOFTMAX_LARGEST, nodes=(node.name,),
                instead=INTEGERS,
            )  # fmt: skip
        elif is_op(node, "ReduceL2") and known.largest(node.output[0]) > NORM_LARGEST:
            yield Forecast("fp16_overflow", node.output[0], label(node), known.largest(node.output[0]), NORM_LARGEST)


def _flushes(known: KnownEncodings) -> Iterator[Forecast]:
    """Logarithms and quotients so large that what they are of must have been below what float16 has for it, and
    divisors so large that their inverse is.
    """
    for node in filter(known.in_float, known.nodes):
        found = known.range(node.output[0])
        angle = known.largest(node.input[0]) if is_op(node, "Sin", "Tan") else 0.0
        if LEAST_OF_INTEGERS["Sin"] < angle < FP16_SMALLEST_ANGLE:  # below, integers are no better
            yield Forecast(
                "fp16_flush", node.input[0], label(node), angle, FP16_SMALLEST_ANGLE, nodes=(node.name,),
                instead=INTEGERS,
            )  # fmt: skip
        if found is None or not is_op(node, "Log", "Div", "Reciprocal"):
            continue
        limit = FP16_SMALLEST if node.op_type == "Log" else FP16_SMALLEST_NORMAL  # a Log of subnormals is right
        if node.op_type == "Log" and known.index.maker(node.input[0], "Sigmoid", "Softmax") is not None:
            limit = FP16_SMALLEST_SHARE
        if node.op_type == "Log":
            smallest = math.exp(found.low) if found.low < 0 else 1.0
        else:
            given = known.largest(node.input[0]) if node.op_type == "Div" else 1.0
            results = max(-found.low, found.high)
            smallest = given / results if given and results else 1.0
            largest = known.largest(node.input[-1])
            smallest = min(smallest, 1 / largest if largest else 1.0)  # HTP multiplies by the inverse
        if smallest < limit * _OUTWARD:
            divisor = node.input[1] if node.op_type == "Div" else node.input[0]
            maker = known.index.makers.get(divisor)
            nodes = (*((maker.name,) if maker is not None and known.in_float(maker) else ()), node.name)
            yield Forecast("fp16_flush", divisor, label(node), smallest, limit, nodes=nodes, instead=INTEGERS)


def _underflows(known: KnownEncodings) -> Iterator[Forecast]:
    for node in known.nodes:
        stored = known.encoding(node) if is_op(node, *PRODUCTS) else None
        if stored is None or stored[1].bits < 16:
            continue
        scales = [known.scale_of(name) for name in node.input[:2]]
        if len(scales) < 2 or scales[0] is None or scales[1] is None:
            continue
        ratios = scales[0] * scales[1] / stored[1].scale
        for mended, below in ((True, (ratios >= REQUANTIZE) & (ratios < _RAISED)), (False, ratios < REQUANTIZE)):
            if below.any():
                figure = float(ratios[below].min())
                nodes = () if mended else (node.name,)
                yield Forecast(
                    "requantize_underflow", stored[0], label(node), figure, REQUANTIZE, int(below.sum()), mended,
                    nodes, "" if mended else FP16,
                )  # fmt: skip


def _saturates(known: KnownEncodings) -> Iterator[Forecast]:
    for node in known.nodes:
        stored, observed = known.encoding(node), known.range(node.output[0]) if node.output else None
        if stored is None or observed is None:
            continue
        name, encoding = stored
        covers = encoding.covers
        beyond = max(covers.low - observed.low, observed.high - covers.high)
        if beyond > max(encoding.scale, _CUT_OFF * observed.width):
            yield Forecast("saturation", name, label(node), observed.width, covers.width)


def _compares_unequal(known: KnownEncodings) -> Iterator[Forecast]:
    for node in known.nodes:
        if not is_op(node, *COMPARISONS):
            continue
        left, right = (known.given(name) for name in node.input)
        if left is not None and right is not None and left != right:
            makers = (computing_node(known.index, name) for name in node.input)
            nodes = (*(maker.name for maker in makers if maker is not None), node.name)
            coarser, finer = max(left.scale, right.scale), min(left.scale, right.scale)
            yield Forecast("unequal_comparison", node.output[0], label(node), coarser, finer, nodes=nodes, instead=FP16)


def _spans_exponents(known: KnownEncodings) -> Iterator[Forecast]:
    """Exponentials in integers, spread over more than the steps of their encoding, of which a logarithm or a quotient
    needs the small ones, or a logarithm the small sums.
    """
    for node in known.nodes:
        stored = known.encoding(node) if is_op(node, "Exp") else None
        given = known.range(node.input[0]) if node.input else None
        if stored is None or given is None or given.width <= math.log(_STEPS):
            continue
        readers = [
            reader
            for name in _read_as(known, node)
            for reader in known.index.readers.get(name, [])
            if is_op(reader, "Log", "Reciprocal") or (is_op(reader, "Div") and reader.input[1] == name)
        ]
        readers += _logarithms_of_small_sums(known, node, stored[1].scale / 2)
        if readers:
            nodes = (node.name, *(reader.name for reader in readers))
            yield Forecast("exponent", stored[0], label(node), given.width, math.log(_STEPS), nodes=nodes, instead=FP16)


def _logarithms_of_small_sums(known: KnownEncodings, node: NodeProto, rounded_away: float) -> Iterator[NodeProto]:
    """Sums of a node's results and their logarithms, where a sum is less than what rounding makes 0 of each."""
    for name in _read_as(known, node):
        for total in known.index.readers.get(name, []):
            if is_op(total, "ReduceSum") and total.input[0] == name:
                for given in (total.output[0], *_read_as(known, total)):
                    for reader in known.index.readers.get(given, []):
                        found = known.range(reader.output[0]) if is_op(reader, "Log") else None
                        if found is not None and found.low < math.log(rounded_away):
                            yield from (total, reader)


def _rounds_quiet_away(known: KnownEncodings) -> Iterator[Forecast]:
    """Logarithms of what scales with an input, where the encodings in front have no step for the quietest.

    What is `r` times the largest of the logarithm's argument is a power of `r` of the largest of a value in front. The
    quietest is the floor below the logarithm, as of silence, whatever calibration saw.
    """
    all_heard = heard_by_logarithms(known.index)
    known_scalings = scalings(known.index) if all_heard else {}
    for heard in all_heard:
        seen, given = known.range(heard.node.output[0]), heard.given
        if not is_op(heard.node, "Log") or seen is None or not seen.finite:
            continue
        floor = floor_below(known.index, str(heard.node.input[0]))
        width = seen.high - min(seen.low, math.log(floor) if floor > 0 else math.inf)
        if width <= 0:
            continue
        lost = 0.0
        worst: tuple[str, Encoding] | None = None
        for name in sorted(heard.values):
            stored, degree = known.stored(name), known_scalings[name].degree
            largest = known.largest(name)
            if stored is None or degree <= 0 or largest <= 0:
                continue
            room = math.log(2 * largest / stored[1].scale) * given.degree / degree
            if width - room > lost:
                lost, worst = width - room, stored
        made = {id(node): node for name in heard.values if (node := known.index.makers.get(name)) is not None}
        computing = [node for node in known.nodes if id(node) in made]
        if worst is not None:
            names = tuple(node.name for node in (*computing, heard.node))
            yield Forecast(
                "quiet_logarithm", worst[0], label(heard.node), math.exp(-width), math.exp(lost - width),
                nodes=names, instead=FP16, share=round(lost / width, 2),
            )  # fmt: skip


def _counts_too_far(known: KnownEncodings) -> Iterator[Forecast]:
    """Integers that don't fit into those of HTP, and sums of them."""
    inputs = {value.name for value in known.index.model.graph.input}
    for name, seen in known.integers.items():
        maker, largest = known.index.makers.get(name), max(-seen.low, seen.high)
        if maker is None and name not in inputs:
            continue
        limit = COUNTED_IN_FLOAT if maker is not None and is_op(maker, *_SUMS) else LARGEST_INTEGER
        if largest > limit:
            where = label(maker) if maker is not None else "an input of the model"
            yield Forecast("integer_overflow", name, where, largest, limit)


def _looks_up_from_the_end(known: KnownEncodings) -> Iterator[Forecast]:
    """Lookups in integers by indices that are computed, or an input of the model, and negative at times."""
    for node in known.nodes:
        if is_op(node, "Gather") and known.encoding(node) is not None and not known.in_float(node):
            seen = known.integers.get(node.input[1])
            if seen is not None and seen.low < 0 and node.input[1] not in known.index.initializers:
                yield Forecast(
                    "negative_index", node.input[1], label(node), seen.low, 0.0, nodes=(node.name,), instead=FP16
                )


def _rounds_row_numbers(known: KnownEncodings) -> Iterator[Forecast]:
    """Lookups by integers that are cast from computed floats, of whose steps some have room for several rows."""
    as_given = cast_as_given(known.index)
    for node in known.nodes:
        if not is_op(node, "Cast") or node.output[0] in as_given or not _is_row_number(known.index, node.output[0]):
            continue
        given, largest = known.given(node.input[0]), known.largest(node.input[0])
        if given is None and not is_float(known.index, node.input[0]):
            continue
        step = given.scale if given is not None else 2.0 ** (math.floor(math.log2(max(largest - 1, 1.0))) - FP16_BITS)
        if step > 1:
            maker = known.maker(node.input[0])
            nodes = (*((maker.name,) if maker is not None else ()), node.name)
            yield Forecast(
                "row_number", known.origin(node.input[0]), label(node), step, 1.0, nodes=nodes,
                instead=INTEGERS if largest < _STEPS else "",
            )  # fmt: skip


def _is_row_number(index: GraphIndex, name: str) -> bool:
    """Whether a value is, moved, bounded or counted from the front at most, what a node looks up."""
    pending, seen = [name], {name}
    while pending:
        each = pending.pop()
        for reader in index.readers.get(each, []):
            if is_op(reader, *TABLES) and reader.input[1] == each:
                return True
            if moves_data(index, reader) or is_op(reader, "Cast", *BY_ELEMENT):
                more = {str(made) for made in reader.output} - seen
                seen |= more
                pending += more
    return False


def _read_as(known: KnownEncodings, node: NodeProto) -> Iterator[str]:
    """The names under which readers see what a quantized node makes."""
    for quantizer in known.index.readers.get(node.output[0], []):
        for dequantizer in known.index.readers.get(quantizer.output[0], []):
            yield dequantizer.output[0]
