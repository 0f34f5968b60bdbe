"""The real compiler and emulator compute a model otherwise than the CPU: the value is found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray

from pipeline.contracts import emulate
from pipeline.contracts.blame import OF_INTEGERS
from pipeline.contracts.measures import Figures
from pipeline.graph.accuracy.blame.blame import first_wrong
from pipeline.graph.files.model_file import MODEL, load_graph
from pipeline.graph.quantization import quantizer
from pipeline.model import Json, StageInput
from pipeline.qnn.running import probe as module
from pipeline.qnn.running.probe import probe
from tests.support.graphs import SPECTRUM, attention, graph, sentence
from tests.support.stage_runs import X_ELITE, Component, run_stage

ROWS, WIDTH = 16, 64

NORM = """g (float[1,16,64] x) => (float[1,16,64] y) {
    a = MatMul (x, w)
    r = Add (x, a)
    mean = ReduceMean <axes = [-1]> (r)
    c = Sub (r, mean)
    s = Pow (c, two)
    v = ReduceMean <axes = [-1]> (s)
    ve = Add (v, eps)
    sd = Sqrt (ve)
    n = Div (c, sd)
    g = Mul (n, gamma)
    b = Add (g, beta)
    h = MatMul (b, w2)
    y = Add (h, b)
}"""


PARAMS: dict[str, Json] = {
    "component": "net", "bucket": "all", "axes": {}, "buckets": {"all": {}}, "padding": {}, "part": "all",
    "target": X_ELITE.to_json(),
    "thresholds": {"compile": 30},
    "state_db": 50.0,
}  # fmt: skip


def random(*shape: int, seed: int) -> NDArray[np.float32]:
    return np.asarray(np.random.default_rng(seed).normal(size=shape), np.float32)


def frames(seed: int) -> dict[str, NDArray[np.float32]]:
    """Rows of very different loudness: next to that of the loudest, the variance of the quietest is no step."""
    return {"x": random(1, ROWS, WIDTH, seed=seed) * np.geomspace(1e-3, 16, ROWS, dtype=np.float32)[None, :, None]}


@pytest.fixture(scope="module")
def norm(tmp_path_factory: pytest.TempPathFactory) -> tuple[Component, StageInput]:
    """A norm over frames as exporters spell it out. On the CPU, its QDQ model is right."""
    weights: dict[str, ArrayLike] = {
        "w": random(WIDTH, WIDTH, seed=1) / 8, "w2": random(WIDTH, WIDTH, seed=2) / 8, "two": np.float32(2),
        "eps": np.float32(1e-5), "gamma": np.ones(WIDTH, np.float32), "beta": np.zeros(WIDTH, np.float32),
    }  # fmt: skip
    component = Component(tmp_path_factory.mktemp("norm"), graph(NORM, weights), {"all": {}})
    component.rewrite = component.shape
    ranges = component.calibrate([frames(seed) for seed in range(4)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quantizer, "raise_divisors", lambda *_: 0)  # it mends half of what is to be found here
        return component, component.quantize("all", ranges)


def test_the_node_that_htp_computes_otherwise_is_found(
    norm: tuple[Component, StageInput], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "AT_ONCE", 3)
    tmp_path.joinpath("work").mkdir()

    rows = probe(norm[1].folder / MODEL, [frames(0)], X_ELITE, tmp_path / "work", threshold_db=30, most_compiles=2).rows

    (first,) = first_wrong(rows, 30)
    assert (first.value, first.op) == ("n", "Div")
    assert first.node == "'Div_8' (Div)"
    assert "a norm or activation spelt out is better as one operator" in first.line()
    by_value = {row.value: row.sqnr_db or 0 for row in rows}
    assert set(by_value) == {"c", "sd", "h", "y", "n", "g", "b"}, "spread over the graph; then between sd and h"
    assert by_value["sd"] > 30, "the wrong steps of the root are small next to the root of the loudest row"
    assert by_value["y"] < 10
    order = [name for node in load_graph(norm[0].shape["all"].folder / MODEL).graph.node for name in node.output]
    assert [row.value for row in rows] == [name for name in order if name in by_value]


def test_no_more_compiles_than_allowed(
    norm: tuple[Component, StageInput], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "AT_ONCE", 2)
    tmp_path.joinpath("work").mkdir()

    rows = probe(norm[1].folder / MODEL, [frames(0)], X_ELITE, tmp_path / "work", threshold_db=30, most_compiles=1).rows

    assert len(list((tmp_path / "work").iterdir())) == 1
    assert len(rows) == 3, "two in the middle and the output"
    assert first_wrong(rows, 30)


def test_a_float_model_is_looked_into_as_well(tmp_path: Path) -> None:
    component = Component(tmp_path / "model", attention(), {"16": {"sequence": 16}})
    feeds = {name: np.pad(array, ((0, 0), (0, 5))) for name, array in sentence(11).items()}
    (tmp_path / "work").mkdir()

    rows = probe(component.rewrite["16"].folder / MODEL, [feeds], X_ELITE, tmp_path / "work", threshold_db=30).rows

    assert first_wrong(rows, 30) == [], "float16 is enough"
    assert len(rows) == module.AT_ONCE + 1
    assert all(row.encoding is None for row in rows)
    assert max(row.sqnr_db or 0 for row in rows) < 99, "and not exact"


def test_whole_numbers_that_go_wrong_are_found_and_no_floats_behind_them(tmp_path: Path) -> None:
    hashed = graph(
        """g (int64[1,8] ids) => (float[1,8,4] y) {
            far = Mul (ids, big)
            place = Mod (far, count)
            row = Gather (table, place)
            y = Relu (row)
        }""",
        {"big": np.int64(2654435761), "count": np.int64(97), "table": random(97, 4, seed=3)},
    )
    component = Component(tmp_path / "model", hashed, {"all": {}})
    feeds = {"ids": np.array([[1, -2, 30, 41, 5, -6, 70, 8]])}
    (tmp_path / "work").mkdir()

    rows = probe(component.rewrite["all"].folder / MODEL, [feeds], X_ELITE, tmp_path / "work", threshold_db=20).rows

    (first,) = first_wrong(rows, 20)
    assert (first.value, first.op) == ("far", "Mul")
    assert first.reason is not None
    assert first.reason.name == OF_INTEGERS
    assert "differ, the first is " in first.reason.text
    assert first.reason.text.endswith(" for 2654435761")


def test_what_floats_decide_is_not_told_of_integers_alone(tmp_path: Path) -> None:
    near = graph("g (float[1,4] x) => (int64[1,1] y) { y = ArgMax <axis = 1> (x) }")
    component = Component(tmp_path / "model", near, {"all": {}})
    feeds = {"x": np.array([[1.0, 0.5, 1.0001, 0.2]], np.float32)}
    (tmp_path / "work").mkdir()

    (row,) = probe(component.rewrite["all"].folder / MODEL, [feeds], X_ELITE, tmp_path / "work", threshold_db=20).rows

    assert (row.value, row.sqnr_db, row.reason) == ("y", 0.0, None), "in float16 the first is as large"


def test_a_compile_that_fails_ends_the_search(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = graph("g (float[1,4] x) => (float[1,4] y) { t = Mish (x)  y = Mul (t, t) }", opset=18)
    component = Component(tmp_path / "model", model, {"all": {}})
    component.rewrite = component.shape
    (tmp_path / "work").mkdir()

    rows = probe(
        component.shape["all"].folder / MODEL, [{"x": np.ones((1, 4), np.float32)}], X_ELITE, tmp_path / "work",
        threshold_db=30,
    ).rows  # fmt: skip

    assert rows == []
    assert "1 values could not be looked at on the emulator: the operator Mish crashes" in capsys.readouterr().out


def test_the_stage_runs_the_sample_that_was_worst(norm: tuple[Component, StageInput], tmp_path: Path) -> None:
    component, quantized = norm
    fine = Figures(40.0, 40.0, 40.0, worst_sample="samples:1", cosine=0.99, max_abs_error=0.1)
    worst = emulate.Facts(
        samples=2,
        of=2,
        rungs={"compile": {"x": fine, "y": replace(fine, worst_db=10.0, worst_sample="samples:2")}},
        outputs={},
        score=None,
    )
    inputs = {
        "ingest": component.ingest,
        "samples": component.samples([frames(7), frames(8)]),
        "model": quantized,
        "shape": component.shape["all"],
        "emulate": StageInput(tmp_path, {}, worst.to_json()),
    }

    facts: Any = run_stage("probe", tmp_path / "out" / "probe", PARAMS, inputs).facts

    assert facts["sample"] == "samples:2"
    assert facts["values"] == 13
    assert [row["value"] for row in facts["first_wrong"]["compile"]] == ["n"]
    assert list((tmp_path / "out").iterdir()) == [tmp_path / "out" / "probe"], "nothing is left behind"


def test_the_stage_runs_the_loudest_sample_where_no_worst_is_known(
    norm: tuple[Component, StageInput], tmp_path: Path
) -> None:
    component, quantized = norm
    silence, quiet = ({"x": frames(7)["x"] * np.float32(factor)} for factor in (0, 0.1))
    samples = component.samples([silence, frames(8), quiet])
    inputs = {"ingest": component.ingest, "samples": samples, "model": quantized, "shape": component.shape["all"]}

    facts: Any = run_stage("probe", tmp_path / "probe", PARAMS, inputs).facts

    assert facts["sample"] == "samples:2"


def spectrum(tmp_path: Path, text: str) -> dict[str, StageInput]:
    """What hears how loud its input is, in float, with one sample of noise: the inputs of `probe`."""
    numbers = np.random.default_rng(3)
    weight = numbers.standard_normal((16, 16)).astype(np.float32)
    component = Component(tmp_path, graph(text, {"w": weight, "floor": np.float32(1e-16)}), {"all": {}})
    samples = component.samples([{"x": numbers.standard_normal((1, 64, 16)).astype(np.float32)}])
    return {
        "ingest": component.ingest, "samples": samples, "shape": component.shape["all"],
        "model": component.rewrite["all"],
    }  # fmt: skip


@pytest.mark.parametrize(("text", "told"), [
    ("g (float[1,8] x, float[1,4] k) => (float[1,8] y, float[1,1] z)"
     " { d = Neg (x)  y = Add (d, ten)  z = ReduceMax <axes = [1]> (k) }", False),
    ("g (float[1,8] x, float[1,4] k) => (float[1,8] y, float[1,1] z)"
     " { z = ReduceMax <axes = [1]> (k)  d = Sub (x, ten)  y = Add (d, z) }", True),
])  # fmt: skip
def test_rounded_inputs_are_told_of_where_they_leave_less_than_is_asked_for(
    tmp_path: Path, text: str, told: bool
) -> None:
    """A tenth of a tenth in 11 bits leaves 40 dB, which is enough but for a state."""
    component = Component(tmp_path, graph(text, {"ten": np.float32(10)}), {"all": {}})
    calls: list[dict[str, NDArray[Any]]] = [{"x": 10 + random(1, 8, seed=1) / 3, "k": np.zeros((1, 4), np.float32)}]
    inputs = {
        "ingest": component.ingest, "samples": component.samples(calls), "shape": component.shape["all"],
        "model": component.rewrite["all"],
    }  # fmt: skip

    facts: Any = run_stage("probe", tmp_path / "probe", PARAMS, inputs).facts

    assert not facts["first_wrong"]["compile"]
    assert ("inputs_db" in facts) == told
    assert facts.get("inputs_db", 40) == pytest.approx(40, abs=8)
    assert "edge_db" not in facts, "16 bit integers leave more"


def test_what_no_edge_leaves_of_a_state_is_told(tmp_path: Path) -> None:
    text = "g (float[1,8] x, float[1,4] k) => (float[1,8] y, float[1,1] z) {"
    text += " z = ReduceMax <axes = [1]> (k)  d = Sub (x, ten)  y = Add (d, z) }"
    component = Component(tmp_path, graph(text, {"ten": np.float32(10000)}), {"all": {}})
    calls: list[dict[str, NDArray[Any]]] = [{"x": 10000 + random(1, 8, seed=1), "k": np.zeros((1, 4), np.float32)}]
    inputs = {
        "ingest": component.ingest, "samples": component.samples(calls), "shape": component.shape["all"],
        "model": component.rewrite["all"],
    }  # fmt: skip

    facts: Any = run_stage("probe", tmp_path / "probe", PARAMS, inputs).facts

    assert facts["edge_db"] == pytest.approx(27, abs=4)


def test_outputs_near_0_in_silence_choose_no_quiet_sample(tmp_path: Path) -> None:
    text = SPECTRUM.replace("y = Log (floored)", "l = Log (floored)  y = Sigmoid (l)")
    inputs = spectrum(tmp_path, text)

    facts: Any = run_stage("probe", tmp_path / "probe", {**PARAMS, "quiet": True}, inputs).facts

    assert facts["sample"] == "samples:1"


def test_each_sample_is_chosen_by_its_own_outputs(tmp_path: Path) -> None:
    """Of a fine sample and one whose first output is too large for float16, which may not count."""
    text = "g (float[1,8] x) => (float[1,8] p, float[1,8] y) { s = Neg (x)  p = Mul (s, s)  y = Add (x, k) }"
    component = Component(tmp_path / "model", graph(text, {"k": np.float32(1)}), {"all": {}})
    samples = [{"x": np.full((1, 8), value, np.float32)} for value in (1, 300)]
    for number, (judged, place) in enumerate([((), 1), ([(), ("y",)], 0)]):
        work = tmp_path / str(number)
        work.mkdir()
        model = component.rewrite["all"].folder / MODEL
        found = probe(model, samples, X_ELITE, work, threshold_db=30, most_compiles=1, judged=judged)
        assert found.place == place


@pytest.mark.parametrize(("quiet", "looked_at"), [(True, "samples:1, fading"), (False, "samples:1")])
def test_the_stage_looks_at_the_sample_that_fades_where_the_loud_one_is_right(
    tmp_path: Path, quiet: bool, looked_at: str
) -> None:
    """In float16 the chip makes 0 of the floor: silence tells, and noise does not."""
    inputs = spectrum(tmp_path, SPECTRUM)

    facts: Any = run_stage("probe", tmp_path / "probe", {**PARAMS, "quiet": quiet}, inputs).facts

    assert facts["sample"] == looked_at
    assert bool(facts["first_wrong"]["compile"]) == quiet
