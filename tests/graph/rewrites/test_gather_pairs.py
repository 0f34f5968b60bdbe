from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto

from pipeline.graph.rewrites import apply_all
from pipeline.graph.rewrites.gathers import gather_pairs
from tests.support.graphs import constant, graph, operators, outputs
from tests.support.on_htp import on_chip, on_cpu, sqnr_db, with_rewrites, without_rewrites

# Of two ranges, so that the halves have different encodings.
X = np.random.default_rng(0).uniform(-5, 3, (1, 2, 8, 16)).astype(np.float32)

ROTARY = """
    odd = Slice (x, first, end, last, two)
    turned = Neg (odd)
    even = Slice (x, zeroth, end, last, two)
    a = Unsqueeze (turned, behind)
    b = Unsqueeze (even, behind)
    pairs = Concat <axis = -1> (a, b)
"""
OTHERS = {
    "steps of one": "odd = Slice (x, half, end, last, first) turned = Neg (odd)"
    "even = Slice (x, zeroth, half, last, first)"
    "a = Unsqueeze (turned, behind) b = Unsqueeze (even, behind) pairs = Concat <axis = -1> (a, b)",
    "halves in a row": "odd = Slice (x, first, end, last, two) even = Slice (x, zeroth, end, last, two)"
    "pairs = Concat <axis = -1> (odd, even)",
    "woven along another axis": ROTARY.replace("axis = -1", "axis = 0"),
    "nothing to weave": "odd = Slice (x, first, end, last, two) pairs = Neg (odd)",
}


def build(body: str, result: str = "1,2,8,8,2") -> ModelProto:
    constants = {
        "first": np.array([1]), "zeroth": np.array([0]), "half": np.array([8]), "two": np.array([2]),
        "end": np.array([2**63 - 1]), "last": np.array([3]), "behind": np.array([4]),
    }  # fmt: skip
    words = set(body.replace(",", " ").replace("(", " ").replace(")", " ").split())
    used = {name: value for name, value in constants.items() if name in words}
    return graph(f"g (float[1,2,8,16] x) => (float[{result}] pairs) {{ {body} }}", used)


def test_the_halves_are_gathered(tmp_path: Path) -> None:
    model = build(ROTARY)
    before = outputs(model, {"x": X})["pairs"]

    assert apply_all(model, tmp_path)["gather_pairs"] == 2

    assert operators(model) == {"Gather": 2, "Neg": 1, "Unsqueeze": 2, "Concat": 1}
    np.testing.assert_array_equal(constant(model, "odd_channels"), np.arange(1, 16, 2))
    np.testing.assert_array_equal(constant(model, "even_channels"), np.arange(0, 16, 2))
    np.testing.assert_array_equal(outputs(model, {"x": X})["pairs"], before)
    assert gather_pairs.apply(model, tmp_path) == 0


@pytest.mark.parametrize("start", [-1, 100, 14, -100])
@pytest.mark.parametrize("step", [2, 3])
def test_bounds_of_every_sign(start: int, step: int, tmp_path: Path) -> None:
    for end in (0, 5, -3, -(2**63), 2**63 - 1):
        count = len(range(16)[slice(start, end, step)])
        model = graph(
            f"""g (float[1,2,8,16] x) => (float[1,2,8,{count},1] y) {{
                s = Slice (x, start, end, last, step)
                a = Unsqueeze (s, behind)
                y = Concat <axis = 4> (a)
            }}""",
            {
                "start": np.array([start]), "end": np.array([end]), "last": np.array([-1]), "step": np.array([step]),
                "behind": np.array([4]),
            },
        )  # fmt: skip
        before = outputs(model, {"x": X})["y"]
        assert gather_pairs.apply(model, tmp_path) == 1
        np.testing.assert_array_equal(outputs(model, {"x": X})["y"], before)


@pytest.mark.parametrize("form", OTHERS)
def test_other_slices_are_left_alone(form: str, tmp_path: Path) -> None:
    shapes = {"halves in a row": "1,2,8,16", "woven along another axis": "2,2,8,8,1", "nothing to weave": "1,2,8,8"}
    model = build(OTHERS[form], result=shapes.get(form, "1,2,8,8,2"))
    before = operators(model)

    assert gather_pairs.apply(model, tmp_path) == 0

    assert operators(model) == before


@pytest.mark.slow
def test_the_chip_weaves_what_the_cpu_does(tmp_path: Path) -> None:
    model = build(ROTARY)
    figures = []
    for name, component in (
        ("sliced", without_rewrites(tmp_path / "sliced", model)),
        ("gathered", with_rewrites(tmp_path / "gathered", model)),
    ):
        quantized = component.quantize("all", component.calibrate([{"x": X}]))
        chip = on_chip(quantized, [{"x": X}], tmp_path / name / "out")
        figures.append(sqnr_db(on_cpu(quantized, [{"x": X}]), chip.outputs, "pairs"))

    # What is moved into a join is taken in the encoding of the join: slices are rescaled before it (`value_encodings`).
    assert figures[0] > 60
    assert figures[1] > 60
