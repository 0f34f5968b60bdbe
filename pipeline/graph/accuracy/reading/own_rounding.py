"""Tells the rounding that a file does as it runs from a mistake in what was read of it: each operator is held alone.

Files that were quantized for CPUs are built from the floats that they stand for (docs/adr/0039), and float16 files
compute in float32. Such a file is far from what was read of it: a T5 encoder in dynamic int8 is 3 to 8 dB from its own
floats. End to end, a zero point that was misread looks the same.

So the model that was read is cut at every value that both have, and each part is given the values that the file itself
computes, as they are after the file rounded them::

    file    x -> DynamicQuantizeLinear -> q, s, z -> MatMulInteger(q, W) -> Cast -> Mul(s sw) -> y
    read    x -> q;   (q - z) s -> MatMul(W) -> Mul(sw) -> y

Then a part that rounds nothing must be exact, and one that rounds must be within half a step of its scale. Values of
the file have their names in the model that was read; behind a value `q` of static encodings stands `q/number`
(:mod:`pipeline.graph.shapes.drop_rounding`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto, helper

from pipeline.contracts.limits import READING_DB
from pipeline.graph.accuracy.figures.accuracy import sqnr_db
from pipeline.graph.accuracy.reading.source_file import Engine, SourceFile, declared, ordered, run_fed
from pipeline.graph.cpu import unoptimized_session
from pipeline.graph.files.inlining import rename
from pipeline.graph.files.model_file import load_graph
from pipeline.graph.files.single_precision import NARROW
from pipeline.graph.floats.movers import MOVERS
from pipeline.graph.ir.attributes import settings
from pipeline.graph.ir.traverse import all_nodes, all_tensors, input_at, label, reads

_HALF = 0.51
"""The part of a step that rounding may change, and room for scales that kernels multiply in float32."""
_ALONE_DB = 90.0
"""The least SQNR of an operator of a file in float32: of many that are a little off each, none is READING_DB off."""
_BYTES_AT_ONCE = 256 << 20
_FIRST = 64
"""The number of values that are looked at before their sizes are known."""
_NUDGE, _NOISE, _SMALL = 2.0**-22, 8.0, 2.0**-18
"""Where inputs that change by the first part change a value by an eighth of its error, sums in float32 explain an error
that is below the last part of the largest input: little is left of a sum of numbers that cancel out."""
_SCALES = {
    "QLinearConv": 6, "QLinearMatMul": 6, "QLinearAdd": 6, "QLinearMul": 6, "QGemm": 7, "QLinearWhere": 7,
    "QLinearConcat": 0,
}  # fmt: skip
"""The place of the scale of the output among the inputs, and 3 for other QLinear operators; the zero point follows.

https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
"""
_ACCURACY = "accuracy_level"
_HALVES = tuple(map(helper.tensor_dtype_to_np_dtype, NARROW))
_INSIDE = 16.0
"""By how many times the energy of the error of an operator that rounds its states, too, may be that of its input's."""
_DTYPES: Mapping[str, np.dtype[Any]] = {
    f"tensor({name})": np.dtype(kind)
    for name, kind in {
        "float": "float32", "double": "float64", "bool": "bool",
        **{kind: kind for kind in ("float16", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)))},
    }.items()
}  # fmt: skip
"""numpy's types by onnxruntime's names."""

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class _Point:
    """A value that the file and the model that was read both have.

    `read` and `file` are its names there. `file` may be of a value that was added to a copy of the file, which stands
    for a quantized one; `step` is then the name of its scale where the file rounds to make it.
    """

    read: str
    file: str
    maker: NodeProto | None = None
    step: str = ""


@dataclass
class _Copy:
    """A copy of the file's graph that also gives quantized values as numbers.

    `numbers` has the name of the number by the quantized value, `steps` that of its scale if the file rounds there.
    `dynamic` are quantized values whose scale is found at run time. `units` has the power of such scales that a value
    of the file has and the value that was read has not. For a node that rounds an input inside, `rounded` has the input
    as it rounds it, by the node's output; `inside` are outputs of those that round other values as well.
    """

    model: ModelProto
    numbers: dict[str, str] = field(default_factory=dict)
    steps: dict[str, str] = field(default_factory=dict)
    dynamic: set[str] = field(default_factory=set)
    units: dict[str, int] = field(default_factory=dict)
    rounded: dict[str, dict[str, str]] = field(default_factory=dict)
    inside: set[str] = field(default_factory=set)
    rounds: bool = False


def hold_alone(source: SourceFile, model: Path, feed: Arrays, by: Engine) -> str:
    """Hold each operator of a file against the `model` that was read of it, on the values that the file computes.

    Returns which operator first gives something else than was read, and how far off; an empty text if none does.
    Memory is bounded by :data:`_BYTES_AT_ONCE` and the values of a few operators; the file is run once for each part.
    """
    copy = _copied(source.part(feed))
    read = load_graph(model)
    types = _types(read, model.parent)
    points = [point for point in _points(copy, read) if point.read in types]
    makers = {name: node for node in read.graph.node for name in node.output if name}
    by_read = {point.read: point for point in points}
    if alone := [value.name for value in read.graph.output if value.name not in by_read]:
        return f"output {alone[0]!r} cannot be compared"
    made = [point for point in points if point.read in makers]
    compute = source.computing(_giving(copy, points), by)
    given, computed = {**feed, **source.constants}, {value.name for value in copy.model.graph.output}
    least = READING_DB if copy.rounds else _ALONE_DB
    count = _FIRST
    while made:
        part, made = made[:count], made[count:]
        cut = _Cut(read, [_region(point, makers, by_read) for point in part], by_read, copy, types)
        names = dict.fromkeys(
            [*(point.file for point in part), *(point.step for point in part if point.step), *cut.needs]
        )
        values = {name: given[name] for name in names if name not in computed}
        values |= compute(given, [name for name in names if name in computed])
        if wrong := cut.first_wrong(values, model.parent, least):
            return wrong
        used = sum(array.nbytes for array in values.values()) + 1
        count = max(1, min(4 * count, int(count * _BYTES_AT_ONCE / used)))
    return ""


def _copied(model: ModelProto) -> _Copy:
    """The copy of a file's graph; operators that round inside are written as two."""
    copy = _Copy(model)
    graph = model.graph
    nodes: list[NodeProto] = []
    known: dict[str, tuple[str, str, str]] = {}
    copies = [NodeProto.FromString(node.SerializeToString()) for node in ordered([*graph.node])]
    for node in (each for whole in copies for each in _written_out(whole, copy)):
        nodes.append(node)
        if (unit := _unit(node, copy.units)) != 0:
            copy.units |= dict.fromkeys(filter(None, node.output), unit)
        if (encoding := _encoding(node, known)) is None:
            continue
        moved = node.op_type in MOVERS
        if node.op_type == "DynamicQuantizeLinear":
            copy.units |= {node.output[0]: -1, node.output[1]: 1, node.output[2]: -1}
        for name in filter(None, node.output if moved else node.output[:1]):
            known[name] = scale, zero, domain = encoding
            copy.numbers[name] = f"{name}/held"
            nodes.append(helper.make_node("DequantizeLinear", [name, *encoding[:2]], [f"{name}/held"], domain=domain))
            if not zero:
                del nodes[-1].input[2]
            if node.op_type == "DynamicQuantizeLinear" or (moved and node.input[0] in copy.dynamic):
                copy.dynamic.add(name)
            if not moved:
                copy.steps[name] = f"{name}/step"
                nodes.append(helper.make_node("Identity", [scale], [f"{name}/step"]))
                copy.rounds = True
    kinds = {tensor.data_type for tensor in all_tensors(graph)} | {
        each.i for node in all_nodes(graph) for each in node.attribute if each.name == "to"
    }
    kinds |= {value.type.tensor_type.elem_type for value in graph.input}
    copy.rounds = copy.rounds or not kinds.isdisjoint(NARROW)
    graph.ClearField("node")
    graph.node.extend(nodes)
    return copy


def _written_out(node: NodeProto, copy: _Copy) -> Iterator[NodeProto]:
    """The node; or what it does with its rounding visible, or without where that is no part of its meaning."""
    if node.op_type in ("DynamicQuantizeMatMul", "DynamicQuantizeLSTM"):
        # https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
        name = next(filter(None, node.output))
        q, s, z = (f"{name}/{part}" for part in ("rounded", "rounded_by", "rounded_from"))
        copy.rounded |= {output: {node.input[0]: f"{q}/held"} for output in node.output if output}
        yield helper.make_node("DynamicQuantizeLinear", [node.input[0]], [q, s, z])
        if node.op_type == "DynamicQuantizeLSTM":
            copy.inside.update(filter(None, node.output))
            yield node
            return
        weights, scale, zero, bias = (input_at(node, place) for place in range(1, 5))
        product = [q, weights, s, scale, z, zero, bias]
        while not product[-1]:
            product.pop()
        yield helper.make_node("MatMulIntegerToFloat", product, [name], node.name, domain=node.domain)
        return
    for attribute in node.attribute:
        if attribute.name == _ACCURACY and attribute.i > 1:  # a hint: kernels may round the activations
            attribute.i = 1
            copy.rounds = True
    yield node


def _unit(node: NodeProto, units: Mapping[str, int]) -> int:
    """The power of scales found at run time that the outputs of a node have more than what was read of them has."""
    given = [units.get(name, 0) for name in node.input]
    if node.op_type in ("Mul", "MatMulInteger", "ConvInteger"):
        return sum(given[:2])
    if node.op_type == "Div":
        return given[0] - given[1]
    found = {unit for unit in given if unit}
    return next(iter(found)) if len(found) == 1 else 0  # who reads a quantized value and its scale gives a number


def _encoding(node: NodeProto, known: Mapping[str, tuple[str, str, str]]) -> tuple[str, str, str] | None:
    """Scale, zero point and the domain of the operator that undoes it, of the quantized first output of a node."""
    if node.op_type == "DynamicQuantizeLinear":
        return node.output[1], node.output[2], ""
    if node.op_type == "QuantizeLinear":
        return (node.input[1], input_at(node, 2), node.domain) if not settings(node).get("block_size") else None
    if node.op_type.startswith("QLinear") or node.op_type == "QGemm":
        place = _SCALES.get(node.op_type, 3)
        return (input_at(node, place), input_at(node, place + 1), "") if input_at(node, place) else None
    if node.op_type in MOVERS:
        return known.get(node.input[0])
    return None


def _points(copy: _Copy, read: ModelProto) -> list[_Point]:
    """The values that both have, in the order of the model that was read; inputs first."""
    made = {name for node in read.graph.node for name in node.output if name}
    found = {value.name: _Point(value.name, value.name) for value in read.graph.input}
    for node in copy.model.graph.node:
        for name in filter(None, node.output):
            number, step = copy.numbers.get(name), copy.steps.get(name, "")
            own = _renamed(name, made)
            if number is not None and f"{name}/number" in made:
                found[f"{name}/number"] = _Point(f"{name}/number", number, node, step)
            if own is not None and name in copy.dynamic and number is not None:
                found[own] = _Point(own, number, node, step)
            elif own is not None and not copy.units.get(name):
                found[own] = _Point(own, name, node)
    order = {name: place for place, name in enumerate(name for node in read.graph.node for name in node.output)}
    return sorted(found.values(), key=lambda point: order.get(point.read, -1))


def _renamed(name: str, made: set[str]) -> str | None:
    """The name in the model that was read: names that are reserved got an underscore more, or several."""
    for _ in range(4):
        if name in made:
            return name
        name += "_"
    return None


def _giving(copy: _Copy, points: Sequence[_Point]) -> ModelProto:
    """The copy of the file with all values that regions are given or compared with as its outputs."""
    graph = copy.model.graph
    made = {name for node in graph.node for name in node.output}
    given = {value.name: value for value in graph.output}
    inside = [name for each in copy.rounded.values() for name in each.values()]
    wanted = dict.fromkeys([*(name for point in points for name in (point.file, point.step) if name in made), *inside])
    graph.ClearField("output")
    graph.output.extend(given.get(name) or ValueInfoProto(name=name) for name in wanted)
    return copy.model


@dataclass(frozen=True)
class _Region:
    """The nodes of the model that was read that compute a point from others, whose names there are `leaves`."""

    point: _Point
    nodes: tuple[NodeProto, ...]
    leaves: tuple[str, ...]


def _region(point: _Point, makers: Mapping[str, NodeProto], points: Mapping[str, _Point]) -> _Region:
    nodes: dict[int, NodeProto] = {}
    leaves: dict[str, None] = {}
    waiting = [makers[point.read]]
    while waiting:
        node = waiting.pop()
        if id(node) in nodes:
            continue
        nodes[id(node)] = node
        for name in reads(node):
            if name in points:
                leaves[name] = None
            elif name in makers:
                waiting.append(makers[name])
    return _Region(point, tuple(ordered([*nodes.values()])), tuple(leaves))


class _Cut:
    """Some regions as one model, whose inputs are the file's values and whose outputs are the regions' own."""

    def __init__(
        self,
        read: ModelProto,
        regions: Sequence[_Region],
        points: Mapping[str, _Point],
        copy: _Copy,
        types: Mapping[str, np.dtype[Any]],
    ) -> None:
        self._read = read
        self._inside = copy.inside
        self._regions: list[_Region] = []
        self._leaves: list[dict[str, str]] = []
        self._kinds: dict[str, np.dtype[Any]] = {}
        for region in regions:
            files = {name: points[name].file for name in region.leaves}
            rounded = copy.rounded.get(region.point.file, {})
            self._add(region, {name: rounded.get(file, file) for name, file in files.items()}, types)
            if region.point.file in copy.inside:
                self._add(region, files, types)
        self.needs = dict.fromkeys(file for leaves in self._leaves for file in leaves.values())

    def _add(self, region: _Region, leaves: dict[str, str], types: Mapping[str, np.dtype[Any]]) -> None:
        self._regions.append(region)
        self._leaves.append(leaves)
        self._kinds |= {file: types[name] for name, file in leaves.items()}

    def first_wrong(self, values: Arrays, folder: Path, least_db: float) -> str:
        """The first region that gives something else than the file, in words; empty if none does."""
        feeds = {_given(name): values[name].astype(self._kinds[name], copy=False) for name in self.needs}
        session = unoptimized_session(self._model(feeds), folder)
        results = run_fed(session, feeds, [_made(number) for number in range(len(self._regions))])
        nudged: Arrays | None = None
        for number, region in enumerate(self._regions):
            expected, point, got = values[region.point.file], region.point, results[_made(number)]
            if number and self._regions[number - 1] is region:
                continue  # the one before, with inputs that are not rounded
            off = _unexplained(expected, got, values[point.step] if point.step else None, least_db)
            if off is None:
                continue
            if point.file in self._inside and _is_rounding(expected, got, results[_made(number + 1)]):
                continue
            if nudged is None:
                nudged = run_fed(session, _nudged(feeds), [*results])
            largest = max((_largest(feeds[_given(file)]) for file in self._leaves[number].values()), default=0.0)
            if _is_noise(expected, got, nudged[_made(number)], largest):
                continue
            node = label(point.maker) if point.maker is not None else repr(point.file)
            return f"node {node} gives something else than was read of it: {off}"
        return ""

    def _model(self, feeds: Arrays) -> ModelProto:
        graph = GraphProto(name="regions")
        graph.initializer.extend(self._read.graph.initializer)
        graph.input.extend(declared(name, array) for name, array in feeds.items())
        for number, (region, leaves) in enumerate(zip(self._regions, self._leaves, strict=True)):
            own = GraphProto(node=region.nodes)
            for node in own.node:
                node.name = f"{number}:{node.name}"
                node.output[:] = [f"spare:{name}" if name in leaves else name for name in node.output]
            names = {name: f"{number}:{name}" for node in own.node for name in node.output if name}
            names |= {name: _given(file) for name, file in leaves.items()}
            rename(own, names | {region.point.read: _made(number)})
            graph.node.extend(own.node)
            graph.output.append(ValueInfoProto(name=_made(number)))
        return ModelProto(ir_version=self._read.ir_version, opset_import=self._read.opset_import, graph=graph)


def _types(read: ModelProto, folder: Path) -> dict[str, np.dtype[Any]]:
    """The dtypes of all values of the model that was read."""
    every = ModelProto()
    every.CopyFrom(read)
    every.graph.ClearField("output")
    names = [name for node in read.graph.node for name in node.output if name]
    every.graph.output.extend(ValueInfoProto(name=name) for name in names)
    session = unoptimized_session(every, folder)
    values = (*session.get_inputs(), *session.get_outputs())
    return {value.name: _DTYPES[value.type] for value in values if value.type in _DTYPES}


def _given(name: str) -> str:
    return f"file:{name}"


def _made(number: int) -> str:
    return f"made:{number}"


def _unexplained(expected: NDArray[Any], got: NDArray[Any], step: NDArray[Any] | None, least_db: float) -> str | None:
    """How far a value is off beyond half a step, in words; None where that is at least `least_db` down."""
    if got.shape != expected.shape:
        return f"{[*got.shape]} where the file gives {[*expected.shape]}"
    if expected.dtype in _HALVES:
        with np.errstate(over="ignore"):
            expected, got = expected.astype(np.float32), got.astype(expected.dtype).astype(np.float32)
    elif got.dtype.kind != "f":
        expected, got = np.ones(expected.shape), (expected == got).astype(np.float64)
    truth, made = expected.astype(np.float64), got.astype(np.float64)
    same = (truth == made) | (np.isnan(truth) & np.isnan(made))
    off = np.where(same, 0.0, np.abs(np.where(same, 0.0, made) - np.where(same, 0.0, truth)))
    if step is not None:
        off = np.maximum(off - _HALF * float(np.max(step)), 0.0)
    signal = float(np.square(truth[np.isfinite(truth)]).sum())
    db = sqnr_db(signal, float(np.square(off).sum()))
    if db is not None and db >= least_db:
        return None
    return f"{db:.1f} dB on the file's own inputs" if db is not None else "no finite error on the file's own inputs"


def _nudged(feeds: Arrays) -> dict[str, NDArray[Any]]:
    """The float inputs, changed by about what a sum in float32 may change."""
    random = np.random.default_rng(0)
    return {
        name: (array * (1 + _NUDGE * random.choice([-1.0, 1.0], array.shape))).astype(array.dtype)
        if array.dtype.kind == "f"
        else array
        for name, array in feeds.items()
    }


def _largest(array: NDArray[Any]) -> float:
    """The largest finite magnitude of floats."""
    return float(np.abs(array[np.isfinite(array)]).max(initial=0.0)) if array.dtype.kind == "f" else 0.0


def _is_rounding(expected: NDArray[Any], got: NDArray[Any], exact: NDArray[Any]) -> bool:
    """Whether an error is about as large as the effect of rounding the input: `exact` is made without."""
    error = float(np.square(got.astype(np.float64) - expected).sum())
    return error <= _INSIDE * float(np.square(got.astype(np.float64) - exact).sum())


def _is_noise(expected: NDArray[Any], got: NDArray[Any], nudged: NDArray[Any], largest: float) -> bool:
    """Whether inputs that change by next to nothing change the value by about as much as it is off."""
    if expected.dtype.kind != "f" or got.shape != expected.shape or nudged.shape != got.shape:
        return False
    error = float(np.square(got.astype(np.float64) - expected).sum())
    change = float(np.square(nudged.astype(np.float64) - got).sum())
    return bool(error <= _NOISE**2 * change and error <= got.size * (_SMALL * largest) ** 2)
