"""Where a component begins in the middle of a file, samples of the file's own inputs will do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from pipeline.contracts.samples import Reading, VocabularyReading
from pipeline.contracts.values import TensorSpec
from pipeline.errors import CalibrationError
from pipeline.graph.shapes.normal_form import inline_functions
from pipeline.inputs.samples.conform import Interface, conform
from pipeline.inputs.samples.middle import Middle
from pipeline.inputs.samples.request import ReadRequest
from pipeline.inputs.samples.text import read
from tests.support.sources import model

TEXT = """g (float[1,n] x, float[1] speed) => (float[1,n] y) {
    d = Mul (x, speed)  noise = RandomNormalLike (d)  e = Mul (noise, d)  y = Neg (e) }"""
D, NOISE = TensorSpec("d", "float32", (1, "n")), TensorSpec("noise", "float32", (1, "n"))
X, SPEED = np.array([[1, 2, 3]], np.float32), np.array([2], np.float32)


def middle(folder: Path, *names: str, **constants: float) -> Middle:
    onnx.save(model(TEXT), folder / "net.onnx")
    return Middle(
        folder / "net.onnx", names, {name: np.array([value], np.float32) for name, value in constants.items()}
    )


def interface(part: Middle, *inputs: TensorSpec) -> Interface:
    return Interface(inputs, {"8": {"n": 8}}, gone=("x", "speed"), middle=part)


def test_the_file_is_run_for_values_that_a_sample_does_not_have(tmp_path: Path) -> None:
    made = conform({"x": X, "speed": SPEED}, interface(middle(tmp_path, "d"), D), where="a")
    assert made.keys() == {"d"}
    np.testing.assert_array_equal(made["d"], 2 * X)


def test_an_input_that_the_config_fixes_need_not_be_there(tmp_path: Path) -> None:
    made = conform({"x": X}, interface(middle(tmp_path, "d", speed=3), D), where="a")
    np.testing.assert_array_equal(made["d"], 3 * X)


def test_values_that_a_sample_has_are_taken(tmp_path: Path) -> None:
    given = {"d": np.array([[7, 8]], np.float32)}
    np.testing.assert_array_equal(conform(given, interface(middle(tmp_path, "d"), D), where="a")["d"], given["d"])


def test_what_is_drawn_at_random_is_the_same_each_time(tmp_path: Path) -> None:
    first, second = (middle(tmp_path, "noise").values({"x": X, "speed": SPEED})["noise"] for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert first.std() > 0


def test_each_sample_has_numbers_of_its_own(tmp_path: Path) -> None:
    part = middle(tmp_path, "noise")
    first, second = (part.values({"x": X, "speed": SPEED})["noise"] for _ in range(2))
    assert (first != second).all()


def test_a_value_may_be_made_inside_of_a_function(tmp_path: Path) -> None:
    twice = helper.make_function("local", "Twice", ["a"], ["b"], [
        helper.make_node("Add", ["a", "a"], ["sum"]), helper.make_node("Neg", ["sum"], ["b"]),
    ], [helper.make_opsetid("", 17)])  # fmt: skip
    source = model("g (float[1,n] x) => (float[1,n] y) { d = local.Twice (x)  y = Exp (d) }")
    source.functions.append(twice)
    onnx.save(source, tmp_path / "net.onnx")
    name = inline_functions(source).graph.node[0].output[0]
    found = Middle(tmp_path / "net.onnx", (name,), {}).values({"x": X})
    np.testing.assert_array_equal(found[name], 2 * X)


def test_a_sample_with_neither_is_told_what_it_lacks(tmp_path: Path) -> None:
    with pytest.raises(CalibrationError, match="the sample has no array for d: float32") as caught:
        conform({"x": X}, interface(middle(tmp_path, "d", "noise"), D, NOISE), where="a")
    assert "or for x, speed of the whole file" in str(caught.value)


def test_who_gives_texts_is_told_of_arrays_of_the_whole_file(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a\n")
    (tmp_path / "vocab.txt").write_text("[UNK]\na\n")
    reading = Reading("text", vocabulary=VocabularyReading("vocab.txt"))
    request = ReadRequest(reading, {"sound": interface(middle(tmp_path, "d"), D)}, {}, tmp_path, tmp_path / "a.txt")
    with pytest.raises(CalibrationError) as caught:
        next(read(request))
    assert "give arrays for x, speed with reader: npz" in caught.value.remedy
