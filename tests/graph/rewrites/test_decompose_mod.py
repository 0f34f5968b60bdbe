from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.graph.rewrites import apply_all
from pipeline.graph.rewrites.integers import decompose_mod
from tests.conformance.batches import run_batch
from tests.support.graphs import graph, operators, outputs
from tests.support.on_htp import on_chip, on_cpu, sqnr_db, with_rewrites

X = np.resize(
    np.array([-70001, -4097, -2051, -7, -6, -1, 0, 1, 5, 100, 2049, 4097, 65505, 1000003, 2**24 + 1]), (1, 64)
)
FLOATS = "g (float[1,64] x) => (float[1,64] y) { y = Mod <fmod = 1> (x, n) }"
MOD = "g (int32[1,64] x) => (int32[1,64] y) { y = Mod (x, n) }"


@pytest.mark.parametrize("kind", [np.int32, np.int64])
@pytest.mark.parametrize("divisor", [2, 3, 1000, [2, 3, 5, 7], -3, -4, [2, -3, 5, -8]])
def test_a_remainder_is_what_a_quotient_leaves(divisor: object, kind: type[np.integer], tmp_path: Path) -> None:
    n = np.resize(np.asarray(divisor), (1, 64)) if isinstance(divisor, list) else np.asarray(divisor)
    model = graph(MOD.replace("int32", np.dtype(kind).name), {"n": n.astype(kind)})
    before = outputs(model, {"x": X.astype(kind)})["y"]

    assert apply_all(model, tmp_path)["decompose_mod"] == 1

    assert operators(model)["Mod"] == 0
    np.testing.assert_array_equal(outputs(model, {"x": X.astype(kind)})["y"], before)
    assert decompose_mod.apply(model, tmp_path) == 0


@pytest.mark.parametrize(
    ("text", "n"),
    [
        (MOD, np.zeros((), np.int32)),
        (FLOATS, np.zeros((), np.float32)),
        (MOD.replace("int32", "uint8"), np.uint8(3)),
    ],
    ids=["zero", "zero of floats", "bytes"],
)
def test_other_remainders_are_left_alone(text: str, n: NDArray[np.generic], tmp_path: Path) -> None:
    assert decompose_mod.apply(graph(text, {"n": n}), tmp_path) == 0


@pytest.mark.parametrize("kind", [np.int32, np.int64])
@pytest.mark.parametrize("divisor", [3, 4, -4, [2, -3, 5, -8], None])
def test_a_remainder_with_the_sign_of_x(divisor: object, kind: type[np.integer], tmp_path: Path) -> None:
    text = (COMPUTED if divisor is None else MOD).replace("int32", np.dtype(kind).name)
    n = np.resize(np.asarray(divisor), (1, 64)) if isinstance(divisor, list) else np.asarray(divisor)
    constants = {} if divisor is None else {"n": n.astype(kind)}
    model = graph(text.replace("Mod (", "Mod <fmod = 1> ("), constants)
    feeds = {"x": X.astype(kind)} | ({"n": DIVISORS.astype(kind)} if divisor is None else {})
    before = outputs(model, feeds)["y"]

    assert apply_all(model, tmp_path)["decompose_mod"] == 1

    assert operators(model)["Mod"] == 0
    np.testing.assert_array_equal(outputs(model, feeds)["y"], before)
    assert decompose_mod.apply(model, tmp_path) == 0


def real_values(step: float) -> NDArray[np.float32]:
    """Multiples of half a step, what lies right beside them, and what is anywhere, up to the largest float."""
    halves = np.arange(-4000, 4000, dtype=np.float32) * np.float32(step / 2)
    below, above = (np.nextafter(halves, np.float32(end)) for end in (-np.inf, np.inf))
    size = np.float32(2) ** np.linspace(-100, 127, 8000, dtype=np.float32)
    return np.concatenate([halves, below, above, size, -size]).astype(np.float32)[None]


@pytest.mark.parametrize("divisor", [1, 2, -2, 32768])
def test_a_remainder_by_a_power_of_two_is_the_same_bit_for_bit(divisor: float, tmp_path: Path) -> None:
    text = FLOATS.replace("64", str(real_values(1).size))
    model, feeds = graph(text, {"n": np.float32(divisor)}), {"x": real_values(divisor)}
    before = outputs(model, feeds)["y"]

    assert decompose_mod.apply(model, tmp_path) == 1

    assert operators(model) == {"Abs": 1, "Div": 1, "Floor": 1, "Mul": 2, "Sub": 1, "Sign": 1}
    np.testing.assert_array_equal(outputs(model, feeds)["y"], before)
    np.testing.assert_array_equal(before, np.fmod(feeds["x"], np.float32(divisor)))


@pytest.mark.parametrize("computed", [False, True])
@pytest.mark.parametrize("divisor", [0.1, 0.7, 0.25, 3, -3, 65536, [2] * 63 + [3]], ids=str)
def test_a_remainder_of_floats_is_that_of_a_number_beside_x(divisor: object, computed: bool, tmp_path: Path) -> None:
    n = np.resize(np.asarray(divisor, np.float32), (1, 64))
    values = real_values(float(np.abs(n).min()))
    x = np.resize(values[np.abs(values) < 2**20 * np.abs(n).min()], (1500, 64))
    text = FLOATS.replace("1,64", "1500,64")
    if computed:
        model = graph(text.replace("] x)", "] x, float[1,64] n)"))
    else:
        model = graph(text, {"n": np.asarray(divisor, np.float32)})
    feeds = {"x": x} | ({"n": n} if computed else {})
    before = outputs(model, feeds)["y"]

    assert decompose_mod.apply(model, tmp_path) == 1

    after, size = outputs(model, feeds)["y"], np.abs(n)
    off = np.abs(after.astype(np.float64) - before)
    assert (np.minimum(off, np.abs(size - off)) <= np.abs(x) * 2.0**-23).all()
    assert (np.abs(after) <= size).all()
    assert (after * x >= 0).all()
    assert decompose_mod.apply(model, tmp_path) == 0


@pytest.mark.parametrize("divisor", [np.inf, np.nan, [2] * 63 + [np.inf]], ids=str)
def test_other_remainders_of_floats_are_left_alone(divisor: object, tmp_path: Path) -> None:
    assert decompose_mod.apply(graph(FLOATS, {"n": np.asarray(divisor, np.float32)}), tmp_path) == 0


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp16", "uint16"])
@pytest.mark.parametrize("computed", [False, True])
def test_the_chip_takes_any_remainder_of_floats(computed: bool, precision: str, tmp_path: Path) -> None:
    numbers = np.random.default_rng(0)
    n = numbers.uniform(0.6, 0.8, (1, 64)).astype(np.float32)
    # A quarter of n off its multiples and more: beside one, any rounding of x makes 0 of n.
    x = (numbers.integers(-6, 6, (1, 64)) + numbers.uniform(0.25, 0.75, (1, 64))) * n
    feeds = {"x": x.astype(np.float32), "n": n}
    model = graph(FLOATS.replace("] x)", "] x, float[1,64] n)")) if computed else graph(FLOATS, {"n": n})
    if not computed:
        feeds.pop("n")
    component = with_rewrites(tmp_path / "model", model)
    made = component.rewrite["all"]
    if precision != "fp16":
        made = component.quantize("all", component.calibrate([feeds]), activations=precision)

    chip = on_chip(made, [feeds], tmp_path / "chip")

    assert chip.cpu_ops == set()
    assert sqnr_db(on_cpu(component.ingest, [feeds]), chip.outputs, "y") > 40


COMPUTED = "g (int32[1,64] x, int32[1,64] n) => (int32[1,64] y) { y = Mod (x, n) }"
DIVISORS = np.resize(np.array([7, -7, 2, -8, 1000, -3, 1, -1, 4097, -65536, 3]), (1, 64)).astype(np.int32)


def test_the_remainder_by_a_computed_divisor_has_its_sign(tmp_path: Path) -> None:
    model = graph(COMPUTED)
    feeds = {"x": X.astype(np.int32), "n": DIVISORS}
    before = outputs(model, feeds)["y"]

    assert apply_all(model, tmp_path)["decompose_mod"] == 1

    assert operators(model)["Mod"] == 0
    np.testing.assert_array_equal(outputs(model, feeds)["y"], before)


def test_the_chip_takes_remainders_in_float16(tmp_path: Path) -> None:
    x = X.astype(np.int32)
    raw, cured = [], []
    for divisor in (2, 3, 1000):
        raw.append(graph(MOD, {"n": np.int32(divisor)}))
        cured.append(graph(MOD, {"n": np.int32(divisor)}))
        decompose_mod.apply(cured[-1], tmp_path)
    found = run_batch(raw + cured, [{"x": x}] * 6, tmp_path / "work")
    for at, divisor in enumerate((2, 3, 1000)):
        assert (found[at].outputs[0] != x % divisor).any(), "QNN computes Mod rightly now: drop decompose_mod"
        np.testing.assert_array_equal(found[3 + at].outputs[0], x % divisor)


def test_the_chip_is_right_by_computed_divisors_and_by_negative_ones(tmp_path: Path) -> None:
    x = X.astype(np.int32)
    models = [graph(COMPUTED), graph(COMPUTED), graph(MOD, {"n": np.int32(-3)}), graph(MOD, {"n": np.int32(-4)})]
    for model in models[1:]:
        assert apply_all(model, tmp_path)["decompose_mod"] == 1
    given = [{"x": x, "n": DIVISORS}] * 2 + [{"x": x}] * 2
    raw, *cured = (each.outputs[0] for each in run_batch(models, given, tmp_path / "work"))
    assert (raw != np.mod(x, DIVISORS)).any(), "QNN computes Mod rightly now: drop decompose_mod"
    for made, divisors in zip(cured, (DIVISORS, np.array([-3]), np.array([-4])), strict=True):
        np.testing.assert_array_equal(made, np.mod(x, divisors))


def test_the_chip_takes_no_remainder_with_the_sign_of_x(tmp_path: Path) -> None:
    x, real = X.astype(np.int32), np.linspace(-16, 16, 64, endpoint=False, dtype=np.float32)[None]
    models = [graph(MOD.replace("Mod (", "Mod <fmod = 1> ("), {"n": np.int32(4)}) for _ in range(2)]
    models += [graph(FLOATS, {"n": np.float32(4)}) for _ in range(2)]
    for model in models[1::2]:
        assert apply_all(model, tmp_path)["decompose_mod"] == 1
    found = run_batch(models, [{"x": x}] * 2 + [{"x": real}] * 2, tmp_path / "work")
    for raw, cured, given in zip(found[::2], found[1::2], (x, real), strict=True):
        assert raw.on_cpu == ("Mod",) or raw.refused, "QNN takes fmod now: drop that part of decompose_mod"
        assert not cured.on_cpu
        np.testing.assert_allclose(cured.outputs[0], np.fmod(given, 4), atol=1e-3)
