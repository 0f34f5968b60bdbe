from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipeline.contracts.ingest import Facts, GivenConstant
from pipeline.errors import ModelError
from pipeline.graph.files.model_file import MODEL, load_graph, signature
from tests.support.graphs import operators
from tests.support.graphs import outputs as run
from tests.support.sources import ingested, model, shaped

CACHE = """g (float[1,t,8] x, float[{batch},2,0,4] past) => (float[1,t,8] y, float[{batch},2,n,4] now) {{
    split = Reshape (x, heads) k = Transpose <perm = [0, 2, 1, 3]> (split)
    now = Concat <axis = 2> (past, k)
    {between}
    back = Transpose <perm = [0, 2, 1, 3]> (now) y = Reshape (back, joined) }}"""
CONSTANTS = {"heads": np.array([0, 0, 2, 4]), "joined": np.array([0, 0, 8]), "third": np.array(2), "two": np.array([2])}
X = np.random.default_rng(0).normal(size=(1, 3, 8)).astype(np.float32)


@pytest.mark.parametrize(
    ("batch", "between"), [("1", ""), ("b", ""), ("1", "s = Shape (past) length = Gather (s, third)")]
)
def test_an_empty_cache_is_left_out(batch: str, between: str, tmp_path: Path) -> None:
    source = model(CACHE.format(batch=batch, between=between), CONSTANTS)
    taken = ingested(tmp_path / "in", source)
    facts = Facts.from_json(taken.facts)
    assert facts.constants == {"past": GivenConstant("float32", (1, 2, 0, 4), 0)}
    assert [value.name for value in facts.inputs] == ["x"]
    assert "past[2]" not in facts.axes

    axes = {"t": 3, "b": 1}
    static = shaped(tmp_path, taken, **axes)
    made = load_graph(static.folder / MODEL)
    assert "Concat" not in operators(made)
    assert [value.name for value in signature(made).inputs] == ["x"]
    expected = run(source, {"x": X, "past": np.zeros((1, 2, 0, 4), np.float32)})
    found = run(static.folder / MODEL, {"x": X})
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values)


def test_what_is_computed_without_elements_is_left_out_as_well(tmp_path: Path) -> None:
    text = """g (float[2,4] x) => (float[2,8] y) {
        none = Slice (x, from, to, axis) more = Relu (none) y = Concat <axis = 1> (x, more, x) }"""
    source = model(text, {"from": np.array([2]), "to": np.array([2]), "axis": np.array([1])})
    static = shaped(tmp_path, ingested(tmp_path / "in", source))
    x = {"x": np.ones((2, 4), np.float32)}
    assert operators(load_graph(static.folder / MODEL)) == {"Concat": 1}
    np.testing.assert_array_equal(run(static.folder / MODEL, x)["y"], run(source, x)["y"])


@pytest.mark.parametrize("sizes", [[4, 0], [0, 4], [1, 0, 3]])
def test_parts_without_elements_are_left_out(sizes: list[int], tmp_path: Path) -> None:
    names = [f"p{number}" for number in range(len(sizes))]
    text = f"g (float[2,4] x) => (float[2,4] y) {{ {', '.join(names)} = Split <axis = 1> (x, sizes)"
    text += f" r = Relu (p{sizes.index(max(sizes))}) y = Concat <axis = 1> ({', '.join([*names, 'r'])}) }}"
    source = model(text.replace("(float[2,4] y)", "(float[2,n] y)"), {"sizes": np.array(sizes)})
    static = shaped(tmp_path, ingested(tmp_path / "in", source))
    x = {"x": np.arange(8, dtype=np.float32).reshape(2, 4) - 3}
    np.testing.assert_array_equal(run(static.folder / MODEL, x)["y"], run(source, x)["y"])
    kinds = operators(load_graph(static.folder / MODEL))
    assert kinds["Split"] == (1 if len(sizes) == 3 else 0)


def test_parts_that_are_all_empty_are_left_out(tmp_path: Path) -> None:
    text = """g (float[2,4] x) => (float[2,2] y) { half = MatMul (x, w)
        none = Slice (x, from, to, first) p, q = Split <axis = 1> (none) y = Concat <axis = 0> (p, half, q) }"""
    constants = {"from": np.array([2]), "to": np.array([2]), "first": np.array([0]), "w": np.ones((4, 2), np.float32)}
    source = model(text, constants)
    static = shaped(tmp_path, ingested(tmp_path / "in", source))
    x = {"x": np.ones((2, 4), np.float32)}
    assert "Split" not in operators(load_graph(static.folder / MODEL))
    np.testing.assert_array_equal(run(static.folder / MODEL, x)["y"], run(source, x)["y"])


def test_an_empty_part_beside_one_without_a_name_is_refused(tmp_path: Path) -> None:
    text = "g (float[2,4] x) => (float[2,3] y) { p, skipped, y = Split <axis = 1> (x, sizes) }"
    source = model(text, {"sizes": np.array([0, 1, 3])})
    source.graph.node[0].output[1] = ""
    with pytest.raises(ModelError, match="has an empty tensor"):
        shaped(tmp_path, ingested(tmp_path / "in", source))


def test_empties_put_together_are_as_long_as_all_of_them(tmp_path: Path) -> None:
    text = """g (float[2,4] x) => (float[2,4] y) {
        p = Slice (x, from, to, second) q = Concat <axis = 0> (p, p, p) s = Shape (q) f = Cast <to = 1> (s)
        long = ReduceSum (f) y = Mul (x, long) }"""
    source = model(text, {"from": np.array([4]), "to": np.array([4]), "second": np.array([1])})
    static = shaped(tmp_path, ingested(tmp_path / "in", source))
    x = {"x": np.ones((2, 4), np.float32)}
    expected = run(source, x)["y"]
    assert expected[0, 0] == 6
    np.testing.assert_array_equal(run(static.folder / MODEL, x)["y"], expected)


@pytest.mark.parametrize("others", ["", ", float[0,2] more"])
def test_inputs_that_leave_nothing_to_compute_are_named(others: str, tmp_path: Path) -> None:
    text = f"g (float[0,3,8,8] x{others}) => (float[0,3,8,8] y) {{ y = Relu (x) }}"
    with pytest.raises(ModelError) as caught:
        shaped(tmp_path, ingested(tmp_path / "in", model(text)))
    assert caught.value.what == "no input of the model has elements"
    assert caught.value.where == "'x' float32 [0, 3, 8, 8]" + (", 'more' float32 [0, 2]" if others else "")
    assert caught.value.remedy == "write that dim in the model as a name, which the config gives lengths, or as 1"


def test_the_only_output_is_not_to_be_cut(tmp_path: Path) -> None:
    text = "g (float[0,4] x, float[4,4] w) => (float[0,4] y) { y = MatMul (x, w) }"
    with pytest.raises(ModelError) as caught:
        shaped(tmp_path, ingested(tmp_path / "in", model(text)))
    assert caught.value.remedy == "export the model with lengths of 1 and more"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "g (float[b,0] x, float[b,4] z) => (float[b,4] y) { s = Shape (x) f = Cast <to = 1> (s) y = Add (z, f) }",
            "node 's' (Shape) has an empty tensor",
        ),
        (
            "g (float[2,4] z, float[0,4] d) => (float[2,4] y, float[0,4] e) { y = Relu (z) e = Relu (d) }",
            "output 'e' has no elements: float32 [0, 4]",
        ),
        (
            """g (float[2,4] z, int64[0,1] at, float[0,4] rows) => (float[2,4] y) {
                r = Relu (z) y = ScatterND (r, at, rows) }""",
            "node 'y' (ScatterND) has an empty tensor",
        ),
    ],
    ids=["a shape", "an output", "another reader"],
)
def test_what_can_not_be_left_out_is_named(text: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError) as caught:
        shaped(tmp_path, ingested(tmp_path / "in", model(text)), b=2)
    assert caught.value.what == told
    assert "QNN has no empty tensors" in caught.value.why


def test_empty_lists_that_say_how_are_no_data(tmp_path: Path) -> None:
    text = """g (float[1,2,4,4] x) => (float[1,2,8,8] y) {
        y = Resize <mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor">
            (x, none, twice) }"""
    source = model(text, {"none": np.zeros(0, np.float32), "twice": np.array([1, 1, 2, 2], np.float32)})
    static = shaped(tmp_path, ingested(tmp_path / "in", source))
    assert operators(load_graph(static.folder / MODEL)) == {"Resize": 1}
