from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto

from pipeline.graph.rewrites import apply_all
from pipeline.graph.rewrites.activations import decompose_pow
from tests.conformance.batches import run_batch
from tests.support.graphs import graph, operators, outputs

X = np.concatenate([np.linspace(0.1, 4, 63), [-0.0]]).astype(np.float32).reshape(1, 64)
SIGNED = np.linspace(-2, 2, 64, dtype=np.float32).reshape(1, 64)

FORMS = {
    0: {"Mul": 1, "Add": 1},
    1: {"Identity": 1},
    2: {"Mul": 1},
    3: {"Mul": 2},
    4: {"Mul": 2},
    7: {"Mul": 4},
    8: {"Mul": 3},
    -1: {"Div": 1},
    -2: {"Mul": 1, "Div": 1},
    0.5: {"Sqrt": 1},
    1.5: {"Sqrt": 1, "Mul": 1},
    -0.5: {"Sqrt": 1, "Div": 1},
    0.3: {"Abs": 1, "Pow": 1},
    -2.5: {"Abs": 1, "Pow": 1},
}


def power(exponent: object, source: str = "x") -> ModelProto:
    made = "" if source == "x" else "a = Abs (x)"
    body = f"{made} y = Pow ({source}, exponent)"
    return graph(f"g (float[1,64] x) => (float[1,64] y) {{ {body} }}", {"exponent": np.asarray(exponent, np.float32)})


def inputs(exponent: float) -> NDArray[np.float32]:
    if exponent < 0:
        return X[:, :63].repeat(2, 1)[:, :64]
    return X if exponent % 1 else SIGNED


@pytest.mark.parametrize("exponent", FORMS)
def test_a_constant_power_is_written_out(exponent: float, tmp_path: Path) -> None:
    model = power(exponent)
    before = outputs(model, {"x": inputs(exponent)})["y"]

    assert apply_all(model, tmp_path)["decompose_pow"] == 1

    assert operators(model) == FORMS[exponent]
    np.testing.assert_allclose(outputs(model, {"x": inputs(exponent)})["y"], before, rtol=1e-5)
    assert decompose_pow.apply(model, tmp_path) == 0


@pytest.mark.parametrize("base", [2, 10, 0.5])
def test_a_power_of_a_constant_becomes_an_exponential(base: float, tmp_path: Path) -> None:
    model = graph("g (float[1,64] x) => (float[1,64] y) { y = Pow (b, x) }", {"b": np.float32(base)})
    before = outputs(model, {"x": SIGNED})["y"]

    assert decompose_pow.apply(model, tmp_path) == 1

    assert operators(model) == {"Mul": 1, "Exp": 1}
    np.testing.assert_allclose(outputs(model, {"x": SIGNED})["y"], before, rtol=1e-5)
    assert decompose_pow.apply(model, tmp_path) == 0


@pytest.mark.parametrize("base", [-2, 0, np.inf])
def test_powers_of_no_positive_number_are_left_alone(base: float, tmp_path: Path) -> None:
    model = graph("g (float[1,64] x) => (float[1,64] y) { y = Pow (b, x) }", {"b": np.float32(base)})
    assert decompose_pow.apply(model, tmp_path) == 0


def test_an_integer_exponent_is_one_too(tmp_path: Path) -> None:
    model = graph("g (float[1,64] x) => (float[1,64] y) { y = Pow (x, e) }", {"e": np.array([2], np.int64)})
    assert decompose_pow.apply(model, tmp_path) == 1
    assert operators(model) == {"Mul": 1}


OF_INTEGERS = "g (int32[1,64] x) => (int32[1,64] y) { y = Pow (x, e) }"
INTEGERS = np.arange(-32, 32)[None]


@pytest.mark.parametrize("kind", [np.int32, np.int64])
@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 5, 2.0])
def test_powers_of_integers_are_products(exponent: float, kind: type[np.integer], tmp_path: Path) -> None:
    by = np.asarray(exponent, kind if isinstance(exponent, int) else np.float32)
    model = graph(OF_INTEGERS.replace("int32", np.dtype(kind).name), {"e": by})
    before = outputs(model, {"x": INTEGERS.astype(kind)})["y"]

    assert decompose_pow.apply(model, tmp_path) == 1

    assert operators(model)["Pow"] == 0
    np.testing.assert_array_equal(outputs(model, {"x": INTEGERS.astype(kind)})["y"], before)
    assert decompose_pow.apply(model, tmp_path) == 0


BY_INTEGERS = "g (float[1,64] x, int32[1,64] e) => (float[1,64] y) { y = Pow (x, e) }"


def test_a_power_by_integers_is_one_by_floats(tmp_path: Path) -> None:
    model, feeds = graph(BY_INTEGERS), {"x": SIGNED, "e": np.abs(INTEGERS).astype(np.int32) % 4}
    before = outputs(model, feeds)["y"]
    assert decompose_pow.apply(model, tmp_path) == 1
    assert operators(model) == {"Cast": 1, "Pow": 1}
    np.testing.assert_allclose(outputs(model, feeds)["y"], before, rtol=1e-6)
    assert decompose_pow.apply(model, tmp_path) == 0


def test_the_chip_takes_neither_powers_of_integers_nor_by_them(tmp_path: Path) -> None:
    of, by = {"x": INTEGERS.astype(np.int32)}, {"x": SIGNED, "e": np.abs(INTEGERS).astype(np.int32) % 4}
    models = [graph(OF_INTEGERS, {"e": np.int32(5)}) for _ in range(2)] + [graph(BY_INTEGERS) for _ in range(2)]
    expected = [outputs(model, feeds)["y"] for model, feeds in ((models[0], of), (models[2], by))]
    for model in models[1::2]:
        assert decompose_pow.apply(model, tmp_path) == 1
    found = run_batch(models, [of, of, by, by], tmp_path / "work")
    for raw, cured, right in zip(found[::2], found[1::2], expected, strict=True):
        assert raw.on_cpu == ("Pow",) or raw.refused, "QNN takes such powers now: drop that part of decompose_pow"
        assert not cured.on_cpu
        np.testing.assert_allclose(cured.outputs[0], right, rtol=5e-3, atol=5e-3)


def test_the_square_in_a_norm_stays_for_its_fusion(tmp_path: Path) -> None:
    model = graph(
        """g (float[1,4,64] x) => (float[1,4,64] y) {
            square = Pow (x, two)
            mean = ReduceMean <axes = [-1]> (square)
            shifted = Add (mean, epsilon)
            root = Sqrt (shifted)
            y = Div (x, root)
        }""",
        {"two": np.float32(2), "epsilon": np.float32(1e-6)},
    )
    applied = apply_all(model, tmp_path)
    assert (applied["fuse_rms_norm"], applied["decompose_pow"]) == (1, 0)


@pytest.mark.parametrize(
    ("exponent", "source"), [(9, "x"), ([2, 3], "x"), (np.inf, "x"), (np.nan, "x"), (0.3, "a")], ids=str
)
def test_other_powers_are_left_alone(exponent: object, source: str, tmp_path: Path) -> None:
    exponents = np.tile(np.asarray(exponent, np.float32), 32) if isinstance(exponent, list) else exponent
    model = power(exponents, source)
    assert decompose_pow.apply(model, tmp_path) == 0


@pytest.mark.parametrize(
    ("text", "exponent"),
    [
        ("g (float[1,64] x, float[1,64] e) => (float[1,64] y) { y = Pow (x, e) }", None),
        ("g (float[1,64] x) => (float[3,64] y) { y = Pow (x, e) }", np.full((3, 1), 2, np.float32)),
        (OF_INTEGERS, np.array(-1, np.int32)),
        (OF_INTEGERS, np.array(32, np.int32)),
        (OF_INTEGERS, np.array(0.5, np.float32)),
    ],
    ids=["computed", "of another shape", "a negative one of integers", "beyond int32", "a root of integers"],
)
def test_what_is_no_power_of_floats_by_a_number_is_left_alone(
    text: str, exponent: NDArray[np.generic] | None, tmp_path: Path
) -> None:
    model = graph(text, {} if exponent is None else {"e": exponent})
    assert decompose_pow.apply(model, tmp_path) == 0


def test_the_chip_takes_the_square_of_minus_zero_for_minus_four(tmp_path: Path) -> None:
    feed = {"x": np.tile(np.array([-0.0, -1e-9, -2e-8, 0.5], np.float32), 16)[None]}
    exponents = [2, 4, 0.5, 0.3]
    rewritten = [power(exponent) for exponent in exponents]
    for model in rewritten:
        apply_all(model, tmp_path)
    models = [power(exponent) for exponent in exponents] + rewritten
    on_chip = [found.outputs[0] for found in run_batch(models, [feed] * len(models), tmp_path / "work")]

    raw, cured = on_chip[: len(exponents)], on_chip[len(exponents) :]
    for exponent, wrong, right in zip(exponents, raw, cured, strict=True):
        expected = np.abs(feed["x"].astype(np.float16).astype(np.float64)) ** exponent
        np.testing.assert_allclose(right, expected, rtol=5e-3, atol=1e-6)
        assert np.abs(wrong - expected).max() > 1, f"QNN computes x to the {exponent} rightly now: drop its rewrite"
