from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray
from onnx import ModelProto

from pipeline.errors import CalibrationError
from pipeline.graph.rewrites.choices import choose_before
from tests.support.graphs import graph, operators, outputs
from tests.support.on_htp import on_chip, on_cpu, sqnr_db, with_rewrites, without_rewrites

FORMS = {
    "a root": "k = Greater (x, zero)  f = Sqrt (x)  y = Where (k, f, z)",
    "a root that is left out where the condition holds": "k = Less (x, zero)  f = Sqrt (x)  y = Where (k, z, f)",
    "a root under a mask": "f = Sqrt (x)  y = Where (mask, f, z)",
    "a root that is scaled": "k = Greater (x, zero)  s = Sqrt (x)  m = Mul (s, two)  f = Neg (m) y = Where (k, f, z)",
    "one over a root": "k = Greater (x, half)  s = Sqrt (x)  f = Reciprocal (s)  y = Where (k, f, z)",
    "a logarithm": "k = Greater (x, zero)  f = Log (x)  y = Where (k, f, z)",
    "a logarithm above a floor": "k = GreaterOrEqual (x, half)  f = Log (x)  y = Where (k, f, z)",
    "a logarithm unless it is too low": "l = LessOrEqual (x, half)  k = Not (l)  f = Log (x)  y = Where (k, f, z)",
    "entropy": "k = Greater (x, zero)  l = Log (x)  f = Mul (l, x)  y = Where (k, f, z)",
}
LEFT_ALONE = {
    "a logarithm under a mask": "f = Log (x)  y = Where (mask, f, z)",
    "a root that is read besides": "k = Greater (x, zero)  f = Sqrt (x)  w = Where (k, f, z)  y = Add (w, f)",
    "a mean of roots": "k = Greater (x, zero)  s = Sqrt (x)  f = ReduceMean <axes = [1]> (s)  y = Where (k, f, z)",
    "a root that is chosen by": "f = Sqrt (x)  k = Cast <to = 9> (f)  y = Where (k, x, z)",
}
MASK = np.arange(8) % 3 > 0
CONSTANTS: dict[str, ArrayLike] = {
    "zero": np.float32(0), "half": np.float32(0.5), "two": np.float32(2), "z": np.float32(-0.25),
    "mask": MASK,
}  # fmt: skip


def build(body: str) -> ModelProto:
    words = set(body.replace("(", " ").replace(")", " ").replace(",", " ").split())
    used = {name: value for name, value in CONSTANTS.items() if name in words}
    return graph(f"g (float[1,6,8] x) => (float[1,6,8] y) {{ {body} }}", used)


def values(form: str) -> NDArray[np.float32]:
    """Numbers of either sign, zeros among them; none below 0 where a mask keeps them."""
    x = np.random.default_rng(0).normal(size=(1, 6, 8)).astype(np.float32)
    x[0, 0, :4] = 0, -0.0, 0.5, 1
    if "mask" in form:
        x[..., MASK] = np.abs(x[..., MASK])
    return x


@pytest.mark.parametrize("form", FORMS)
def test_what_is_kept_stays_the_same_bit_for_bit(form: str, tmp_path: Path) -> None:
    model, x = build(FORMS[form]), values(form)
    before = outputs(model, {"x": x})["y"]

    assert choose_before.apply(model, tmp_path) == 1

    assert operators(model)["Where"] == 2
    np.testing.assert_array_equal(outputs(model, {"x": x})["y"], before)
    assert choose_before.apply(model, tmp_path) == 0


@pytest.mark.parametrize("form", FORMS)
def test_nothing_in_between_is_nan_any_more(form: str, tmp_path: Path) -> None:
    model, x = build(FORMS[form]), values(form)
    choose_before.apply(model, tmp_path)
    made = next(node.output[0] for node in model.graph.node if node.op_type in ("Sqrt", "Log"))
    model.graph.output.append(next(value for value in model.graph.value_info if value.name == made))
    assert np.isfinite(outputs(model, {"x": x})[made]).all()


@pytest.mark.parametrize("form", LEFT_ALONE)
def test_others_are_left_alone(form: str, tmp_path: Path) -> None:
    assert choose_before.apply(build(LEFT_ALONE[form]), tmp_path) == 0


@pytest.mark.parametrize("form", ["a root", "a root that is scaled", "a logarithm above a floor", "one over a root"])
def test_the_chip_takes_it(form: str, tmp_path: Path) -> None:
    # Away from what the condition compares with, where any rounding decides otherwise.
    x = np.random.default_rng(1).uniform(0.6, 2, (1, 6, 8)) * np.where(np.arange(48).reshape(1, 6, 8) % 3, 1, -1)
    feeds = [{"x": x.astype(np.float32)}]
    plain = without_rewrites(tmp_path / "plain", build(FORMS[form]))
    with pytest.raises(CalibrationError):
        plain.calibrate(feeds)
    component = with_rewrites(tmp_path / "model", build(FORMS[form]))

    chip = on_chip(component.quantize("all", component.calibrate(feeds)), feeds, tmp_path / "chip")

    assert chip.cpu_ops == set()
    assert sqnr_db(on_cpu(component.ingest, feeds), chip.outputs, "y") > 55
