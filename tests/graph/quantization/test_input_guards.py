"""Guards on inputs, and what becomes of a NaN in the application: on the emulator what onnxruntime gives."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto

from pipeline.errors import CalibrationError
from pipeline.graph.ir.index import GraphIndex
from pipeline.graph.quantization.calibration.float_ranges import Calibration
from pipeline.graph.quantization.calibration.input_guards import InputGuards, input_guards
from pipeline.graph.quantization.calibration.observe import Observer
from pipeline.graph.quantization.calibration.ranges import Range
from pipeline.graph.quantization.quantizer import quantize
from pipeline.graph.rewrites import apply_all
from tests.conformance.batches import run_batch
from tests.conformance.formats import SCHEMES, observed
from tests.support.graphs import graph, outputs, save

RANDOM = np.random.default_rng(0)
GUARDED = {
    "where it is NaN": "n = IsNaN (x) v = Where (n, zero, x)",
    "where it is not": "n = IsNaN (x) k = Not (n) v = Where (k, x, zero)",
    "equal to itself": "k = Equal (x, x) v = Where (k, x, zero)",
    "unequal to itself": "k = Equal (x, x) n = Not (k) v = Where (n, zero, x)",
    "reshaped before": "r = Reshape (x, dims) n = IsNaN (r) g = Where (n, zero, r) v = Reshape (g, back)",
    "reshaped with its mask": "r = Reshape (x, dims) n = IsNaN (x) m = Reshape (n, dims) g = Where (m, zero, r)"
    " v = Reshape (g, back)",
    "transposed": "t = Transpose <perm = [1,0]> (x) n = IsNaN (t) g = Where (n, zero, t)"
    " v = Transpose <perm = [1,0]> (g)",
    "joined": "c = Concat <axis = 0> (x, x) n = IsNaN (c) g = Where (n, zero, c) v = Slice (g, start, end, start)",
    "counted": "n = IsNaN (x) f = Cast <to = 1> (n) s = ReduceMax <keepdims = 1> (f) g = Where (n, zero, x)"
    " v = Add (g, s)",
    "nan_to_num": "n = IsNaN (x) a = Where (n, zero, x) i = IsInf (a) p = Greater (a, zero) ip = And (i, p)"
    " b = Where (ip, five, a) j = IsInf (b) q = Less (b, zero) jq = And (j, q) v = Where (jq, less, b)",
    "nan_to_num of the input": "n = IsNaN (x) a = Where (n, zero, x) i = IsInf <detect_negative = 0> (x)"
    " b = Where (i, five, a) j = IsInf <detect_positive = 0> (x) v = Where (j, less, b)",
    "not finite": "n = IsNaN (x) i = IsInf (x) o = Or (n, i) v = Where (o, zero, x)",
    "above a number": "k = Greater (x, far) v = Where (k, x, zero)",
    "or a number": "n = IsNaN (x) l = Less (x, far) o = Or (n, l) v = Where (o, zero, x)",
}
SENTINELS = {
    "above a number": GUARDED["above a number"],
    "or a number": GUARDED["or a number"],
    "below": "l = Less (x, far) v = Where (l, zero, x)",
    "equal": "l = Equal (x, missing) v = Where (l, zero, x)",
    "either side": "l = Greater (far, x) v = Where (l, zero, x)",
}
BEYOND_FLOAT16 = {
    "greater": ("n = Greater (x, huge) v = Where (n, zero, x)", 1e20),
    "equal": ("n = Equal (x, huge) v = Where (n, zero, x)", 1e19),
    "equal, below": ("n = Equal (x, tiny) v = Where (n, zero, x)", -3.4e38),
    "less": ("n = Less (x, huge) v = Where (n, x, zero)", 1e20),
    "or": ("l = LessOrEqual (x, tiny) n = IsNaN (x) o = Or (n, l) v = Where (o, zero, x)", -3.4e38),
    "moved": ("r = Reshape (x, dims) n = Greater (r, huge) g = Where (n, zero, r) v = Reshape (g, back)", 1e20),
}
UNGUARDED = {
    "computed before": "s = Mul (x, five) n = IsNaN (s) v = Where (n, zero, s)",
    "read elsewhere": "n = IsNaN (x) g = Where (n, zero, x) v = Add (g, x)",
    "another's test": "n = IsNaN (x) g = Where (n, zero, x) m = IsNaN (g) v = Where (m, zero, x)",
    "the wrong way round": "n = IsNaN (x) v = Where (n, x, zero)",
    "clipped before": "s = Clip (x, less, five) n = IsNaN (s) v = Where (n, zero, s)",
    "no guard": "v = Neg (x)",
}
CONSTANTS: dict[str, Any] = {
    "zero": np.float32(0), "five": np.float32(5), "less": np.float32(-5), "far": np.float32(-9000),
    "missing": np.float32(-9999), "huge": np.float32(1e19),
    "tiny": np.float32(-3.4e38), "dims": np.array([4, 4]), "back": np.array([1, 16]), "start": np.array([0]),
    "end": np.array([1]), "w": RANDOM.normal(size=(16, 8)).astype(np.float32),
}  # fmt: skip


def build(body: str) -> ModelProto:
    used = {name: array for name, array in CONSTANTS.items() if re.search(rf"\b{name}\b", body) or name == "w"}
    return graph(f"g (float[1,16] x) => (float[1,8] y) {{ {body} y = MatMul (v, w) }}", used)


def numbers(special: float | None = None) -> NDArray[np.float32]:
    x = RANDOM.normal(size=(1, 16)).astype(np.float32)
    if special is not None:
        x[0, [3, 9]] = special
    return x


def guards(body: str) -> InputGuards:
    model = build(body)
    apply_all(model, Path())
    return input_guards(GraphIndex(model, Path()))


@pytest.mark.parametrize("form", GUARDED)
def test_a_guard_is_found(form: str) -> None:
    assert guards(GUARDED[form]).takes_nan == {"x"}


@pytest.mark.parametrize("form", UNGUARDED)
def test_a_nan_that_is_computed_with_is_not_taken(form: str) -> None:
    assert guards(UNGUARDED[form]) == InputGuards()


def test_the_chip_gives_what_the_model_gives(tmp_path: Path) -> None:
    cases = [(body, np.nan) for body in GUARDED.values()] + [(body, -9999.0) for body in SENTINELS.values()]
    cases += BEYOND_FLOAT16.values()
    models, feeds, wanted = [], [], []
    for body, special in cases:
        feed, seen = {"x": numbers(special)}, {"x": numbers(0)}
        wanted.append(outputs(build(body), feed)["y"])
        model = build(body)
        apply_all(model, tmp_path)
        ranges = observed(model, seen)
        ranges |= {name: Range(-6, 6) for name in ("v", "g", "a", "b", "y", "s", "c", "t", "r") if name in ranges}
        ranges["y"] = Range(-24, 24)
        models.append(quantize(model, tmp_path, ranges, SCHEMES["u16"]).model)
        feeds.append(feed)
    made = run_batch(models, feeds, tmp_path / "work")
    for case, right, chip in zip(cases, wanted, made, strict=True):
        assert (chip.refused, chip.on_cpu) == ("", ()), case
        np.testing.assert_allclose(chip.outputs[0], right, atol=0.2, err_msg=str(case))


def test_samples_with_a_nan_are_taken_where_the_model_replaces_it(tmp_path: Path) -> None:
    for name, body, takes in (("guarded", GUARDED["where it is NaN"], True), ("not", "v = Neg (x)", False)):
        (tmp_path / name).mkdir()
        observer, calibration = Observer(save(build(body), tmp_path / name)), Calibration()
        sample = {"x": numbers(np.nan)}
        assert calibration.takes(observer, sample) == takes
        if takes:
            calibration.add(observer, sample, where="1.npz")
            assert calibration.ranges({"all": observer})["x"].finite
        else:
            with pytest.raises(CalibrationError, match="input 'x' holds NaN") as caught:
                calibration.add(observer, sample, where="1.npz")
            assert "Where(IsNaN(x), 0, x)" in str(caught.value)
