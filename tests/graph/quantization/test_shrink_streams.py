"""Residual streams beyond float16, on the real compiler and emulator."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, numpy_helper

from pipeline.contracts.quantize import PartFacts
from pipeline.contracts.scheme import FP16, Rule
from pipeline.graph.files.model_file import MODEL, external_range, load_graph
from pipeline.graph.ir.index import GraphIndex
from pipeline.graph.quantization import quantizer
from pipeline.graph.quantization.calibration.ranges import CHOSEN
from pipeline.model import StageInput
from tests.support.graphs import graph
from tests.support.on_htp import on_chip, on_cpu, sqnr_db, without_rewrites
from tests.support.stage_runs import W8A16, Component, part

TOKENS, WIDTH, LOUD = 12, 32, 120_000.0
FLOAT = Rule(nodes=("*",), precision=FP16)
NETWORK = """g (int64[1,12] ids) => (float[1,12,32] y, float[1,12,32] early) {
    x0 = Gather (table, ids)
    p0 = Add (x0, places)
    n0 = LayerNormalization <axis=-1> (p0, gamma, beta)
    a0 = MatMul (n0, W0)
    x1 = Add (p0, a0)
    early = Tanh (p0)
    n1 = LayerNormalization <axis=-1, epsilon=1e-3> (x1, gamma)
    g1 = MatMul (n1, U)
    r1 = Relu (g1)
    a1 = MatMul (r1, W1)
    b1 = Add (a1, bias)
    x2 = Add (b1, x1)
    n2 = LayerNormalization <axis=-1> (x2, gamma)
    a2 = MatMul (n2, W0)
    s2 = Mul (a2, half)
    t2 = Transpose <perm=[0,2,1]> (s2)
    t3 = Transpose <perm=[0,2,1]> (t2)
    x3 = Sub (x2, t3)
    n3 = LayerNormalization <axis=-1> (x3, gamma)
    y = MatMul (n3, W0)
}"""
"""A stream p0, x1, x2, x3: embeddings and a constant, products, a product behind a scale, sums and a difference."""


def _model(loud: float = LOUD) -> ModelProto:
    rng = np.random.default_rng(5)
    table = rng.standard_normal((20, WIDTH))
    weights = rng.standard_normal((WIDTH, WIDTH)) / np.sqrt(WIDTH)
    # What the first row of the table has in its first channel drives one hidden unit, and that two channels of x2.
    up = rng.standard_normal((WIDTH, WIDTH)) / np.sqrt(WIDTH)
    table[0] = 0
    table[0, 0] = 30
    up[:, 0] = 0
    up[0, 0] = 1
    up[1, 0] = -1
    down = rng.standard_normal((WIDTH, WIDTH)) / np.sqrt(WIDTH)
    down[0] = 0
    down[0, 3], down[0, 5] = loud / 4, loud / 10
    constants = {
        "table": table, "places": 0.1 * rng.standard_normal((1, TOKENS, WIDTH)), "gamma": 1 + 0.1 * rng.random(WIDTH),
        "beta": 0.1 * rng.standard_normal(WIDTH), "W0": weights, "U": up, "W1": down,
        "bias": rng.standard_normal(WIDTH), "half": np.array([0.5]),
    }  # fmt: skip
    return graph(NETWORK, {name: array.astype(np.float32) for name, array in constants.items()}, opset=17)


def _feeds() -> list[dict[str, NDArray[np.int64]]]:
    rng = np.random.default_rng(6)
    return [{"ids": np.concatenate([[0], rng.integers(1, 20, TOKENS - 1)])[None]} for _ in range(3)]


def _quantized(component: Component, *rules: Rule) -> StageInput:
    return component.quantize("all", component.calibrate(_feeds()), rules=rules)


def _is_shrunk(step: StageInput) -> bool:
    return any(node.name.endswith("_in_unit") for node in load_graph(step.folder / MODEL).graph.node)


def test_it_computes_the_same_in_another_unit(tmp_path: Path) -> None:
    component = without_rewrites(tmp_path, _model())
    changed = _quantized(component, FLOAT)

    truth, tested = (on_cpu(step, _feeds()) for step in (component.rewrite["all"], changed))
    assert _is_shrunk(changed)
    for output in ("y", "early"):
        assert sqnr_db(truth, tested, output) > 100
    index = GraphIndex(load_graph(changed.folder / MODEL), changed.folder)
    norms = [node for node in index.model.graph.node if node.op_type == "LayerNormalization"]
    assert len(norms) == 4
    assert all(node.input[0].endswith("_shrunk") for node in norms), "none is left in the old unit"


def test_the_chip_holds_it_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    component = without_rewrites(tmp_path, _model())
    truth = on_cpu(component.rewrite["all"], _feeds())

    changed = on_chip(_quantized(component, FLOAT), _feeds(), tmp_path / "changed")
    monkeypatch.setattr(quantizer, "shrink_streams", lambda *_: None)
    left = on_chip(_quantized(component, FLOAT), _feeds(), tmp_path / "left")

    assert not changed.cpu_ops
    assert sqnr_db(truth, changed.outputs, "y") > 50
    assert sqnr_db(truth, left.outputs, "y") < 30


def _loud(step: StageInput) -> list[tuple[str, ...]]:
    told = PartFacts.from_json(step.facts).forecasts
    return [each.nodes for each in told if each.rule == "loud_stream"]


def test_integers_are_told_off_for_it(tmp_path: Path) -> None:
    component = without_rewrites(tmp_path, _model())
    integers = _quantized(component)
    (nodes,) = _loud(integers)

    assert not _is_shrunk(integers), "steps are as fine in any unit"
    by_name = {node.name: node for node in load_graph(component.rewrite["all"].folder / MODEL).graph.node}
    made = {str(by_name[name].output[0]) for name in nodes}
    assert {"p0", "x1", "x2", "x3", "n1", "n2", "n3"} <= made, "sums and norms"
    assert {"a1", "r1"} <= made, "what is massive, and what it multiplies"
    assert made.isdisjoint({"a0", "a2", "g1", "y"}), "not what is as large as the rest"

    mixed = _quantized(component, Rule(nodes=nodes, precision=FP16))
    assert _is_shrunk(mixed)
    assert not _loud(mixed)
    truth = on_cpu(component.rewrite["all"], _feeds())
    before, after = (sqnr_db(truth, on_cpu(step, _feeds()), "y") for step in (integers, mixed))
    assert after > before + 6
    assert sqnr_db(truth, on_chip(mixed, _feeds(), tmp_path / "mixed").outputs, "y") > before + 6


def test_what_float16_holds_is_left_alone(tmp_path: Path) -> None:
    quiet = _quantized(without_rewrites(tmp_path, _model(LOUD / 10)), FLOAT)
    assert not _is_shrunk(quiet)
    assert not _loud(quiet)


def test_a_loud_stream_that_is_read_as_it_is_stays(tmp_path: Path) -> None:
    model = _model()
    reader = next(node for node in model.graph.node if node.op_type == "Tanh")
    reader.input[0] = "x2"  # after what made it loud
    del model.graph.node[:]
    original = _model()
    nodes = [node for node in original.graph.node if node.op_type != "Tanh"]
    place = next(at for at, node in enumerate(nodes) if node.output[0] == "x2")
    model.graph.node.extend([*nodes[: place + 1], reader, *nodes[place + 1 :]])
    assert not _is_shrunk(_quantized(without_rewrites(tmp_path, model), FLOAT))


def _steps(step: StageInput) -> dict[str, tuple[str, float]]:
    """Type and scale of everything that is dequantized, by name."""
    index = GraphIndex(load_graph(step.folder / MODEL), step.folder)
    found: dict[str, tuple[str, float]] = {}
    for node in index.model.graph.node:
        if node.op_type == "DequantizeLinear":
            scale, zero_point = index.constant(node.input[1]), index.constant(node.input[2])
            assert scale is not None
            assert zero_point is not None
            found[node.input[0].removesuffix("_quantized").removesuffix("_QuantizeLinear_Output")] = (
                str(zero_point.dtype),
                float(scale.max()),
            )
    return found


@pytest.mark.parametrize("named", [("x1",), ("?1",)])
def test_what_rules_say_of_a_value_holds_in_the_other_unit(named: tuple[str, ...], tmp_path: Path) -> None:
    component = without_rewrites(tmp_path, _model())
    rule = Rule(tensors=named, activations="uint8")
    changed, plain = _quantized(component, FLOAT, rule), _quantized(component, FLOAT)

    assert _is_shrunk(changed)
    assert not _steps(plain)
    found = _steps(changed)
    assert found["x1_shrunk"][0] == "uint8"
    truth, tested = (on_cpu(step, _feeds()) for step in (component.rewrite["all"], changed))
    assert sqnr_db(truth, tested, "early") > 60, "what comes before it is in float"


def test_what_rules_say_of_a_constant_holds_in_the_other_unit(tmp_path: Path) -> None:
    """The stream is in 16 bits but for its last sum, which stays in float."""
    component = without_rewrites(tmp_path, _model())
    nodes = {node.output[0]: node.name for node in load_graph(component.rewrite["all"].folder / MODEL).graph.node}
    partly = Rule(nodes=(nodes["x3"],), precision=FP16)
    before = _steps(_quantized(component, partly))
    after = _steps(_quantized(component, partly, Rule(tensors=("places",), activations="uint8")))

    assert before["places_shrunk"][0] == "uint16"
    assert after["places_shrunk"][0] == "uint8"


def test_the_forecast_knows_values_in_the_other_unit(tmp_path: Path) -> None:
    component = without_rewrites(tmp_path, _model())
    calibrated = component.calibrate(_feeds())
    # As if a method had chosen so little of x1 that most of it is cut off.
    (calibrated.folder / CHOSEN).write_text(json.dumps({"8": {"x1": [-1.0, 1.0]}}), "utf-8")
    quantized = component.quantize("all", calibrated, rules=(FLOAT, Rule(tensors=("x1",), activations="uint8")))

    assert _is_shrunk(quantized)
    told = PartFacts.from_json(quantized.facts).forecasts
    assert [each.value for each in told if each.rule == "saturation"] == ["x1_shrunk"]


BY_LENGTH = """g (int64[1,L] ids) => (float[1,L,32] y) {
    shape = Shape (ids)
    length = Slice (shape, one, two)
    position = Slice (places, zero, length, one)
    embedded = Gather (table, ids)
    x0 = Add (embedded, position)
    n0 = LayerNormalization <axis=-1> (x0, gamma)
    u0 = MatMul (n0, U)
    r0 = Relu (u0)
    a0 = MatMul (r0, W1)
    x1 = Add (x0, a0)
    n1 = LayerNormalization <axis=-1> (x1, gamma)
    y = MatMul (n1, W0)
}"""
"""A loud stream that begins with a constant that each bucket has a part of."""


def test_a_constant_of_one_bucket_has_one_encoding_in_all(tmp_path: Path) -> None:
    given = {tensor.name: numpy_helper.to_array(tensor) for tensor in _model().graph.initializer}
    places = np.random.default_rng(7).standard_normal((1, 64, WIDTH)).astype(np.float32)
    places[0, 20:] *= 3
    numbers = {"places": places, "zero": np.array([0]), "one": np.array([1]), "two": np.array([2])}
    model = graph(BY_LENGTH, {**{name: given[name] for name in ("table", "gamma", "U", "W0", "W1")}, **numbers})
    lengths = {"short": 12, "long": 40}
    component = Component(tmp_path, model, {name: {"L": length} for name, length in lengths.items()})
    rng = np.random.default_rng(8)
    feeds = [{"ids": np.concatenate([[0], rng.integers(1, 20, length - 1)])[None]} for length in lengths.values()]
    last = next(node.name for node in load_graph(component.rewrite["long"].folder / MODEL).graph.node
                if node.output[0] == "x1")  # fmt: skip

    made = component.quantize_all(
        component.calibrate(feeds), replace(W8A16, overrides=(Rule(nodes=(last,), precision=FP16),))
    )

    short, long = (part(made, bucket) for bucket in lengths)
    assert _is_shrunk(long)
    assert _steps(short)["position_shrunk"] == _steps(long)["position_shrunk"]
    (tensor,) = (
        each for each in load_graph(long.folder / MODEL).graph.initializer if each.name == "position_shrunk_quantized"
    )
    assert external_range(tensor).location == "net_long_constants.bin", "as without another unit"
