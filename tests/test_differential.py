"""Random ONNX files are read as onnxruntime reads them, or refused; `python -m tests.fuzz.differential` goes on."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest
from onnx import ModelProto

from pipeline.graph.files.functions import bind_attributes
from pipeline.graph.floats import WRITTEN_IN_FLOATS, blocks
from pipeline.graph.fused import FUSED, norms
from pipeline.graph.shapes import normal_form
from tests.fuzz.differential import EQUAL, KINDS, case_of, outcomes

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs fork")


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_is_read_as_onnxruntime_reads_it_or_refused(kind: str, tmp_path: Path) -> None:
    found = [each for _, each in outcomes(kind, range(60), 1, tmp_path)]
    assert [each for each in found if not each.is_right] == []
    assert Counter(each.said for each in found)[EQUAL] >= 30


def test_a_file_is_the_same_each_time() -> None:
    for kind in KINDS:
        assert case_of(kind, 3, 0).model == case_of(kind, 3, 0).model


def _without_defaults(model: ModelProto) -> ModelProto:
    for function in model.functions:
        del function.attribute_proto[:]
    return bind_attributes(model)


BROKEN: dict[str, tuple[str, object, str, object]] = {
    "defaults of functions": ("functions", normal_form, "bind_attributes", _without_defaults),
    "the bits of a byte": ("quantized", blocks, "_part", lambda made, packed, bits, place: packed),
    "an epsilon": ("fused", norms, "_EPSILON", 1e-2),
    "the form of old resizes": ("opsets", normal_form, "lift_resizes", lambda model: []),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_misreading_is_seen(broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, module, name, value = BROKEN[broken]
    monkeypatch.setattr(module, name, value)
    assert any(not each.is_right for _, each in outcomes(kind, range(300), 0, tmp_path))


def test_every_operator_that_is_written_out_is_tried() -> None:
    tried = {node.op_type for number in range(400) for node in case_of("quantized", number, 0).model.graph.node}
    assert {*WRITTEN_IN_FLOATS} <= tried
    tried = {node.op_type for number in range(200) for node in case_of("fused", number, 0).model.graph.node}
    assert {*FUSED} <= tried
