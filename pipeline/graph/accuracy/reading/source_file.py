"""The source's own file, run as it is: by onnxruntime without optimizations, or else by ONNX's reference evaluator.

A file that is taken whole is opened by its path. Of one of which a part is taken, a copy of the graph has the ends of
the part as outputs and its beginning as inputs; its weights stay the file's own bytes, on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, ValueInfoProto, helper
from onnx.external_data_helper import load_external_data_for_model
from onnx.reference import ReferenceEvaluator

from pipeline.frozen import dataclass
from pipeline.graph.cpu import Arrays, unoptimized_file, unoptimized_session
from pipeline.graph.files.lean_parse import parse_lean
from pipeline.graph.ir.index import in_order
from pipeline.graph.ir.traverse import live_nodes, reads
from pipeline.graph.shapes.normal_form import inline_functions

Outputs = dict[str, NDArray[Any]]
Engine = Literal["onnxruntime", "onnx.reference"]


@dataclass(frozen=True)
class SourceFile:
    """The part of a file that a component is: from the values `begin`, or its inputs, to `cut`, or its outputs.

    `outputs` are the component's, and `constants` the values that some of the file's inputs are fixed to.
    """

    path: Path
    outputs: tuple[str, ...]
    cut: tuple[str, ...]
    begin: tuple[str, ...]
    constants: Arrays

    def part(self, feed: Arrays) -> ModelProto:
        """A copy of the graph that computes the part alone; its large tensors are external data in the file.

        `feed` has the dtypes and ranks of the values that it begins at.
        """
        model = parse_lean(self.path)
        if not {*self.begin, *self.cut} <= {name for node in model.graph.node for name in node.output}:
            model = inline_functions(model)  # the config names a value inside of a function
        graph = model.graph
        nodes = live_nodes(ordered([_without(node, self.begin) for node in graph.node]), self.outputs)
        read = {name for node in nodes for name in reads(node)}
        inputs = [value for value in graph.input if value.name in read or not self.begin + self.cut]
        inputs += [declared(name, feed[name]) for name in self.begin]
        known = {value.name: value for value in graph.output}
        outputs = [known.get(name) or ValueInfoProto(name=name) for name in self.outputs]
        for field, values in (("node", nodes), ("input", inputs), ("output", outputs)):
            copies = [type(value).FromString(value.SerializeToString()) for value in values]
            graph.ClearField(field)
            getattr(graph, field).extend(copies)
        return model

    def runner(self, by: Engine, first: Arrays) -> Callable[[Arrays], Outputs]:
        """The function of the part as an engine computes it, every node as the file has it; `first` is a feed."""
        whole = not (self.cut or self.begin)
        if whole and by == "onnxruntime":
            session = unoptimized_file(self.path)
            return lambda feed: run_fed(session, {**feed, **self.constants}, self.outputs)
        computed = _evaluated(ReferenceEvaluator(str(self.path))) if whole else self.computing(self.part(first), by)
        return lambda feed: computed({**feed, **self.constants}, self.outputs)

    def computing(self, model: ModelProto, by: Engine) -> Callable[[Arrays, Sequence[str]], Outputs]:
        """The function that gives outputs of a copy of the graph by name; what it has no input for is left out."""
        if by == "onnxruntime":
            return partial(run_fed, unoptimized_session(model, self.path.parent))
        load_external_data_for_model(model, str(self.path.parent))
        return _evaluated(ReferenceEvaluator(model))


def _evaluated(evaluator: ReferenceEvaluator) -> Callable[[Arrays, Sequence[str]], Outputs]:
    def computed(given: Arrays, names: Sequence[str]) -> Outputs:
        fed = {name: given[name] for name in evaluator.input_names if name in given}
        made = dict(zip(evaluator.output_names, evaluator.run(None, fed), strict=True))
        return {name: np.asarray(made[name]) for name in names}

    return computed


def run_fed(session: ort.InferenceSession, given: Arrays, names: Sequence[str]) -> Outputs:
    """Outputs of a session by name; of `given`, what it has no input for is left out."""
    takes = (*session.get_inputs(), *session.get_overridable_initializers())
    feed = {value.name: np.asarray(given[value.name], order="C") for value in takes if value.name in given}
    return dict(zip(names, session.run([*names], feed), strict=True))


def declared(name: str, array: NDArray[Any]) -> ValueInfoProto:
    """A value of an array's dtype and rank, with open dims."""
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), [None] * array.ndim)


def ordered(nodes: Sequence[NodeProto]) -> Sequence[NodeProto]:
    """The nodes in topological order; as they are if they have a cycle."""
    return in_order([*nodes]) or nodes


def _without(node: NodeProto, names: Collection[str]) -> NodeProto:
    """The node, or a copy that makes none of these values."""
    if not {*names}.intersection(node.output):
        return node
    copy = NodeProto()
    copy.CopyFrom(node)
    copy.output[:] = ["" if name in names else name for name in node.output]
    return copy
