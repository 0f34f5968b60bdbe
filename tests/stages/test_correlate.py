"""Which samples and rows are looked at, and which weights are left out."""

from __future__ import annotations

import resource
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.graph.cpu import Arrays
from pipeline.graph.quantization.weights import weight_inputs
from pipeline.graph.quantization.weights.correlations import Correlation, Correlations
from pipeline.graph.quantization.weights.weight_inputs import RowProducts, WeightInputs
from pipeline.model import StageInput
from pipeline.stages import correlate
from tests.support.fresh import fresh
from tests.support.graphs import attention, graph, sentence
from tests.support.stage_runs import Component, heard

CALLS = [sentence(length, seed=length) for length in (3, 5, 5, 4)]


def of(made: StageInput, weight: str) -> Correlation:
    (found,) = Correlations(made.folder).of(weight)
    return found


def drawn(*shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(1).normal(size=shape).astype(np.float32)


def test_rows_of_padding_are_left_out(tmp_path: Path) -> None:
    """A sample in a bucket that it does not fill says what it says in one that it fills."""
    padded = Component(tmp_path / "padded", attention(), {"8": {"sequence": 8}}).correlate(CALLS)
    exact = Component(
        tmp_path / "exact", attention(), {str(length): {"sequence": length} for length in (3, 4, 5)}
    ).correlate(CALLS)

    for weight in ("wq", "w2"):
        found, expected = of(padded, weight), of(exact, weight)
        assert found.rows == expected.rows == 17
        assert np.allclose(found.power, expected.power, rtol=1e-9)
        assert np.abs(found.matrix() - expected.matrix()).max() < 1e-3


def test_a_product_and_a_convolution_of_one_value_have_rows_of_their_own(tmp_path: Path) -> None:
    text = """net (float[1, 4, 6] x) => (float[1, 4, 6] y) {
        a = MatMul (x, w)
        b = Conv <kernel_shape = [1]> (x, v)
        y = Add (a, b)
    }"""
    model, x = graph(text, {"w": drawn(6, 6), "v": drawn(4, 4, 1)}), drawn(1, 4, 6)
    made = Component(tmp_path, model, {"all": {}}).correlate([{"x": x}])
    assert (of(made, "w").rows, of(made, "v").rows) == (4, 6)
    assert (len(of(made, "w").power), len(of(made, "v").power)) == (6, 4)


def test_where_padding_shows_everywhere_all_rows_count(tmp_path: Path) -> None:
    text = """net (float[1, 4, side] x) => (float[1, 4, side] y) {
        a = Conv <kernel_shape = [1]> (x, w)
        m = ReduceMean <axes = [2], keepdims = 1> (a)
        b = Add (a, m)
        y = Conv <kernel_shape = [1]> (b, v)
    }"""
    model = graph(text, {"w": drawn(4, 4, 1), "v": drawn(4, 4, 1)})
    made = Component(tmp_path, model, {"8": {"side": 8}}).correlate([{"x": drawn(1, 4, 6)}])

    assert of(made, "w").rows == of(made, "v").rows == 8


def test_a_weight_behind_what_float64_is_not_to_be_had_for_is_left_out(tmp_path: Path) -> None:
    text = """net (float[3, 1, 4] x) => (float[3, 1, 1, 6] y) {
        a = MatMul (x, before)
        h = LSTM <hidden_size = 5> (a, w, r)
        y = MatMul (h, behind)
    }"""
    model = graph(text, {"before": drawn(4, 4), "w": drawn(1, 20, 4), "r": drawn(1, 20, 5), "behind": drawn(5, 6)})
    component = Component(tmp_path, model, {"all": {}})
    calls: list[dict[str, NDArray[Any]]] = [{"x": drawn(3, 1, 4)} for _ in range(4)]
    made = component.correlate(calls)

    assert made.facts["weights"] == made.facts["doubtful"] == 1
    assert of(made, "before").rows == 12
    assert Correlations(made.folder).of("behind") == ()


def test_of_a_large_model_fewer_samples_are_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    component = Component(tmp_path, attention(), {"8": {"sequence": 8}})
    calls = [sentence(5, seed=seed) for seed in range(20)]
    assert component.correlate(calls).facts["samples"] == {"8": 20}
    monkeypatch.setattr(correlate, "_PRODUCTS", 1e5)
    assert component.correlate(calls).facts["samples"] == {"8": 8}


def test_what_does_not_fit_into_memory_is_looked_at_in_several_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    component = Component(tmp_path, attention(), {"8": {"sequence": 8}})
    whole = component.correlate(CALLS)
    for limit in ("_SUM_BYTES", "_VALUE_BYTES"):
        with monkeypatch.context() as patched:
            patched.setattr(correlate, limit, 1)
            assert component.correlate(CALLS).files == whole.files


def test_it_tells_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = heard(tmp_path, monkeypatch)
    component = Component(tmp_path / "net", attention(), {"8": {"sequence": 8}})
    component.correlate(CALLS)
    assert any(line.startswith("bucket 8, sample 1 of ") for line in said)
    assert any(line.startswith("adding up 1 of ") for line in said)
    said.clear()
    monkeypatch.setattr(correlate, "_VALUE_BYTES", 1)
    component.correlate(CALLS)
    assert any(line.startswith("inputs of weights 2 to 2 of ") and "sample 1 of" in line for line in said)


def test_padding_that_is_told_from_other_lengths_is_what_would_be_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    component = Component(tmp_path, attention(), {"12": {"sequence": 12}})
    calls = [sentence(length, seed=length) for length in (3, 5, 8, 4, 10, 7, 6)]
    runs: list[int] = []
    run = WeightInputs._run

    def counted(self: WeightInputs, *given: Any) -> Arrays:
        runs.append(1)
        return run(self, *given)

    monkeypatch.setattr(WeightInputs, "_run", counted)
    told = component.correlate(calls)
    with monkeypatch.context() as patched:
        patched.setattr("pipeline.graph.quantization.weights.valid_rows._ENOUGH", 99)
        few = len(runs)
        looked_for = component.correlate(calls)

    assert told.files == looked_for.files
    assert len(runs) - few == few + 4  # lengths that are not run once more


def test_rows_of_padding_are_not_multiplied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    component = Component(tmp_path, attention(), {"12": {"sequence": 12}})
    calls = [sentence(length, seed=length) for length in (3, 5, 8, 4, 8)]
    taken: list[int] = []
    feeds = RowProducts.feeds

    def seen(self: RowProducts, wanted: Mapping[str, NDArray[np.bool_]]) -> dict[str, NDArray[Any]]:
        found = feeds(self, wanted)
        (rows,) = {array.size for name, array in found.items() if name.endswith("/take")}
        taken.append(rows)
        return found

    with monkeypatch.context() as patched:
        patched.setattr(RowProducts, "feeds", seen)
        some = component.correlate(calls)
    # Each of three lengths is looked at, the first by each input alone, too; what was seen or told is known then.
    assert taken == [12, 12, 12, 12, 12, 12, 12, 4, 8]

    monkeypatch.setattr("pipeline.graph.quantization.weights.weight_inputs.choose_rows", lambda *given: RowProducts({}))
    assert component.correlate(calls).files == some.files


def test_weights_that_are_widened_in_every_run_give_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    component = Component(tmp_path, attention(), {"8": {"sequence": 8}})
    once = component.correlate(CALLS)
    monkeypatch.setattr("pipeline.graph.quantization.weights.weight_inputs._WIDENED_BYTES", 0)

    assert component.correlate(CALLS).files == once.files


def test_weights_are_in_memory_one_after_another_in_float64(tmp_path: Path) -> None:
    """Those that are widened in every run: not all of them before anything is multiplied, nor kept."""
    count, width = 16, 1024
    steps = "\n".join(f"x{number + 1} = MatMul (x{number}, w{number})" for number in range(count))
    drawn = np.random.default_rng(2)
    weights = {f"w{number}": drawn.normal(size=(width, width)).astype(np.float32) / 32 for number in range(count)}
    model = graph(f"net (float[4, {width}] x0) => (float[4, {width}] x{count}) {{ {steps} }}", weights)
    component = Component(tmp_path, model, {"all": {}})

    grown = fresh(grown_by_a_run, component.rewrite["all"].folder / "model.onnx", width)

    stored, one = 4 * width * width, 8 * width * width
    assert grown < count * stored + 6 * one, "the file's pages, and a few in float64; it was 16 of them"


def grown_by_a_run(path: Path, width: int) -> int:
    weight_inputs._WIDENED_BYTES = 0
    model = WeightInputs(path)
    names = [matrix.weights[0] for matrix in model.matrices()]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    model.watch(names)
    for _ in range(3):
        assert len([*model.rows({"x0": np.ones((4, width), np.float32)}, names, {}, ())]) == len(names)
    return 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
