"""Weights as integers: blocks, clipping, rounding that looks at the data, and the same bytes whatever adds up."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.graph.quantization.weights.correlations import (
    Correlation,
    Correlations,
    CorrelationWriter,
    Sums,
    split,
    sum_bytes,
    upper_factor,
)
from pipeline.graph.quantization.weights.weight_layout import Layout
from pipeline.graph.quantization.weights.weight_rounding import Recipe, encode_weight

COLUMNS = Layout(0, 1)
BLOCKS = Layout(0, 1, 32)


def rows(count: int, inputs: int, seed: int = 0) -> NDArray[np.float32]:
    """Inputs of which neighbours go together."""
    free = np.random.default_rng(seed).normal(size=(count, inputs))
    free[:, 1:] += 0.9 * free[:, :-1]
    return (free * np.linspace(0.2, 3, inputs)).astype(np.float32)


def known(inputs: NDArray[np.float32]) -> Correlation:
    sums = Sums(inputs.shape[1])
    for start in range(0, len(inputs), 500):
        sums.add(inputs[start : start + 500])
    return sums.correlation()


def weight(inputs: int = 128, channels: int = 40) -> NDArray[np.float32]:
    return np.random.default_rng(7).standard_t(5, size=(inputs, channels)).astype(np.float32)


def loss(inputs: NDArray[np.float32], exact: NDArray[np.float32], real: NDArray[np.float64]) -> float:
    return float(((inputs.astype(np.float64) @ (exact - real)) ** 2).sum())


@pytest.mark.parametrize("rounding", ["nearest", "gptq"])
def test_blocks_of_q4_0_stay_as_they_are(rounding: Literal["nearest", "gptq"]) -> None:
    rng = np.random.default_rng(2)
    stored = rng.integers(-7, 8, (4, 32, 40))
    stored[:, 9] = -8  # what Q4_0 makes of the number of the largest magnitude
    scale = (rng.uniform(0.001, 0.1, (4, 1, 40)) * rng.choice([-1, 1], (4, 1, 40))).astype(np.float16)
    exact = (stored * scale.astype(np.float32)).reshape(128, 40).astype(np.float32)

    made = encode_weight(exact, BLOCKS, Recipe("int4", "mse", rounding), [known(rows(500, 128))])

    assert np.array_equal(np.asarray(made.values, np.int8), stored.reshape(128, 40))
    assert np.array_equal(made.real().astype(np.float32), exact)


@pytest.mark.parametrize("largest", [6, 7, 8])
def test_blocks_of_few_steps_stay_as_they_are(largest: int) -> None:
    rng = np.random.default_rng(largest)
    stored = rng.integers(-largest + 1, largest, (4, 32, 40))
    stored[:, 9] = -largest  # what Q4_K makes need not reach its ends
    scale = rng.uniform(0.001, 0.1, (4, 1, 40)).astype(np.float32)
    exact = (stored * scale).reshape(128, 40).astype(np.float32)

    made = encode_weight(exact, BLOCKS, Recipe("int4"))

    np.testing.assert_allclose(made.real(), exact, rtol=1e-5)


def test_what_looks_at_the_data_loses_less() -> None:
    given, exact = rows(2000, 128), weight()
    correlation = known(given)
    lost = {
        (clip, rounding): loss(
            rows(500, 128, seed=1),
            exact,
            encode_weight(exact, BLOCKS, Recipe("int4", clip, rounding), [correlation]).real(),
        )
        for clip in ("none", "mse", "hessian")
        for rounding in ("nearest", "gptq")
    }

    assert lost["mse", "nearest"] < 0.7 * lost["none", "nearest"]
    assert lost["hessian", "nearest"] < lost["mse", "nearest"]
    for clip in ("none", "mse", "hessian"):
        assert lost[clip, "gptq"] < 0.75 * lost[clip, "nearest"]
    for clip in ("mse", "hessian"):
        assert lost[clip, "gptq"] < 0.5 * lost["none", "nearest"]


def test_blocks_lose_less_than_channels() -> None:
    exact = weight()

    whole, blocks = (encode_weight(exact, layout, Recipe("int8")) for layout in (COLUMNS, BLOCKS))

    assert whole.scale.shape == (40,)
    assert whole.axis == 1
    assert blocks.scale.shape == (4, 40)
    assert (blocks.axis, blocks.block) == (0, 32)
    errors = [float(((made.real() - exact) ** 2).sum()) for made in (whole, blocks)]
    assert errors[1] < 0.5 * errors[0]


@pytest.mark.parametrize("kind", ["uint8", "int8", "int4"])
@pytest.mark.parametrize("block", [None, 16])
def test_layouts_of_one_matrix_give_the_same_integers(kind: str, block: int | None) -> None:
    exact, correlation = weight(64, 8), known(rows(600, 64))
    recipe = Recipe(kind, "hessian", "gptq")

    columns = encode_weight(exact, Layout(0, 1, block), recipe, [correlation])
    turned = encode_weight(exact.T, Layout(1, 0, block), recipe, [correlation])
    kernel = encode_weight(exact.T.reshape(8, 64, 1, 1), Layout(1, 0, block), recipe, [correlation])

    assert (turned.real() == columns.real().T).all()
    assert (kernel.real().reshape(8, 64) == columns.real().T).all()
    assert columns.zero_point.flat[0] == (128 if kind == "uint8" else 0)
    assert columns.array().dtype.name == kind


def test_inputs_that_were_always_zero_and_rows_that_say_nothing_do_no_harm() -> None:
    given = rows(300, 64)
    given[:, 10:20] = 0
    exact = weight(64, 8)
    recipe = Recipe("int4", "hessian", "gptq")

    some = encode_weight(exact, COLUMNS, recipe, [known(given)])
    nothing = encode_weight(exact, COLUMNS, recipe, [known(np.zeros((5, 64), np.float32))])

    assert np.isfinite(some.real()).all()
    assert np.abs(some.real()[10:20] - exact[10:20]).max() < 2 * some.scale.max() + 0.5 * np.abs(exact).max()
    assert (
        nothing.real() == encode_weight(exact, COLUMNS, replace(recipe, rounding="nearest", clip="mse")).real()
    ).all()


@pytest.mark.parametrize("kind", ["int4", "int8"])
def test_a_block_may_lie_in_two_parts(kind: str) -> None:
    given, exact = rows(1000, 240), weight(240)
    parts = [known(given[:, :128]), known(given[:, 128:])]
    made = encode_weight(exact, Layout(0, 1, 48), Recipe(kind, "hessian", "gptq"), parts).real()
    nearest = encode_weight(exact, Layout(0, 1, 48), Recipe(kind)).real()
    assert np.abs(made - exact).max() < 3 * np.abs(nearest - exact).max()
    assert loss(given, exact, made) < loss(given, exact, nearest)


def test_many_inputs_are_looked_at_in_parts() -> None:
    given, exact = rows(2000, 128), weight()
    halves = [known(given[:, :64]), known(given[:, 64:])]
    assert [(part.start, part.stop) for part in split(9000)] == [(0, 3008), (3008, 6016), (6016, 9000)]

    # Numbers of 8 bits hang on those before them alone, so the first part has no less than all of it.
    parts, whole = (
        encode_weight(exact, BLOCKS, Recipe("int8", "hessian", "gptq"), known_of).real()
        for known_of in (halves, [known(given)])
    )
    assert (parts[:64] == whole[:64]).mean() > 0.8
    parts = encode_weight(exact, BLOCKS, Recipe("int4", "hessian", "gptq"), halves).real()
    assert loss(given, exact, parts) < 0.8 * loss(given, exact, encode_weight(exact, BLOCKS, Recipe("int4")).real())


def test_what_is_settled_loses_no_more_on_what_it_was_settled_by() -> None:
    given, exact = rows(2000, 128), weight()
    correlation = known(given)
    counts = correlation.matrix() * 32767
    np.fill_diagonal(counts, np.rint(32767 * (1 + correlation.damping)))
    settling, length = correlation.settling, np.sqrt(correlation.power)

    def damped_loss() -> float:
        off = (exact - whole * np.repeat(scale, 32, axis=0)) * length[:, None]
        return float((off * (counts @ off)).sum())

    scale = np.full((4, 40), np.abs(exact).max() / 9)
    whole = np.clip(np.rint(exact / np.repeat(scale, 32, axis=0)), -8, 7)
    first, found = scale.copy(), [damped_loss()]
    for refit in (False, True, True):
        settling.settle(exact, whole, scale, 0.9 * first, 7, passes=1, refit=refit)
        found.append(damped_loss())
        if not refit:
            assert (scale == first).all()

    assert found == sorted(found, reverse=True)
    assert found[1] < 0.8 * found[0]
    assert found[2] < 0.9 * found[1]
    assert (np.abs(whole - (np.clip(whole, -8, 7))) == 0).all()
    assert (scale >= np.float32(0.9) * first - 1e-7).all()


def test_a_channel_with_a_scale_far_too_large_is_settled_all_the_same() -> None:
    exact = weight()
    least = np.full(40, 100.0)

    made = encode_weight(exact, BLOCKS, Recipe("int4", "hessian", "gptq"), [known(rows(2000, 128))], least)

    assert (np.abs(made.scale) >= 100).all()
    assert np.isfinite(made.real()).all()
    assert loss(rows(99, 128), exact, made.real()) < 1.5 * loss(rows(99, 128), exact, np.zeros((128, 40)))


def test_a_weight_of_zeros_has_scales() -> None:
    made = encode_weight(
        np.zeros((64, 4), np.float32), BLOCKS, Recipe("int4", "hessian", "gptq"), [known(rows(99, 64))]
    )

    assert (made.scale > 0).all()
    assert (made.real() == 0).all()


def test_no_scale_falls_short_of_what_is_allowed() -> None:
    least = np.linspace(0, 1, 40)

    made = encode_weight(weight(), BLOCKS, Recipe("int8"), smallest=least)

    assert (made.scale >= least).all()


def test_correlations_that_are_no_sums_of_squares_are_damped_until_they_are() -> None:
    size = 40
    broken = np.full((size, size), -0.9)
    np.fill_diagonal(broken, 1.0)

    factor = upper_factor(broken, 0.01)

    assert np.isfinite(factor).all()
    assert (np.diagonal(factor) > 0).all()
    assert (np.tril(factor, -1) == 0).all()


def test_the_factor_is_that_of_the_damped_correlations() -> None:
    correlations = known(rows(900, 200)).matrix()

    factor = upper_factor(correlations, 0.01)

    assert np.abs(factor @ factor.T - (correlations + 0.01 * np.eye(200)) / 1.01).max() < 1e-6


def test_samples_are_summed_as_they_are(tmp_path: Path) -> None:
    given = rows(900, 60)
    exact = given.T.astype(np.float64) @ given
    writer = CorrelationWriter(tmp_path)
    writer.add(["other"], [known(rows(50, 30))])
    writer.add(["a", "b"], [known(given), known(rows(9, 8))])
    writer.finish()

    read, second = Correlations(tmp_path).of("b")

    assert len(second.power) == 8
    length = np.sqrt(np.diagonal(exact))
    assert np.abs(read.matrix() - exact / length / length[:, None]).max() < 0.004
    assert np.abs(read.power / (np.diagonal(exact) / 900) - 1).max() < 0.01
    assert Correlations(tmp_path).of("c") == ()


def test_what_few_rows_show_by_chance_is_damped_away() -> None:
    chance = np.random.default_rng(0).normal(size=(20, 200)).astype(np.float32)

    assert known(chance).damping > 10
    assert known(rows(5000, 200)).damping < 0.1


def test_of_many_rows_some_are_looked_at() -> None:
    given = np.tile(rows(100, 20), (100, 1))

    assert np.abs(known_at_once(given).matrix() - known(rows(100, 20)).matrix()).max() < 0.1


def known_at_once(given: NDArray[np.float32]) -> Correlation:
    sums = Sums(given.shape[1])
    sums.add(given)
    return sums.correlation()


_DIGEST = """
import sys
from tests.graph.quantization.test_weight_rounding import digest
sys.stdout.write(digest())
"""


def digest() -> str:
    """Of what comes of a weight with 300 inputs, and of what numpy's own factor of the same would be."""
    correlation = known(rows(1500, 300))
    made = encode_weight(weight(300, 64), Layout(0, 1), Recipe("int4", "hessian", "gptq"), [correlation])
    eight = encode_weight(weight(300, 64), Layout(0, 1), Recipe("int8", "hessian", "gptq"), [correlation])
    arrays = [part for each in (made, eight) for part in (each.array().astype(np.int8), each.scale)]
    parts = (correlation.pairs, correlation.factor, *arrays)
    ours = hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()
    return (
        f"{ours} {hashlib.sha256(np.linalg.cholesky(correlation.matrix() + 0.01 * np.eye(300)).tobytes()).hexdigest()}"
    )


def test_every_processor_gives_the_same_bytes() -> None:
    """OpenBLAS is told to take the kernels of older processors, which add up in other orders."""
    found = []
    for kernels in ("Prescott", "Nehalem", "Sandybridge", "Haswell"):
        environ = {**os.environ, "OPENBLAS_CORETYPE": kernels, "OPENBLAS_NUM_THREADS": "1"}
        command = [sys.executable, "-c", _DIGEST]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True, timeout=60)
        found.append(done.stdout.split())

    ours, others = ({digests[place] for digests in found} for place in (0, 1))
    assert len(ours) == 1
    assert len(others) > 1, "this OpenBLAS knows one kind of kernels, so nothing was shown"


def test_sums_in_panels_are_those_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.random.default_rng(7).normal(size=(700, 90))
    rows[:, 3] = 0
    found = []
    for panel in (32, 90, 512):
        monkeypatch.setattr("pipeline.graph.quantization.weights.correlations._PANEL", panel)
        sums = Sums(90)
        sums.add(rows)
        found.append(sums.correlation())
    for each in found[1:]:
        assert np.array_equal(each.power, found[0].power)
        assert np.array_equal(each.pairs, found[0].pairs)
    length = np.sqrt((rows**2).sum(axis=0)) + 1e-9
    exact = (rows.T @ rows / length / length[:, None])[np.tril_indices(90, -1)]
    assert np.abs(found[0].pairs / 32767 - exact).max() < 0.02
    assert sum_bytes(3072) < 4 * 3072 * (0.6 * 3072 + 2 * 512)
