"""Spectra: magnitudes, and logarithms of powers, without squares that leave the format."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto

from pipeline.graph.ir.attributes import settings
from pipeline.graph.ir.index import GraphIndex, is_op, opset
from pipeline.graph.ir.inference import shape_of
from pipeline.graph.ir.node_builder import Additions
from pipeline.graph.ir.ops import VIEWS
from pipeline.graph.ir.reductions import keeps_axes, reduced_axes
from pipeline.graph.ir.rules import F32, GraphValue, Node, lower, op
from pipeline.graph.ir.traverse import input_at

_MOST = 2.0**15
_LEAST = 2.0**-24
_SMALLEST = 2.0**-14
_QUARTER = 0.25  # 65504 / 4 is a divisor that HTP can take in float16: see docs/htp-arithmetic.md
_AXES_ARE_INPUTS = 18
"""The opset from which ReduceMax takes its axes as an input."""
_MOVES = (*VIEWS, "Transpose", "Slice", "Gather", "Neg", "Abs")
_WEIGHS = ("Conv", "MatMul")


@dataclass(frozen=True)
class _Scaled:
    """What becomes of a value where its origin becomes so many times larger: `degree` is the power of that.

    `gain` bounds its magnitude where that of the origin is at most 1, or behind the squares that of their `roots`.
    """

    degree: float
    gain: float
    squared: bool = False


class _Spectrum:
    """The nodes between an origin and a value that scales with it, in the order they compute."""

    def __init__(self, index: GraphIndex) -> None:
        self._index = index
        self.origin = ""
        self.nodes: list[NodeProto] = []
        self.known: dict[str, _Scaled] = {}

    @property
    def roots(self) -> list[str]:
        """What is squared."""
        return list(dict.fromkeys(str(node.input[0]) for node in self.nodes if is_square(node)))

    def visit(self, name: str) -> _Scaled | None:
        """How a value scales with the origin; None if it does not, or there is more than one origin."""
        if name in self.known:
            return self.known[name]
        if name in self._index.initializers or name not in self._index.types:
            return None
        node = self._index.makers.get(name)
        before = self.origin, len(self.nodes), dict(self.known)
        found = self._through(node) if node is not None else None
        if node is not None and found is not None and math.isfinite(found.gain) and found.gain > 0:
            self.nodes.append(node)
        else:
            self.origin, count, self.known = before
            del self.nodes[count:]
            if self.origin not in ("", name):
                return None
            self.origin, found = name, _Scaled(1, 1.0)
        self.known[name] = found
        return found

    def _through(self, node: NodeProto) -> _Scaled | None:
        first = str(node.input[0]) if node.input else ""
        constant = all(name in self._index.initializers for name in node.input[1:] if name)
        if is_op(node, *_MOVES):
            return self.visit(first) if constant else None
        if is_op(node, "Sqrt"):
            under = self.visit(first)
            return replace(under, degree=under.degree / 2, gain=math.sqrt(under.gain)) if under else None
        if is_op(node, "ReduceSum", "ReduceMean") and constant:
            return self._reduced(node)
        if is_op(node, *_WEIGHS):
            return self._weighed(node)
        if is_op(node, "Mul", "Div"):
            return self._multiplied(node)
        if is_op(node, "Add", "Sub"):
            parts = [self.visit(str(name)) for name in node.input]
            one, other = parts if len(parts) == 2 else (None, None)
            if not one or not other or (one.degree, one.squared) != (other.degree, other.squared):
                return None
            return replace(one, gain=one.gain + other.gain)
        return None

    def _reduced(self, node: NodeProto) -> _Scaled | None:
        axes, under = reduced_axes(self._index, node), self.visit(str(node.input[0]))
        if axes is None or under is None:
            return None
        shape = shape_of(self._index.types[str(node.input[0])])
        count = math.prod(shape[axis] for axis in axes) if node.op_type == "ReduceSum" else 1
        return replace(under, gain=under.gain * count)

    def _weighed(self, node: NodeProto) -> _Scaled | None:
        place = weight_place(self._index, node)
        weight = self._index.constant(str(node.input[place])) if place is not None else None
        under = self.visit(str(node.input[1 - place])) if place is not None and weight is not None else None
        if weight is None or under is None or weight.ndim < 2:
            return None
        sizes = np.abs(weight).astype(np.float64)
        sums = sizes.reshape(len(sizes), -1).sum(axis=1) if is_op(node, "Conv") else sizes.sum(axis=-2 if place else -1)
        return replace(under, gain=under.gain * float(sums.max()))

    def _multiplied(self, node: NodeProto) -> _Scaled | None:
        if is_square(node):
            root = self.visit(str(node.input[0]))
            return _Scaled(2, 1.0, squared=True) if root is not None and not root.squared and root.degree == 1 else None
        for value, other in (tuple(node.input), tuple(reversed(node.input))):
            factor = self._index.scalar(other) if other in self._index.initializers else None
            if factor and (is_op(node, "Mul") or other == node.input[1]):
                under, times = self.visit(str(value)), abs(factor if is_op(node, "Mul") else 1 / factor)
                return replace(under, gain=under.gain * times) if under else None
        return None


def is_square(node: NodeProto) -> bool:
    """Whether a node multiplies a value with itself."""
    return is_op(node, "Mul") and node.input[0] == node.input[1]


@lower(
    "Log",
    of=F32,
    after={
        "decompose_pow": "it looks for squares, which powers become",
        "decompose_reductions": "it looks for sums of squares, which ReduceSumSquare becomes",
        "drop_idle_bounds": "a Clip to infinity is a floor",
    },
)
def scale_spectra(n: Node) -> bool:
    """Compute logarithms of weighted power spectra from values that are divided by the largest of them.

    Before, where every node between `x` and the Log scales with `x`: a transform by constants, squares of it, sums and
    weights that are constants (in a mel spectrum Conv, Mul, Add, MatMul)::

        a, b = transform(x)
        P = weights(a * a + b * b)
        Log(Max(P, floor))                   or Clip(P, floor), or Log(Add(P, floor))

    After, where `c`, `m` and `t` are powers of two that use the range of float16, `s` is the largest magnitude in `x`,
    divided by `c`, and `r` that in `a` and `b`, divided by `m`::

        a, b = transform(x / s)
        Q = t * weights(a/r * a/r + b/r * b/r)
        scale = 2 * Log(s) + 2 * Log(r) - log(t)
        Max(Log(Max(Q, 2**-24)) + scale, log(floor))

    An added floor is added to Q, divided by the exponential of `scale`.

    The powers of sound in 16 bits go up to 1e13 and down to the floor; neither float16 nor 16 bit integers hold them.
    Divided like this they have about 117 dB below the loudest, the squares as much as their sums, whatever unit the
    sound comes in; what lies deeper is computed as if it lay there. openWakeWord's mel spectrum in float16 on HTP 2.51,
    emulated, 436 steps of speech and pauses against the original::

                                       without    with    with m of 1, where squares below 72 dB are 0
        median                         0.0 dB     64 dB   58 dB
        worst: quiet among loud        -0.5       41      11

    The result keeps its name. Left alone: other types than float32, spectra without a floor, and logarithms right
    behind squares, which scale_magnitudes computes without a power at all.
    """
    value, floor, adds = _floored(n.index, n[0].name)
    spectrum = _Spectrum(n.index)
    scaled = spectrum.visit(value) if floor else None
    if scaled is None or not scaled.squared or not _is_weighted(n.index, spectrum, value):
        return False
    _write(n.added, n.y.name, spectrum, value, floor, adds)
    return True


def weight_place(index: GraphIndex, node: NodeProto) -> int | None:
    """Which input of a Conv or MatMul without a bias is a constant; None if not one is."""
    if is_op(node, "Conv"):
        bias = input_at(node, 2)
        return 1 if node.input[1] in index.initializers and (not bias or index.scalar(bias) == 0) else None
    return next((place for place in (1, 0) if node.input[place] in index.initializers), None)


def _floored(index: GraphIndex, name: str) -> tuple[str, float, bool]:
    """The value below a floor above zero, the floor, and whether it is added; 0 if there is none."""
    node = index.maker(name, "Clip", "Max", "Add")
    if node is None or len(node.input) < 2 or (is_op(node, "Clip") and any(node.input[2:])):
        return name, 0.0, False
    clip = is_op(node, "Clip")
    for value, other in [tuple(node.input[:2])] + ([] if clip else [tuple(reversed(node.input[:2]))]):
        number = index.scalar(other) if other in index.initializers else None
        if number is not None and 0 < number < math.inf and len(node.input) == 2 + (clip and len(node.input) > 2):
            return str(value), number, is_op(node, "Add")
    return name, 0.0, False


def _last_weights(index: GraphIndex, spectrum: _Spectrum, value: str) -> NodeProto | None:
    """The node that weighs a spectrum last, with nothing behind it but what moves values."""
    node = index.makers.get(value)
    while node is not None and any(node is each for each in spectrum.nodes) and is_op(node, *_MOVES):
        node = index.makers.get(node.input[0])
    return node if node is not None and any(node is each for each in spectrum.nodes) and is_op(node, *_WEIGHS) else None


def _is_weighted(index: GraphIndex, spectrum: _Spectrum, value: str) -> bool:
    """Whether squares, which alone read their roots, are summed by weights, and no gain leaves the format."""
    roots = spectrum.roots
    alone = all(is_square(node) or not {*node.input} & {*roots} for node in spectrum.nodes)
    scaled = any(index.maker(root, "Div") is not None for root in roots)  # as what is written here
    small = all(each.gain <= _MOST for each in spectrum.known.values() if each.squared)
    last = _last_weights(index, spectrum, value)
    return alone and small and not scaled and last is not None and spectrum.known[str(last.output[0])].squared


def _write(added: Additions, result: str, spectrum: _Spectrum, value: str, floor: float, adds: bool) -> None:
    index = added.index
    inputs_18 = opset(index.model) >= _AXES_ARE_INPUTS
    linear = max(each.gain for each in spectrum.known.values() if not each.squared)
    c = 2.0 ** math.floor(math.log2(_MOST / linear))
    room = _room(index, spectrum, value)
    degree, floor_log = spectrum.known[value].degree, math.log(floor)
    t = 2.0 ** math.floor(math.log2(_MOST / (spectrum.known[value].gain * room**degree)))

    quarter = added.op("Mul", spectrum.origin, _number(added, result, "quarter", _QUARTER), out=f"{result}_quarter")
    size = _largest(added, result, [quarter], 1 / c, axes_are_inputs=inputs_18)
    names = {spectrum.origin: added.op("Div", quarter, size, out=f"{result}_scaled")}

    last = _last_weights(index, spectrum, value)
    assert last is not None
    roots, units, root_size = spectrum.roots, dict[str, str](), ""
    for node in sorted(spectrum.nodes, key=lambda each: spectrum.known[str(each.output[0])].squared):
        if is_square(node) and not units:
            root_size = _largest(added, result, [names[root] for root in roots], 1 / room, axes_are_inputs=inputs_18)
            units = {root: added.op("Div", names[root], root_size, out=f"{root}_unit") for root in roots}
        weights = _times(added, node, t) if node is last else {}
        known = names | units if is_square(node) else names
        inputs = [weights.get(place, known.get(name, name)) for place, name in enumerate(node.input)]
        attributes = settings(node)
        names[node.output[0]] = added.op(node.op_type, *inputs, out=f"{node.output[0]}_scaled", **attributes)

    logs = [added.op("Log", each, out=f"{result}_log_of_size") for each in (size, root_size)]
    scale = added.op("Add", *logs, out=f"{result}_log_of_sizes")
    if degree != 1:
        scale = added.op("Mul", scale, _number(added, result, "degree", degree), out=f"{result}_log_of_power")
    constant = _number(added, result, "units", -degree * math.log(_QUARTER) - math.log(t))
    scale = added.op("Add", scale, constant, out=f"{result}_log_of_scale")
    power = names[value]
    if adds:
        lower = added.op("Sub", _number(added, result, "floor", floor_log), scale, out=f"{result}_lower")
        lower = added.op("Max", lower, _number(added, result, "least", math.log(_LEAST)), out=f"{result}_lower_bound")
        lower = added.op("Min", lower, _number(added, result, "most", math.log(_MOST)), out=f"{result}_bounds")
        power = added.op("Add", power, added.op("Exp", lower, out=f"{result}_added"), out=f"{result}_power")
    power = added.op("Max", power, _number(added, result, "least", _LEAST), out=f"{result}_bounded")
    log = added.op("Add", added.op("Log", power, out=f"{result}_log"), scale, out=f"{result}_unbounded")
    added.replace("Max", log, _number(added, result, "floor", floor_log), out=result)


def _room(index: GraphIndex, spectrum: _Spectrum, value: str) -> float:
    """The largest power of two that roots may reach, so that nothing behind them leaves float16.

    Left out are the weights and what is behind them, which are scaled by themselves.
    """
    last = _last_weights(index, spectrum, value)
    assert last is not None
    weighed = spectrum.nodes[next(at for at, node in enumerate(spectrum.nodes) if node is last) :]
    behind = {str(node.output[0]) for node in weighed}
    sums = [each for name, each in spectrum.known.items() if each.squared and name not in behind]
    return 2.0 ** math.floor(min(math.log2(_MOST / each.gain) / each.degree for each in sums))


def _largest(added: Additions, result: str, values: list[str], times: float, *, axes_are_inputs: bool) -> str:
    """The largest magnitude in some values, times a number, at least the smallest normal float16; float32 [1]."""
    found = ""
    for value in values:
        flat = added.integers(f"{result}_flat", 1, -1)
        row = added.op("Reshape", added.op("Abs", value, out=f"{result}_sizes"), flat, out=f"{result}_row")
        if axes_are_inputs:
            axis = added.integers(f"{result}_axis", 1)
            one = added.op("ReduceMax", row, axis, out=f"{result}_largest", keepdims=0)
        else:
            one = added.op("ReduceMax", row, out=f"{result}_largest", axes=[1], keepdims=0)
        found = added.op("Max", found, one, out=f"{result}_larger") if found else one
    found = added.op("Mul", found, _number(added, result, "times", times), out=f"{result}_divided")
    return added.op("Max", found, _number(added, result, "smallest", _SMALLEST), out=f"{result}_size")


def _number(added: Additions, result: str, name: str, number: float) -> str:
    return added.constant(f"{result}_{name}_number", np.array([number], np.float32))


def _times(added: Additions, node: NodeProto, factor: float) -> dict[int, str]:
    """The weights of a node times a factor, by their place among its inputs."""
    place = weight_place(added.index, node)
    assert place is not None
    weight: NDArray[np.float32] | None = added.index.constant(str(node.input[place]))
    assert weight is not None
    return {place: added.constant(f"{node.input[place]}_scaled", (weight * np.float32(factor)).astype(np.float32))}


@lower(
    "Sqrt",
    "Log",
    of=F32,
    after={
        "scale_spectra": "it looks for squares of spectra",
        "decompose_pow": "it looks for squares, which powers become",
        "decompose_reductions": "it looks for sums of squares, which ReduceSumSquare becomes",
    },
)
def scale_magnitudes(n: Node) -> GraphValue | None:
    """Compute magnitudes, and logarithms of squares, without a square that leaves the format.

    Before, for a sum of squares S of one or two parts, `epsilon` added to it or not::

        S = Add(Add(Mul(a, a), Mul(b, b)), epsilon)       S = ReduceSum(Mul(x, x)) over an axis of two: a, b
        Sqrt(S)
        Log(S)
        Log(Max(S, floor))

    After, where `e` is the root of `epsilon`, and `d` is `Max(Abs(a), Abs(b), e, 2**-14)`::

        M = Mul(d, Sqrt(Add(Add(Mul(a/d, a/d), Mul(b/d, b/d)), Mul(e/d, e/d))))       M = Abs(a) for a alone
        M
        Mul(Log(M), 2)
        Mul(Log(Max(M, root of floor)), 2)

    The sum is the same for any `d` above zero; 2**-14 is the smallest normal float16.

    Spectra of short frames of sound are magnitudes like this, and their squares span twice the decibels that they do:
    of squares from 0 to 200 a step in 16 bits is 0.003, so every magnitude below 0.05 becomes 0. A quiet frame among
    loud ones (HTP 2.51, emulated, against the original)::

        format    as loud as the others by    by squares    by quotients
        uint16    1/1000                      0.0 dB        31.3 dB
        float16   1/10000                     2.8           63.7

    Of 500 frames silero-vad has 66 below 20 dB with squares in uint16, while all together have 32. A floor of 1e-12 is
    0 in float16, where HTP's Log of 0 is -7.6; its root is none, and HTP's Log is right down to 2**-24.

    The result keeps its name. Left alone: types other than float32, parts of different shapes, sums of anything else,
    and quotients by one value, which is what this makes.
    """
    source, floor = (n[0], 0.0) if n.kind == "Sqrt" else _with_floor(n[0])
    summed, epsilon = _with_number(source, "Add")
    reduction, total = summed.maker("ReduceSum"), summed.maker("Add")
    if reduction is not None:
        whole, axes = _root(reduction[0]), reduced_axes(n.index, reduction.proto)
        if whole is None or axes is None or len(axes) != 1 or whole.shape[axes[0]] != 2:
            return None
        # A place without brackets drops the axis.
        places = [np.array([at] if keeps_axes(reduction.proto) else at) for at in (0, 1)]
        size = _magnitude([op.Gather(whole, place, axis=axes[0]) for place in places], epsilon)
    else:
        found = [_root(each) for each in ((total[0], total[1]) if total else (summed,))]
        parts = [each for each in found if each is not None]
        if len(parts) != len(found) or any(each.shape != n.y.shape for each in parts):
            return None
        quotients = [each.maker("Div") for each in parts]
        if None not in quotients and len({each[1].name for each in quotients if each}) == 1:
            return None
        size = _magnitude(parts, epsilon)
    if n.kind == "Sqrt":
        return size
    return op.Log(op.Max(size, math.sqrt(floor)) if floor else size) * 2


def _with_number(value: GraphValue, operator: str) -> tuple[GraphValue, float]:
    """The value that a node joins with a number above zero, and that number; the value itself and 0 without one."""
    node = value.maker(operator)
    for at in (0, 1) if node is not None and len(node.inputs) == 2 else ():
        number = node[1 - at].scalar if node else None
        if node and number is not None and 0 < number < math.inf:
            return node[at], number
    return value, 0.0


def _with_floor(value: GraphValue) -> tuple[GraphValue, float]:
    """The same for a bound from below, which may be a Clip's alone."""
    clip = value.maker("Clip")
    low = clip.get(1) if clip and not clip.get(2) else None
    number = low.scalar if low else None
    if clip and number is not None and 0 < number < math.inf:
        return clip[0], number
    return _with_number(value, "Max")


def _root(value: GraphValue) -> GraphValue | None:
    """The x of x * x; None for another value, and for a constant x."""
    product = value.maker("Mul")
    if product is None or product[0].name != product[1].name or product[0].name not in product.index.types:
        return None
    return product[0]


def _magnitude(parts: list[GraphValue], epsilon: float) -> GraphValue:
    """The root of a sum of squares and of `epsilon`."""
    if len(parts) == 1 and not epsilon:
        return op.Abs(parts[0])
    size = op.Abs(parts[-1])
    for other in parts[:-1]:
        size = op.Max(size, op.Abs(other))
    root = math.sqrt(epsilon)
    size = op.Max(size, max(root, _SMALLEST))
    quotients = [part / size for part in parts] + ([root / size] if epsilon else [])
    first, *others = (quotient * quotient for quotient in quotients)
    return size * op.Sqrt(sum(others, first))
