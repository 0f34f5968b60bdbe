from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, numpy_helper

from pipeline.contracts.scheme import FP16, Rule
from pipeline.graph.files.model_file import MODEL, load_graph, save_graph
from pipeline.graph.ir.index import GraphIndex
from pipeline.graph.quantization.passes import write_out_layers
from pipeline.graph.quantization.quantizer import float_nodes
from pipeline.model import StageInput
from tests.support.graphs import graph, operators, outputs
from tests.support.on_htp import on_chip, on_cpu, sqnr_db
from tests.support.recurrent import DIRECTIONS, weights
from tests.support.stage_runs import Component

ALL = ("Y", "Y_h", "Y_c")
Arrays = dict[str, NDArray[np.float32]]


def layer(
    direction: str = "forward",
    given: tuple[str, ...] = ALL,
    *,
    places: int = 5,
    batch: int = 2,
    size: int = 4,
    bias: bool = True,
    states: tuple[str, ...] = ("h", "c"),
    attributes: str = "",
) -> ModelProto:
    count = DIRECTIONS[direction]
    state = f"float[{count},{batch},{size}]"
    shapes = {"Y": f"float[{places},{count},{batch},{size}]", "Y_h": state, "Y_c": state}
    inputs = ", ".join(["x", "W", "R", "B" if bias else "", "", *(name if name in states else "" for name in "hc")])
    declared = ", ".join([f"float[{places},{batch},8] x", *(f"{state} {name}" for name in states)])
    made = ", ".join(name if name in given else "" for name in ALL).rstrip(", ")
    text = f"""g ({declared}) => ({", ".join(f"{shapes[name]} {name}" for name in given)}) {{
        {made} = LSTM <hidden_size = {size}, direction = "{direction}"{attributes}> ({inputs.rstrip(", ")}) }}"""
    constants = weights("LSTM", 8, size, count)
    if not bias:
        del constants["B"]
    return graph(text, constants)


def feeds(model: ModelProto, seed: int = 1) -> Arrays:
    rng = np.random.default_rng(seed)
    shapes = {value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in model.graph.input}
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def write_out(model: ModelProto, folder: Path) -> int:
    return write_out_layers.apply(model, folder, is_wanted=lambda _index, _layer: True)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("given", [ALL, ("Y",), ("Y_h",), ("Y_c",), ("Y", "Y_c")], ids=" ".join)
def test_every_output_of_every_direction_stays_as_it_was(
    direction: str, given: tuple[str, ...], tmp_path: Path
) -> None:
    model = layer(direction, given)
    feed = feeds(model)
    before = outputs(model, feed)

    assert write_out(model, tmp_path) == 1

    assert "LSTM" not in operators(model)
    after = outputs(model, feed)
    for name, expected in before.items():
        np.testing.assert_allclose(after[name], expected, rtol=1e-5, atol=1e-6)
    assert write_out(model, tmp_path) == 0


@pytest.mark.parametrize("states", [(), ("h",), ("c",)], ids=["no state", "hidden alone", "cell alone"])
@pytest.mark.parametrize("places", [1, 7])
def test_states_and_biases_that_are_left_out_are_zero(states: tuple[str, ...], places: int, tmp_path: Path) -> None:
    model = layer("bidirectional", places=places, batch=1, bias=False, states=states)
    feed = feeds(model)
    before = outputs(model, feed)
    assert write_out(model, tmp_path) == 1
    after = outputs(model, feed)
    for name, expected in before.items():
        np.testing.assert_allclose(after[name], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_gates_that_see_the_cell_state_do_so_then_too(direction: str, tmp_path: Path) -> None:
    model = layer(direction)
    model.graph.node[0].input.append("P")
    peepholes = np.random.default_rng(5).normal(size=(DIRECTIONS[direction], 12)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(peepholes, "P"))
    before = outputs(model, feeds(model))
    assert write_out(model, tmp_path) == 1
    after = outputs(model, feeds(model))
    for name, expected in before.items():
        np.testing.assert_allclose(after[name], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "attributes", [", clip = 3.0", ", input_forget = 1", ', activations = ["Sigmoid", "Relu", "Tanh"]']
)
def test_layers_that_compute_something_else_are_left_alone(attributes: str, tmp_path: Path) -> None:
    assert write_out(layer(attributes=attributes), tmp_path) == 0


def test_what_is_left_out_of_an_output_list_is_no_name_that_others_have(tmp_path: Path) -> None:
    """A GRU of whose outputs one is left out stays when an LSTM of whose outputs one is left out goes."""
    model = graph(
        """g (float[5,1,8] x) => (float[1,1,4] Y_c, float[1,1,4] last) {
            , , Y_c = LSTM <hidden_size = 4> (x, W, R, B)
            , last = GRU <hidden_size = 4> (x, Wg, Rg, Bg) }""",
        weights("LSTM", 8, 4) | weights("GRU", 8, 4, suffix="g"),
    )
    before = outputs(model, feeds(model))
    assert write_out(model, tmp_path) == 1
    np.testing.assert_allclose(outputs(model, feeds(model))["last"], before["last"], rtol=1e-5, atol=1e-6)


def test_layers_over_so_many_places_that_nothing_would_compile_stay(tmp_path: Path) -> None:
    assert write_out(layer("bidirectional", ("Y",), places=330, batch=1), tmp_path) == 0
    assert write_out(layer("bidirectional", ("Y",), places=300, batch=1), tmp_path) == 1


def tagger() -> ModelProto:
    """Two layers both ways over 24 places, and scores."""
    constants: Arrays = weights("LSTM", 32, 32, 2) | weights("LSTM", 64, 32, 2, seed=1, suffix="b")
    constants["scores"] = (np.random.default_rng(2).normal(size=(64, 10)) / 4).astype(np.float32)
    return graph(
        """g (float[24,1,32] x) => (float[24,1,10] y) {
            first = LSTM <hidden_size = 32, direction = "bidirectional"> (x, W, R, B)
            turned = Transpose <perm = [0, 2, 1, 3]> (first)
            flat = Reshape <allowzero = 0> (turned, wide)
            second = LSTM <hidden_size = 32, direction = "bidirectional"> (flat, Wb, Rb, Bb)
            again = Transpose <perm = [0, 2, 1, 3]> (second)
            both = Reshape <allowzero = 0> (again, wide)
            y = MatMul (both, scores) }""",
        constants | {"wide": np.array([24, 1, 64], np.int64)},
    )


FLOAT_LAYERS = [Rule(ops=("LSTM",), precision=FP16)]


@pytest.fixture(scope="module")
def component(tmp_path_factory: pytest.TempPathFactory) -> Component:
    return Component(tmp_path_factory.mktemp("tagger"), tagger(), {"all": {}})


def quantized(component: Component, rules: list[Rule]) -> StageInput:
    ranges = component.calibrate([feeds(tagger(), seed) for seed in range(8)])
    return component.quantize("all", ranges, rules=rules)


def test_layers_that_a_rule_leaves_in_float_are_written_out_in_float(component: Component) -> None:
    model = quantized(component, FLOAT_LAYERS)
    read = load_graph(model.folder / MODEL)
    assert "LSTM" not in operators(read)
    own = [node for node in read.graph.node if node.op_type in ("Sigmoid", "Tanh")]
    assert len(own) == 3 * 24 * 4
    assert {f"{node.name!r} ({node.op_type})" for node in own} <= set(float_nodes(GraphIndex(read, model.folder)))
    floats = [tensor for tensor in read.graph.initializer if tensor.dims == [128, 64]]
    assert len({(each.external_data[0].value, each.external_data[1].value) for each in floats}) == 2, "one of each way"
    truth = [outputs(tagger(), feeds(tagger(), 20))]
    assert sqnr_db(truth, on_cpu(model, [feeds(tagger(), 20)]), "y") > 45
    assert "LSTM" in operators(load_graph(quantized(component, []).folder / MODEL))


@pytest.mark.slow
def test_the_chip_computes_layers_as_the_cpu_does_that_are_written_out(component: Component, tmp_path: Path) -> None:
    feed = [feeds(tagger(), seed) for seed in (20, 21)]
    figures = []
    for name, rules in (("whole", list[Rule]()), ("written", FLOAT_LAYERS)):
        model = quantized(component, rules)
        chip = on_chip(model, feed, tmp_path / name)
        assert chip.cpu_ops == set()
        figures.append(sqnr_db(on_cpu(model, feed), chip.outputs, "y"))
    assert figures[0] < 42, f"{figures}: HTP's LSTM is precise now: drop the rewrite"
    assert figures[1] > 50


@pytest.mark.slow
def test_the_chip_in_float16_does_so_too(component: Component, tmp_path: Path) -> None:
    feed = [feeds(tagger(), seed) for seed in (20, 21)]
    truth = [outputs(tagger(), each) for each in feed]
    written = load_graph(component.rewrite["all"].folder / MODEL)
    assert write_out_layers.apply(written, component.rewrite["all"].folder, is_wanted=_any) == 2
    (tmp_path / "model").mkdir()
    for blob in component.rewrite["all"].folder.glob("*.bin"):
        (tmp_path / "model" / blob.name).write_bytes(blob.read_bytes())
    save_graph(written, tmp_path / "model" / MODEL)
    chip = on_chip(StageInput(tmp_path / "model", {}, {}), feed, tmp_path / "out")
    assert sqnr_db(truth, chip.outputs, "y") > 48


def _any(_index: GraphIndex, _layer: object) -> bool:
    return True
