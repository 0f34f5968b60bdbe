"""Values in the middle of a file, where a component begins: what the file itself computes of a sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import onnxruntime as ort
from numpy.typing import ArrayLike, NDArray
from onnx import helper

from pipeline.graph.cpu import run, unoptimized_session
from pipeline.graph.files.cutting import take_part
from pipeline.graph.files.lean_parse import parse_lean
from pipeline.graph.files.loose_forms import tighten
from pipeline.graph.ir.traverse import all_nodes
from pipeline.graph.shapes.folding import RANDOM
from pipeline.graph.shapes.normal_form import inline_functions


@dataclass(frozen=True)
class Middle:
    """The values called `names` of a file, which is run on the CPU for them; `constants` fix some of its inputs."""

    file: Path
    names: tuple[str, ...]
    constants: Mapping[str, NDArray[Any]]

    @property
    def inputs(self) -> Sequence[str]:
        """The inputs of the file that the values are computed from, those that are fixed left out."""
        return [value.name for value in self._session.get_inputs() if value.name not in self.constants]

    def values(self, arrays: Mapping[str, ArrayLike]) -> dict[str, NDArray[Any]]:
        """The values for `arrays` of the inputs, by name.

        What the file draws at random is another for each call, and the same for as many calls of another object.

        Raises:
            CalibrationError: the file can't compute them.
        """
        given = {value.name: value for value in self._session.get_inputs()}
        feeds = {name: array for name, array in {**arrays, **self.constants}.items() if name in given}
        return run(self._session, feeds)  # type: ignore[arg-type]

    @cached_property
    def _session(self) -> ort.InferenceSession:
        model = inline_functions(parse_lean(self.file))  # the names are those that ingest gives what is inside
        tighten(model)
        take_part(model, (), self.names)
        for node in all_nodes(model.graph):
            if node.op_type in RANDOM and all(attribute.name != "seed" for attribute in node.attribute):
                node.attribute.append(helper.make_attribute("seed", 0.0))
        return unoptimized_session(model, self.file.parent)
