from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from pipeline.graph.files.model_file import MODEL, load_graph
from pipeline.graph.files.single_precision import widen
from tests.support.graphs import graph, operators, outputs
from tests.support.on_htp import on_cpu, sqnr_db
from tests.support.stage_runs import Component

X = np.random.default_rng(0).normal(size=(1, 4, 32)).astype(np.float16)


def model() -> ModelProto:
    """Small weights, whose scales times those of the activations are nothing in float16."""
    weight = (np.random.default_rng(1).normal(size=(32, 32)) * 0.01).astype(np.float16)
    return graph(
        """g (float16[1,length,32] x) => (float16[1,length,32] y) {
            a = MatMul (x, w)
            b = Add (a, bias)
            c = Cast <to = 1> (b)
            d = Exp (c)
            e = Cast <to = 10> (d)
            y = MatMul (e, w)
        }""",
        {"w": weight, "bias": np.linspace(-0.02, 0.02, 32).astype(np.float16)},
    )


@pytest.fixture(scope="module")
def component(tmp_path_factory: pytest.TempPathFactory) -> Component:
    return Component(tmp_path_factory.mktemp("half"), model(), {"4": {"length": 4}})


def test_a_model_in_float16_computes_in_float32_between_its_edges(component: Component) -> None:
    taken_in = load_graph(component.ingest.folder / MODEL)
    assert {tensor.data_type for tensor in taken_in.graph.initializer} == {TensorProto.FLOAT}
    edges = [*taken_in.graph.input, *taken_in.graph.output]
    assert {value.type.tensor_type.elem_type for value in edges} == {TensorProto.FLOAT16}

    expected = outputs(model(), {"x": X})["y"]
    (computed,) = on_cpu(component.ingest, [{"x": X}])
    assert computed["y"].dtype == np.float16
    np.testing.assert_allclose(computed["y"], expected, atol=2e-3)


def test_casts_that_do_nothing_any_more_are_gone_once_shapes_are_known(component: Component) -> None:
    assert operators(load_graph(component.shape["4"].folder / MODEL))["Cast"] == 2, "at the edges"


def test_it_quantizes_as_well_as_in_float32(component: Component) -> None:
    quantized = component.quantize("4", component.calibrate([{"x": X}]))
    truth = on_cpu(component.ingest, [{"x": X}])
    assert sqnr_db(truth, on_cpu(quantized, [{"x": X}]), "y") > 40


def test_other_models_stay_as_they_are() -> None:
    plain = graph("g (float[2] x, int64[2] i) => (float[2] y) { f = Cast <to = 1> (i) y = Add (x, f) }")
    before = plain.SerializeToString()
    widen(plain)
    assert plain.SerializeToString() == before


def test_a_value_with_the_new_name_is_not_run_over() -> None:
    half = graph("g (float16[2] x) => (float16[2] y) { x_single = Neg (x) y = Neg (x_single) }")
    half.graph.ClearField("value_info")  # as in normal form
    widen(half)
    names = [name for node in half.graph.node for name in node.output]
    assert len(names) == len(set(names))
    np.testing.assert_array_equal(outputs(half, {"x": np.ones(2, np.float16)})["y"], np.ones(2, np.float16))


def test_parts_in_bfloat16_compute_in_float32(tmp_path: Path) -> None:
    weight = np.random.default_rng(1).normal(size=(32, 32)).astype(np.float32)
    made = graph(
        """g (float[1,4,32] x) => (float[1,4,32] y) {
            a = Cast <to = 16> (x)
            b = MatMul (a, w)
            y = Cast <to = 1> (b)
        }"""
    )
    narrow = helper.make_tensor("w", TensorProto.BFLOAT16, weight.shape, weight.ravel())
    made.graph.initializer.append(narrow)
    component = Component(tmp_path, made, {"all": {}})

    taken_in = load_graph(component.ingest.folder / MODEL)

    assert {tensor.data_type for tensor in taken_in.graph.initializer} == {TensorProto.FLOAT}
    x = X.astype(np.float32)
    (found,) = on_cpu(component.rewrite["all"], [{"x": x}])
    np.testing.assert_allclose(found["y"], x @ numpy_helper.to_array(narrow).astype(np.float32), rtol=1e-4, atol=1e-4)
