from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import TensorProto

from pipeline.contracts.scheme import Scheme
from pipeline.graph.accuracy.figures.accuracy import Accuracy
from pipeline.graph.accuracy.search.scheme_yaml import scheme_of
from pipeline.graph.accuracy.search.sensitivity import LOW, NARROW, REFERENCE, Choice, Feed, Trials, load_trials
from pipeline.graph.cpu import load_session, run
from pipeline.graph.files.model_file import load_graph, save_graph
from pipeline.graph.ir.index import GraphIndex
from pipeline.graph.quantization.calibration.ranges import Range, read_ranges
from pipeline.graph.quantization.qdq.rounding import EXACT, Encoded, Grid, RoundingModel, Site
from pipeline.graph.quantization.quantizer import quantize
from pipeline.ladder import EXACT_DB
from tests.support.graphs import attention, graph, save, sentence
from tests.support.stage_runs import Component

CALLS = [sentence(16, seed=seed) for seed in range(4)]
FEEDS = [Feed(call, ((1, 16, 32),)) for call in CALLS]
FEED = FEEDS[0]
INTEGERS = Grid(1.0, -100.0, 100.0)


@pytest.fixture(scope="module")
def rewritten(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Range]]:
    component = Component(tmp_path_factory.mktemp("attention"), attention(), {"16": {"sequence": 16}})
    return component.rewrite["16"].folder, read_ranges(component.calibrate(CALLS).folder / "ranges.json")


@pytest.fixture(scope="module", params=[False, True], ids=["", "wide products"])
def trials(request: pytest.FixtureRequest, rewritten: tuple[Path, dict[str, Range]]) -> Trials:
    folder, ranges = rewritten
    return load_trials(folder / "model.onnx", ranges, wide_products=request.param)


def sqnr_db(truth: NDArray[Any], tested: NDArray[Any]) -> float:
    accuracy = Accuracy()
    accuracy.add(truth, tested)
    assert accuracy.sqnr_db is not None
    return accuracy.sqnr_db


def computed(path: Path) -> NDArray[Any]:
    session = load_session(path)
    return np.concatenate([run(session, feed.inputs)["hidden"] for feed in FEEDS])


def everything(trials: Trials) -> frozenset[int]:
    return frozenset(range(len(trials.groups)))


def choices(trials: Trials) -> dict[str, Choice]:
    groups = everything(trials)
    return {
        "w8a16": Choice(),
        "w8a8": Choice(low=groups),
        "w4a16": Choice(narrow=frozenset(trials.weights)),
        "w4a8": Choice(low=groups, narrow=frozenset(trials.weights)),
        "every other group": Choice(low=frozenset(sorted(groups)[::2])),
        "the others": Choice(low=frozenset(sorted(groups)[1::2]), narrow=frozenset(trials.weights[::2])),
        "some in float": Choice(low=frozenset(sorted(groups)[::3]), exact=frozenset(sorted(groups)[1::3])),
    }


@pytest.mark.parametrize("name", ["w8a16", "w8a8", "w4a16", "w4a8", "every other group", "the others", "some in float"])
def test_a_choice_gives_what_its_qdq_model_gives(
    name: str, trials: Trials, rewritten: tuple[Path, dict[str, Range]], tmp_path: Path
) -> None:
    folder, ranges = rewritten
    choice = choices(trials)[name]
    truth = computed(folder / "model.onnx")

    rounded = np.concatenate([trials.run(choice, feed)[0] for feed in FEEDS])

    save_graph(
        quantize(load_graph(folder / "model.onnx"), folder, ranges, scheme_of(choice, trials)).model,
        tmp_path / "model.onnx",
    )
    real = computed(tmp_path / "model.onnx")
    assert sqnr_db(truth, rounded) == pytest.approx(sqnr_db(truth, real), abs=0.25)
    assert sqnr_db(real, rounded) > sqnr_db(truth, real) + 5, "it rounds the same values the same way"


def test_in_float_it_is_the_float_model(trials: Trials, rewritten: tuple[Path, dict[str, Range]]) -> None:
    truth = run(load_session(rewritten[0] / "model.onnx"), FEED.inputs)["hidden"]
    (exact,) = trials.run(Choice(exact=everything(trials)), FEED)
    assert sqnr_db(truth, exact) == EXACT_DB


def exact(*sites: Site) -> dict[Site, Grid]:
    return dict.fromkeys(sites, EXACT)


def test_a_value_is_rounded_where_it_is_made_or_for_one_reader_alone(tmp_path: Path) -> None:
    source = graph("g (float[2] x) => (float[2] y, float[2] z) { a = Neg (x) y = Neg (a) z = Abs (a) }")
    path = save(source, tmp_path)
    sites = exact(Site("x"), Site("a"), Site("a", "Neg_1"), Site("a", "Abs_2"), Site("y"), Site("z"))
    model = RoundingModel(load_graph(path), tmp_path, sites, frozenset())

    def outputs(*sites: Site) -> list[list[float]]:
        feeds = {"x": np.array([0.4, 2.6], np.float32)}
        return [array.astype(float).round(6).tolist() for array in model.run(feeds, dict.fromkeys(sites, INTEGERS), {})]

    assert outputs() == [[0.4, 2.6], [0.4, 2.6]]
    assert outputs(Site("x")) == [[0.0, 3.0], [0.0, 3.0]]
    assert outputs(Site("a")) == [[0.0, 3.0], [0.0, 3.0]]
    assert outputs(Site("a", "Abs_2")) == [[0.4, 2.6], [0.0, 3.0]]
    assert outputs(Site("y")) == [[0.0, 3.0], [0.4, 2.6]]


def test_an_input_is_rounded_for_one_reader_alone(tmp_path: Path) -> None:
    path = save(graph("g (float[2] x) => (float[2] y, float[2] z) { y = Neg (x) z = Abs (x) }"), tmp_path)
    model = RoundingModel(load_graph(path), tmp_path, exact(Site("x"), Site("x", "Abs_1")), frozenset())
    feeds = {"x": np.array([0.4, 2.6], np.float32)}

    def outputs(site: Site) -> list[list[float]]:
        return [array.astype(float).round(6).tolist() for array in model.run(feeds, {site: INTEGERS}, {})]

    assert outputs(Site("x")) == [[0.0, -3.0], [0.0, 3.0]]
    assert outputs(Site("x", "Abs_1")) == [[-0.4, -2.6], [0.0, 3.0]]


def test_what_is_beyond_a_grid_is_cut_off(tmp_path: Path) -> None:
    path = save(graph("g (float[3] x) => (float[3] y) { y = Neg (x) }"), tmp_path)
    model = RoundingModel(load_graph(path), tmp_path, {Site("y"): Grid(0.5, -1.0, 0.5)}, frozenset())
    (y,) = model.run({"x": np.array([-9, 0.3, 9], np.float32)}, {}, {})
    assert y.tolist() == [0.5, -0.5, -1.0]


def test_constants_can_be_replaced(tmp_path: Path) -> None:
    ones = {"w": np.ones((2, 1), np.float32)}
    path = save(graph("g (float[1,2] x) => (float[1,1] y) { y = MatMul (x, w) }", ones), tmp_path)
    model = RoundingModel(load_graph(path), tmp_path, exact(Site("y")), frozenset(["w"]))
    feeds = {"x": np.array([[1, 2]], np.float32)}
    assert model.run(feeds, {}, {})[0].tolist() == [[3.0]]
    assert model.run(feeds, {}, {"w": np.array([[5], [1]], np.float32)})[0].tolist() == [[7.0]]


def test_float16_is_rounded_too(tmp_path: Path) -> None:
    path = save(graph("g (float16[2] x) => (float16[2] y) { a = Neg (x) y = Neg (a) }"), tmp_path)
    model = RoundingModel(load_graph(path), tmp_path, {Site("a"): INTEGERS}, frozenset())
    (y,) = model.run({"x": np.array([0.4, 2.6], np.float16)}, {}, {})
    assert y.tolist() == [0.0, 3.0]
    assert y.dtype == np.float16


@pytest.mark.parametrize(
    ("scheme", "weight", "table"), [(REFERENCE, 8, 16), (LOW, 8, 8), (NARROW, 4, 8)], ids=["w8a16", "w8a8", "w4a16"]
)
def test_encodings_are_read_from_the_qdq_model(
    scheme: Scheme, weight: int, table: int, rewritten: tuple[Path, dict[str, Range]]
) -> None:
    folder, ranges = rewritten
    source = GraphIndex(load_graph(folder / "model.onnx"), folder)
    encoded = Encoded(quantize(load_graph(folder / "model.onnx"), folder, ranges, scheme).model, source)

    assert (encoded.bits("wq"), encoded.bits("words")) == (weight, table)
    assert encoded.bits("second") is None, "an integer has no encoding"
    assert encoded.stored_bytes()["wq"] == 32 * 32 * weight // 8
    grid = encoded.grid(Site("hidden"))
    steps = 255 if scheme is LOW else 65535
    assert grid.scale * steps == pytest.approx(grid.high - grid.low)
    wq = source.constant("wq")
    assert wq is not None
    assert sqnr_db(wq, encoded.constant("wq")) > (40 if weight == 8 else 15)
    kinds = {tensor.data_type for tensor in source.initializers.values()}
    assert kinds <= {TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL}
