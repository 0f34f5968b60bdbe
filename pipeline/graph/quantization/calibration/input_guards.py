"""Guards on inputs: where a model itself replaces a NaN, or a number that means "missing", by another number.

As exporters write them, with views, transpositions and slices of the input on the way::

    Where(IsNaN(x), 0, x)      Where(x == x, x, 0)      Where(Or(IsNaN(x), x < -9000), mean, x)

No integer is a NaN, and no encoding of the numbers that are meant holds -9999 beside them, so such a guard computes in
float, on the float input: HTP (2.51, emulated) tells NaN from numbers in float16. The result is quantized. Of
infinities it can't: they compare as NaN does, and IsNaN is true of them. So an application may not give them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from onnx import NodeProto, TensorProto

from pipeline.contracts.scheme import FP16, Rule
from pipeline.graph.ir.attributes import integer
from pipeline.graph.ir.index import FLOATS, GraphIndex, is_float, is_op
from pipeline.graph.ir.moves import MOVES_FIRST
from pipeline.graph.quantization.calibration.ranges import Range

_NAN, _SENTINEL = "nan", "sentinel"
_COMPARES = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
_CHOSEN = "chosen"
_MOST = 64
"""Elements of a constant that is compared by its content."""


@dataclass(frozen=True)
class InputGuards:
    """The guards of a graph.

    `takes_nan` are the inputs in which a NaN never leaves its guard, `unguarded` the values that may hold one of them.
    `nodes` are the places in the graph of the nodes that read such values, or sentinels, and have to compute in float.
    """

    takes_nan: frozenset[str] = frozenset()
    unguarded: frozenset[str] = frozenset()
    nodes: tuple[int, ...] = ()


@dataclass(frozen=True)
class _Raw:
    """Elements of inputs as they came: of which, how they were moved, and what may still be among them."""

    sources: frozenset[str]
    form: Hashable
    hazards: frozenset[str]


@dataclass(frozen=True)
class _Test:
    """A boolean that is true (`negated`: false) wherever a value of this form has one of the hazards.

    `numbers` are those that the value is compared with, in either sense.
    """

    form: Hashable
    hazards: frozenset[str]
    negated: bool = False
    numbers: tuple[float, ...] = ()


def rule_for_guards(index: GraphIndex, ranges: Mapping[str, Range]) -> list[Rule]:
    """The rule that keeps the guards of a graph in float; nodes without a name of their own get one."""
    nodes, names = index.model.graph.node, list[str]()
    taken = Counter(node.name for node in nodes)
    for number in input_guards(index, ranges).nodes:
        node = nodes[number]
        if not node.name or taken[node.name] > 1:
            node.name = f"{next(name for name in node.output if name)}_guarded"
        names.append(node.name)
    return [Rule(nodes=tuple(names), precision=FP16)] if names else []


def input_guards(index: GraphIndex, ranges: Mapping[str, Range] | None = None) -> InputGuards:
    """The guards on the float inputs of a graph whose nodes are in topological order.

    With the measured `ranges`, also those against numbers beyond all that a guard lets through.
    """
    nodes = index.model.graph.node
    if not any(is_op(node, "Where") for node in nodes):
        return InputGuards()
    walk = _Walk(index, ranges or {})
    for value in index.model.graph.input:
        if value.name not in index.initializers and is_float(index, value.name):
            walk.raw[value.name] = _Raw(frozenset([value.name]), value.name, frozenset([_NAN, _SENTINEL]))
    given = {*walk.raw}
    for number, node in enumerate(nodes):
        walk.visit(number, node)
    for name in index.outputs & walk.raw.keys():
        walk.leak(walk.raw[name])
    kept = {name: walk.removed.get(name, set()) - walk.leaked.get(name, set()) for name in given}
    waiting = {
        name: raw.hazards.intersection(*[set[str]().union(*(kept[source] for source in raw.sources))])
        for name, raw in walk.raw.items()
    }
    return InputGuards(
        frozenset(name for name, hazards in kept.items() if _NAN in hazards),
        frozenset(name for name, hazards in waiting.items() if _NAN in hazards),
        tuple(number for number, names in walk.read.items() if any(waiting[name] for name in names)),
    )


@dataclass
class _Walk:
    """Follows inputs through a graph, node by node. `removed` and `leaked` are by input, `read` by place of a node."""

    index: GraphIndex
    ranges: Mapping[str, Range]
    raw: dict[str, _Raw] = field(default_factory=dict)
    tests: dict[str, _Test] = field(default_factory=dict)
    removed: dict[str, set[str]] = field(default_factory=dict)
    leaked: dict[str, set[str]] = field(default_factory=dict)
    read: dict[int, tuple[str, ...]] = field(default_factory=dict)

    def visit(self, number: int, node: NodeProto) -> None:
        """Note what a node makes of raw values and tests."""
        names = tuple(dict.fromkeys(name for name in node.input if name in self.raw))
        if names:
            self.read[number] = names
        first = node.input[0] if node.input else ""
        if is_op(node, *MOVES_FIRST) and (first in self.raw or first in self.tests):
            for at, name in enumerate(node.output):
                if first in self.raw:
                    self.raw[name] = replace(self.raw[first], form=self._moved(node, self.raw[first].form, at))
                else:
                    self.tests[name] = replace(self.tests[first], form=self._moved(node, self.tests[first].form, at))
        elif first in self.raw and self._is_kept(node):
            self.raw[node.output[0]] = self.raw[first]
        elif is_op(node, "Concat") and names:
            self._join(node.output[0], [self.raw[name] for name in names], node.output[0])
        elif is_op(node, "Not", "And", "Or"):
            self._combine(node)
        elif is_op(node, "Where"):
            self._choose(node)
        elif (test := self._tested(node)) is not None:
            self.tests[node.output[0]] = test
        else:
            for name in names:
                self.leak(self.raw[name])

    def leak(self, raw: _Raw) -> None:
        """Note that something is computed with whatever is still in a raw value."""
        for source in raw.sources:
            self.leaked.setdefault(source, set()).update(raw.hazards)

    def _is_kept(self, node: NodeProto) -> bool:
        """Whether a node casts floats, or clips what is then compared alone, as `compare_far_numbers` writes it."""
        if is_op(node, "Cast"):
            return integer(node, "to") in (*FLOATS, TensorProto.DOUBLE)
        name = node.output[0]
        return (
            is_op(node, "Clip")
            and name not in self.index.outputs
            and all(is_op(node, *_COMPARES) for node in self.index.readers[name])
        )

    def _join(self, result: str, parts: list[_Raw], form: Hashable) -> None:
        none = frozenset[str]()
        sources, hazards = none.union(*(part.sources for part in parts)), none.union(*(part.hazards for part in parts))
        self.raw[result] = _Raw(sources, form, hazards)

    def _moved(self, node: NodeProto, form: Hashable, at: int) -> Hashable:
        settings = tuple(sorted(attribute.SerializeToString() for attribute in node.attribute))
        return form, node.op_type, settings, tuple(map(self._content, node.input[1:])), at

    def _content(self, name: str) -> Hashable:
        """What a value is: equal small constants are alike, under whatever names."""
        values = self.index.constant(name) if name in self.index.initializers else None
        return name if values is None or values.size > _MOST else (values.shape, values.tobytes())

    def _tested(self, node: NodeProto) -> _Test | None:
        """The test that a node is of a raw value; None if it is none."""
        raws = [self.raw.get(name) for name in node.input]
        if is_op(node, "IsNaN", "IsInf") and raws[0] is not None:
            return _Test(raws[0].form, frozenset([_NAN] if is_op(node, "IsNaN") else []))
        if not is_op(node, *_COMPARES):
            return None
        first, second = raws
        if first is not None and second is not None:
            is_same = is_op(node, "Equal") and first.form == second.form
            return _Test(first.form, frozenset([_NAN]), negated=True) if is_same else None
        for raw, other in ((first, node.input[1]), (second, node.input[0])):
            number = self.index.scalar(other) if raw is not None else None
            if raw is not None and number is not None:
                return _Test(raw.form, frozenset([_SENTINEL]), numbers=(number,))
        return None

    def _combine(self, node: NodeProto) -> None:
        tests = [self.tests[name] for name in node.input if name in self.tests]
        if is_op(node, "Not"):
            for test in tests:
                self.tests[node.output[0]] = replace(test, negated=not test.negated)
            return
        # Or is true where one of its inputs is, And false where one is, whatever the other is.
        alike = [test for test in tests if test.numbers or test.negated == is_op(node, "And")]
        if alike and all(test.form == alike[0].form for test in alike):
            hazards = frozenset[str]().union(*(test.hazards for test in alike))
            numbers = tuple(number for test in alike for number in test.numbers)
            self.tests[node.output[0]] = _Test(alike[0].form, hazards, is_op(node, "And"), numbers)

    def _choose(self, node: NodeProto) -> None:
        """A Where: its result has what is left of the hazards of both branches."""
        result, test = node.output[0], self.tests.get(node.input[0])
        left: list[_Raw] = []
        for branch, if_true in ((node.input[1], True), (node.input[2], False)):
            raw = self.raw.get(branch)
            if raw is None:
                continue
            if test is not None and test.form in _forms(raw.form):
                gone = self._gone(test, result, if_true=if_true)
                for source in raw.sources:
                    self.removed.setdefault(source, set()).update(gone)
                raw = replace(raw, hazards=raw.hazards - gone)
            left.append(raw)
        if left:
            self._join(result, left, (_CHOSEN, left[0].form) if len(left) == 1 else result)

    def _gone(self, test: _Test, result: str, *, if_true: bool) -> set[str]:
        """The hazards that are not in a branch that is taken where a test is true, or where it is false."""
        gone = set(test.hazards) - {_SENTINEL} if test.negated == if_true else set[str]()
        if test.hazards == {_SENTINEL} and if_true != test.negated:
            gone.add(_NAN)  # a comparison with NaN is false
        passed = self.ranges.get(result)
        if passed is not None and any(not passed.low <= number <= passed.high for number in test.numbers):
            gone.add(_SENTINEL)
        return gone


def _forms(form: Hashable) -> Iterator[Hashable]:
    """The form of a value, and those that it had before numbers were put in their places."""
    yield form
    while isinstance(form, tuple) and form[0] == _CHOSEN:
        form = form[1]
        yield form
