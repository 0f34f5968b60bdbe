"""Works out how shapes depend on length axes: what size to pad inputs to, and where to cut outputs.

The model names an input's dims, or gives expressions of its axes. For an output's dims it often gives neither. Their
rule is then inferred from the shapes in the buckets, if exactly one rule fits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pipeline.frozen import dataclass
from pipeline.model import Json

UNKNOWN: Mapping[str, Json] = {"unknown": True}
_MULTIPLES = (2, 3, 5)
"""Multiples of a bucket's length at which an expression is evaluated."""

Axes = Mapping[str, int]


@dataclass(frozen=True)
class Dim:
    """One dim of an input or output: what the model declares, and its size in each bucket.

    `fixed` has the axes with the same value in all buckets.
    """

    declared: Json
    sizes: Sequence[int]
    buckets: Sequence[Axes]
    fixed: Axes

    def of_input(self) -> Json:
        """A size, the name of an axis, ``{"axis", "times", "offset"}``, or None if no rule is certain."""
        rule = self.of_output()
        if "size" in rule:
            return rule["size"]
        if not self._named() and self._is_constant():
            return self.sizes[0]  # no axis makes it longer
        return (rule["axis"] if {*rule} == {"axis"} else rule) if "axis" in rule else None

    def of_output(self) -> dict[str, Json]:
        """``{"size": n}``, ``{"axis": name}``, ``{"axis", "times", "offset"}`` or ``{"unknown": True}``."""
        if isinstance(self.declared, int) and {*self.sizes} == {self.declared}:
            return {"size": self.declared}
        axes = [*self.buckets[0]]
        named = self._named()
        if not named and self._is_constant():
            return {"size": self.sizes[0]} if all(map(self._varies, axes)) else {**UNKNOWN}
        if len(named) > 1 and self._is_constant() and all(map(self._varies, named)):
            return {"size": self.sizes[0]}  # they make up for each other, as a window and the cache before it do
        rules = {axis: rule for axis in named if (rule := self._rule(axis, declared=True))}
        if len(rules) != 1:  # the sizes contradict the declaration, or it is no expression of one axis
            rules = {axis: rule for axis in axes if (rule := self._rule(axis, declared=False))}
        if len(rules) != 1:  # several axes that grow together would fit
            return {**UNKNOWN}
        ((axis, (times, offset)),) = rules.items()
        return {"axis": axis} if (times, offset) == (1, 0) else {"axis": axis, "times": times, "offset": offset}

    def _is_constant(self) -> bool:
        return len({*self.sizes}) == 1

    def _varies(self, axis: str) -> bool:
        return len({bucket[axis] for bucket in self.buckets}) > 1

    def _named(self) -> list[str]:
        """The axes of the buckets that the declaration names."""
        from pipeline.graph.shapes.axes import axis_names  # imports onnx

        found = axis_names(self.declared) if isinstance(self.declared, str) else ()
        return [axis for axis in found if axis in self.buckets[0]]

    def _rule(self, axis: str, *, declared: bool) -> tuple[int, int] | None:
        """`times` and `offset` with which every size is ``times * length + offset``; None if they are uncertain."""
        points = {*zip((bucket[axis] for bucket in self.buckets), self.sizes, strict=True)}
        if declared:
            points |= self._evaluated(axis)
        (first, low), *others = sorted(points)
        if not others or len({length for length, _ in points}) != len(points):
            return None
        second, high = others[0]
        times, rest = divmod(high - low, second - first)
        offset = low - times * first
        if rest or times < 1 or any(times * length + offset != size for length, size in points):
            return None
        return (times, offset) if len(points) >= (2 if offset == 0 else 3) else None

    def _evaluated(self, axis: str) -> set[tuple[int, int]]:
        """Lengths beyond those of the buckets, each with the dim's size there by the declaration."""
        from pipeline.graph.shapes.axes import DimError, dim_size

        found = set()
        for multiple in _MULTIPLES:
            length = multiple * self.buckets[0][axis]
            try:
                found.add((length, dim_size(str(self.declared), {**self.fixed, **self.buckets[0], axis: length})))
            except DimError:
                continue
        return found
