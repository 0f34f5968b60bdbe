"""What onnxruntime reads and ONNX's checker does not accept is taken, and computes the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, checker, helper

from pipeline.errors import ModelError
from pipeline.graph.files.loose_forms import tighten
from pipeline.graph.files.model_file import MODEL
from tests.support.sources import ingested, model, numbers, outputs, same

GRAPH = """g (float[1,4] x, bool which) => (float[1,4] y) {
    a = MatMul (x, w)
    b = If (which) <then_branch = t () => (float[1,4] d) { c = Relu (a)  d = Neg (c) },
                    else_branch = e () => (float[1,4] f) { f = Abs (a) }>
    y = Add (b, a)
}"""


def unsorted(source: ModelProto) -> None:
    nodes = list(source.graph.node)[::-1]
    del source.graph.node[:]
    source.graph.node.extend(nodes)


def nameless(source: ModelProto) -> None:
    source.graph.name = ""


def of_no_version(source: ModelProto) -> None:
    source.ir_version = 0


def of_an_old_version(source: ModelProto) -> None:
    source.ir_version = 3


def domain_in_full(source: ModelProto) -> None:
    source.graph.node[0].domain = "ai.onnx"


def keys_twice(source: ModelProto) -> None:
    source.metadata_props.add(key="names", value="a")
    source.metadata_props.add(key="names", value="b")


@pytest.mark.parametrize("loosen", [unsorted, nameless, of_no_version, of_an_old_version, domain_in_full, keys_twice])
def test_loose_form(tmp_path: Path, loosen: Callable[[ModelProto], None]) -> None:
    whole = model(GRAPH, {"w": numbers(4, 4)})
    loose = ModelProto()
    loose.CopyFrom(whole)
    loosen(loose)
    with pytest.raises(checker.ValidationError):
        checker.check_model(loose)
    made = ingested(tmp_path, loose).folder / MODEL
    for which in (True, False):
        feeds = {"x": numbers(1, 4), "which": np.array(which)}
        assert same(outputs(loose, feeds), outputs(whole, feeds))
        assert same(outputs(made, feeds), outputs(whole, feeds))


def test_a_cycle_is_left_to_the_checker(tmp_path: Path) -> None:
    source = model("g (float[1,4] x) => (float[1,4] y) { y = Add (x, z)  z = Relu (y) }")
    before = list(source.graph.node)
    tighten(source)
    assert list(source.graph.node) == before
    with pytest.raises(ModelError, match="is not a valid ONNX model"):
        ingested(tmp_path, source)


def test_a_model_in_order_keeps_its_order() -> None:
    source = model(GRAPH, {"w": numbers(4, 4)})
    source.graph.node.insert(0, helper.make_node("Identity", ["x"], ["unused"]))
    before = [node.op_type for node in source.graph.node]
    tighten(source)
    assert [node.op_type for node in source.graph.node] == before
