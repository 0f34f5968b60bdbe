"""What inputs and axes are taken for, by small graphs in the forms that exporters give them."""

from __future__ import annotations

from pathlib import Path

import pytest
from onnx import ModelProto, TensorProto, helper

from pipeline.errors import ModelError
from pipeline.propose.guessed_axes import guess_axes
from pipeline.propose.interface import GuessedComponent, look_at
from tests.support.graphs import graph
from tests.support.interfaces import HEARD, LAST, LONG, LOOKED_UP, MEL, NUMBERS, PICTURE, STATE, TEXT, WAVE, selecting
from tests.support.models.builder import save


def looked(tmp_path: Path, model: ModelProto) -> GuessedComponent:
    save(model, tmp_path / "net.onnx")
    return look_at("net.onnx", tmp_path / "net.onnx")


@pytest.mark.parametrize(
    ("text", "kinds", "axes"),
    [
        (TEXT, {"input_ids": "ids", "attention_mask": "mask"}, {"batch": "batch", "sequence": "tokens"}),
        (PICTURE, {"pixel_values": "image"}, {"N": "batch", "H": "height", "W": "width"}),
        (LAST, {"image": "image"}, {"batch": "batch"}),
        (WAVE, {"waveform": "audio"}, {"batch": "batch", "samples": "samples"}),
        (HEARD, {"given": "audio", "w": "other"}, {"batch": "batch", "time": "samples"}),
        (NUMBERS, {"embedding": "other"}, {"batch": "batch"}),
        (LONG, {"x": "audio"}, {"n": "batch"}),
        (LOOKED_UP, {"x": "ids", "table": "other"}, {"n": "batch"}),
        (MEL, {"mel": "features"}, {"batch": "batch", "frames": "length"}),
        (STATE, {"input_audio": "audio", "state": "state", "wave_length": "length"}, {"batch": "batch"}),
    ],
    ids=["text", "picture", "last", "wave", "heard", "numbers", "long", "looked up", "mel", "state"],
)
def test_inputs_and_axes_are_told_by_name_shape_and_reader(
    tmp_path: Path, text: str, kinds: dict[str, str], axes: dict[str, str]
) -> None:
    found = looked(tmp_path, graph(text))
    assert {given.spec.name: given.kind for given in found.inputs} == kinds
    assert {axis.name: axis.kind for axis in guess_axes({"net": found})} == axes


def test_a_state_names_the_output_that_it_is_fed_from(tmp_path: Path) -> None:
    found = looked(tmp_path, graph(STATE))
    assert [given.feeds for given in found.of_kind("state")] == ["stateN"]


@pytest.mark.parametrize(
    ("given", "fed"),
    [("h0", "hn"), ("past_key_values.0.key", "present.0.key"), ("h", "new_h"), ("cache_in", "cache_out")],
)
def test_names_of_states_and_what_feeds_them(tmp_path: Path, given: str, fed: str) -> None:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in (given, fed, "other")]
    nodes = [helper.make_node("Neg", [given], [fed]), helper.make_node("Neg", [given], ["other"])]
    model = helper.make_model(helper.make_graph(nodes, "net", values[:1], values[1:]), opset_imports=[])
    model.opset_import.append(helper.make_opsetid("", 17))
    (found,) = looked(tmp_path, model).inputs
    assert (found.kind, found.feeds) == ("state", fed)


def test_dims_without_names_go_by_their_place(tmp_path: Path) -> None:
    text = "net (float[?, 3, 8, ?] x) => (float[?, 3, 8, ?] y) { y = Neg (x) }"
    axes = guess_axes({"net": looked(tmp_path, graph(text))})
    assert {axis.name: axis.kind for axis in axes} == {"x[0]": "batch", "x[3]": "width"}


def test_an_input_that_decides_an_if_is_a_selector_with_what_it_is_compared_with(tmp_path: Path) -> None:
    (found,) = looked(tmp_path, selecting()).of_kind("selector")
    assert (found.spec.name, found.values) == ("sr", (8000,))


def test_what_is_no_model_is_raised_and_what_takes_no_arrays_is_refused(tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(b"no model")
    with pytest.raises(ModelError, match="is not an ONNX model, or is damaged"):
        look_at("net.onnx", tmp_path / "net.onnx")
    text = "net (seq(float[1, 4]) x) => (float[1, 4] y) { at = Constant <value_int = 0> () y = SequenceAt (x, at) }"
    found = looked(tmp_path, graph(text))
    assert found.refused is not None
    assert not found.inputs
