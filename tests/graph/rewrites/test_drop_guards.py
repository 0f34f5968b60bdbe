from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto

from pipeline.graph.rewrites import apply_all, drop_guards
from tests.support.graphs import graph, operators, outputs
from tests.support.on_htp import on_chip, with_rewrites, without_rewrites

SCORES = np.random.default_rng(0).normal(size=(1, 2, 4, 4)).astype(np.float32)
MASK = np.array([[True, True, True, False]])
FEEDS = {"scores": SCORES, "mask": MASK}

MASKED = "s = Where (mask, scores, fill) w = Softmax (s)"
NAN = "nan = IsNaN (w) y = Where (nan, zero, w) z = Neg (y)"
NUMBER = """
    nan = IsNaN (w)
    a = Where (nan, zero, w)
    inf = IsInf (w)
    above = Greater (w, zero)
    positive = And (inf, above)
    b = Where (positive, one, a)
    below = Less (w, zero)
    negative = And (below, inf)
    c = Where (negative, zero, b)
    z = Neg (c)
"""
DOUBLE = """
    wide = Cast <to = 11> (w)
    inf = IsInf (wide)
    above = Greater (w, zero)
    positive = And (inf, above)
    b = Where (positive, one, w)
    z = Neg (b)
"""
GUARDS = {"torch's own attention": (NAN, 1), "nan_to_num": (NUMBER, 3), "nan_to_num in float64": (DOUBLE, 1)}
LEFT_ALONE = {
    "of something else": "s = Where (mask, scores, fill) w = Neg (s) " + NAN,
    "an output": f"{MASKED} nan = IsNaN (w) z = Where (nan, zero, w)",
    "turned round": f"{MASKED} nan = IsNaN (w) v = Not (nan) y = Where (v, w, zero) z = Neg (y)",
}  # fmt: skip


def build(body: str, fill: float) -> ModelProto:
    constants = {"fill": np.float32(fill), "zero": np.float32(0), "one": np.float32(1)}
    used = {name: value for name, value in constants.items() if name in body}
    text = f"g (float[1,2,4,4] scores, bool[1,4] mask) => (float[1,2,4,4] z) {{ {body} }}"
    return graph(text, used, opset=20)


@pytest.mark.parametrize("name", GUARDS)
def test_a_guard_of_a_softmax_falls_away(name: str, tmp_path: Path) -> None:
    guard, count = GUARDS[name]
    model = build(f"{MASKED} {guard}", -np.inf)
    before = outputs(model, FEEDS)["z"]

    assert apply_all(model, tmp_path)["drop_guards"] == count

    assert operators(model) == {"Where": 1, "Softmax": 1, "Neg": 1}
    np.testing.assert_allclose(outputs(model, FEEDS)["z"], before, atol=1e-30)
    assert drop_guards.apply(model, tmp_path) == 0


def test_it_stays_while_a_mask_is_infinite(tmp_path: Path) -> None:
    model = build(f"{MASKED} {NAN}", -np.inf)
    assert drop_guards.apply(model, tmp_path) == 0, "the mask is not made finite here"
    hidden = outputs(model, {**FEEDS, "mask": np.zeros((1, 4), bool)})["z"]
    assert not hidden.any(), "which is what the guard is for"


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_other_uses_are_left_alone(name: str, tmp_path: Path) -> None:
    model = build(LEFT_ALONE[name], -50.0)
    before = operators(model)
    assert drop_guards.apply(model, tmp_path) == 0
    assert operators(model) == before


@pytest.mark.slow
def test_qnn_takes_the_rest_whole(tmp_path: Path) -> None:
    model = build(f"{MASKED} {NUMBER}", -np.inf)
    left = []
    for name, component in (
        ("a", without_rewrites(tmp_path / "a", model)),
        ("b", with_rewrites(tmp_path / "b", model)),
    ):
        left.append(on_chip(component.rewrite["all"], [], tmp_path / name / "out").cpu_ops)
    assert left == [{"IsInf"}, set()]
