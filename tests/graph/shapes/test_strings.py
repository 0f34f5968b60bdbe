from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from pipeline.contracts.ingest import Facts
from pipeline.errors import ModelError
from pipeline.graph.files.model_file import MODEL
from pipeline.graph.shapes.strings import check_strings
from tests.support.sources import fetched, shaped
from tests.support.stage_runs import run_stage

HEAD = '<ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : 3]>\n'
BESIDE = """g (string[2] s, float[2] x) => (string[2] t, float[2] y) {
    t = StringNormalizer <case_change_action = "LOWER"> (s) y = Relu (x) }"""
NAMED = """g (float[1,3] x) => (string[1] name, float[1,3] p) {
    best = ArgMax <axis = 1, keepdims = 0> (x) name = Gather (names, best) p = Softmax (x) }"""
FIRST = """g (string[2] s) => (float[2] y) {
    place = ai.onnx.ml.LabelEncoder <keys_strings = ["a", "b"], values_int64s = [0, 1]> (s)
    y = Cast <to = 1> (place) }"""
WRITTEN = "g (float[1,3] x) => (string[1,3] y, float[1,3] z) { y = Cast <to = 8> (x) z = Relu (x) }"
CLASSES = """g (float[1,3] x) => (label, float[1,2] p) {
    label, p = ai.onnx.ml.LinearClassifier
        <coefficients = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], classlabels_strings = ["a", "b"]> (x) }"""


def model_of(text: str) -> onnx.ModelProto:
    model: onnx.ModelProto = onnx.parser.parse_model(HEAD + text)
    model.graph.initializer.append(numpy_helper.from_array(np.array(["a", "b", "c"], np.object_), "names"))
    return model


@pytest.mark.parametrize(
    ("text", "what", "where", "advice"),
    [
        (BESIDE, "(StringNormalizer) is of strings", "it reads the input 's', which holds strings", "cut: ['y']"),
        (NAMED, "(Gather) is of strings", "it reads the value 'names', which holds strings", "cut: ['best', 'p']"),
        (FIRST, "(LabelEncoder) is of strings", "it reads the input 's'", "this model can't be had as it is"),
        (WRITTEN, "(Cast) is of strings", "it makes the value 'y', which holds strings", "cut: ['z']"),
        (CLASSES, "(LinearClassifier) is of strings", "it makes the value 'label'", "this model can't be had as it is"),
    ],
    ids=["beside", "named", "first", "written", "classes"],
)
def test_the_first_node_of_strings_is_named_with_what_to_leave_out(
    text: str, what: str, where: str, advice: str
) -> None:
    with pytest.raises(ModelError) as told:
        check_strings(model_of(text))
    assert what.replace("(LabelEncoder)", "(ai.onnx.ml::LabelEncoder)").replace(
        "(LinearClassifier)", "(ai.onnx.ml::LinearClassifier)"
    ) in told.value.what  # fmt: skip
    assert told.value.where.startswith(where)
    assert told.value.why == "QNN has none: HTP computes with numbers only"
    assert advice in told.value.remedy
    assert told.value.exit_code == 12


def test_an_input_that_nothing_reads_is_named() -> None:
    with pytest.raises(ModelError, match="input 's' is of strings"):
        check_strings(model_of("g (string[2] s, float[2] x) => (float[2] y) { y = Relu (x) }"))


def test_what_is_left_without_the_strings_is_taken(tmp_path: Path) -> None:
    given = {"fetch": fetched(tmp_path / "in", model_of(BESIDE))}
    with pytest.raises(ModelError, match="is of strings"):
        run_stage("ingest", tmp_path / "whole", {"file": MODEL}, given)
    taken = run_stage("ingest", tmp_path / "cut", {"file": MODEL, "cut": ["y"]}, given)
    assert Facts.from_json(taken.facts).gone == ("s",)
    assert (shaped(tmp_path, taken).folder / MODEL).is_file()


def test_numbers_are_left_alone() -> None:
    model = onnx.parser.parse_model(HEAD + "g (float[2] x) => (float[2] y) { y = Relu (x) }")
    model.graph.initializer.append(numpy_helper.from_array(np.ones(2, np.float32), "w"))
    check_strings(model)
