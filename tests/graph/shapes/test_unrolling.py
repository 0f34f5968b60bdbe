"""Loops whose iterations can be counted become nodes; the others are refused in words that help."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.errors import ModelError
from pipeline.graph.files.model_file import MODEL, load_graph
from pipeline.graph.shapes import unrolling
from tests.support.sources import model, numbers, outputs, same, shaped

HEAD = "g (float[n,4] x) => (float[n,4] y, float[a,b,c] s) {{ {} }}"
ADDS = "(int64 i, bool c, float[n,4] v) => (bool d, float[n,4] u, float[n,4] r)"
CONSTANTS: dict[str, NDArray[Any]] = {
    "w": numbers(4, 4), "three": np.array(3), "one_three": np.array([3]), "go": np.array(True), "stop": np.array(False),
    "one": np.array(1), "never": np.array(2**63 - 1), "half": np.array(0.5, np.float32), "zero": np.array(0),
}  # fmt: skip
UNROLLED: dict[str, tuple[str, dict[str, int]]] = {
    "a constant number of times, values carried, results stacked, weights from outside": (
        f"y, s = Loop (three, go, x) <body = b {ADDS} {{ d = Identity (c) u = MatMul (v, w) r = Relu (u) }}>",
        {"MatMul": 3, "Relu": 3, "Unsqueeze": 3, "Concat": 1},
    ),
    "without a condition, a constant in the body, the number of the iteration read": (
        f"""y, s = Loop (three, , x) <body = b {ADDS} {{
            k = Constant <value_float = 2.0> () d = Constant <value_int = 1> () dd = Cast <to = 9> (d)
            f = Cast <to = 1> (i) g = Add (f, k) u = Mul (v, g) r = Neg (u) }}>""".replace("(bool d", "(bool dd"),
        {"Mul": 3, "Neg": 3, "Unsqueeze": 3, "Concat": 1},
    ),
    "until a condition that follows from the number of the iteration": (
        f"""y, s = Loop (never, go, x) <body = b {ADDS} {{
            d = Less (i, three) u = Add (v, half) r = Identity (v) }}>""",
        {"Add": 4, "Unsqueeze": 4, "Concat": 1},
    ),
    "as often as a shape says": (
        f"""m = Shape <end = 1> (x) q = Squeeze (m)
        y, s = Loop (q, go, x) <body = b {ADDS} {{ d = Identity (c) u = Add (v, half) r = Neg (x) }}>""",
        {"Add": 5, "Neg": 1, "Unsqueeze": 5, "Concat": 1},
    ),
    "a loop in a loop, an If of its number": (
        f"""y, s = Loop (three, go, x) <body = b {ADDS} {{ d = Identity (c)
            e = Equal (i, one)
            u = Loop (three, , v) <body = bb (int64 ii, bool cc, float[n,4] vv) => (bool dd, float[n,4] uu) {{
                dd = Identity (cc)
                uu = If (e) <then_branch = t () => (float[n,4] h) {{ h = Add (vv, half) }},
                             else_branch = o () => (float[n,4] k) {{ k = MatMul (vv, w) }}> }}>
            r = Identity (u) }}>""",
        {"Add": 3, "MatMul": 6, "Unsqueeze": 3, "Concat": 1},
    ),
    "a scan over rows, from the last on, stacked on another axis": (
        """t, s = Scan (row, x) <num_scan_inputs = 1, scan_input_directions = [1], scan_output_axes = [1],
            body = b (float[4] v, float[4] r) => (float[4] u, float[p,q] o) {
            u = Add (v, r) axes = Constant <value_ints = [0]> () o = Unsqueeze (u, axes) }>
        y = Add (x, t)""",
        {"Gather": 5, "Add": 6, "Unsqueeze": 10, "Concat": 1},
    ),
    "a scan over columns, put in front of each other": (
        """col = ReduceSum <keepdims = 0> (x, ones)
        t, s = Scan (col, x, x) <num_scan_inputs = 2, scan_input_axes = [1, -1], scan_output_directions = [1],
            body = b (float[n] v, float[n] r, float[n] k) => (float[n] u, float[n,1] o) {
            z = Mul (r, k) u = Add (v, z) axes = Constant <value_ints = [1]> () o = Unsqueeze (u, axes) }>
        y = Relu (x)""",
        {"ReduceSum": 1, "Gather": 8, "Mul": 4, "Add": 4, "Unsqueeze": 8, "Concat": 1, "Relu": 1},
    ),
}


@pytest.mark.parametrize("case", UNROLLED)
def test_a_loop_that_can_be_counted_becomes_nodes(case: str, tmp_path: Path) -> None:
    body, left = UNROLLED[case]
    source = model(HEAD.format(body), CONSTANTS | {"row": numbers(4), "ones": np.array([1])})
    static = shaped(tmp_path, source, n=5)
    graph = load_graph(static.folder / MODEL).graph
    counted: dict[str, int] = {}
    for node in graph.node:
        counted[node.op_type] = counted.get(node.op_type, 0) + 1
    assert counted == left
    assert sum(list(tensor.dims) == [4, 4] for tensor in graph.initializer) <= 1, "a weight is there once"
    assert len({node.name for node in graph.node}) == len(graph.node)
    feeds = {"x": numbers(5, 4)}
    assert same(outputs(static.folder / MODEL, feeds), outputs(source, feeds))


def test_a_value_may_grow_from_iteration_to_iteration(tmp_path: Path) -> None:
    source = model(
        """g (float[n,4] x) => (float[m,4] y) {
            y = Loop (three, go, x) <body = b (int64 i, bool c, float[k,4] v) => (bool c, float[j,4] u) {
                u = Concat <axis = 0> (v, x) }> }""",
        CONSTANTS,
    )
    static = shaped(tmp_path, source, n=2)
    assert static.facts["outputs"] == [{"name": "y", "dtype": "float32", "shape": [8, 4]}]
    assert same(outputs(static.folder / MODEL, {"x": (x := numbers(2, 4))}), outputs(source, {"x": x}))


@pytest.mark.parametrize("condition", ["go", "stop"])
def test_a_loop_that_never_runs_gives_what_it_was_given(condition: str, tmp_path: Path) -> None:
    source = model(
        """g (float[n,4] x) => (float[n,4] y) { z = Relu (x)
            y = Loop (times, condition, z) <body = b (int64 i, bool c, float[n,4] v) => (bool c, float[n,4] u) {
                u = MatMul (v, w) }> }""",
        CONSTANTS | {"times": np.array(0 if condition == "go" else 3), "condition": CONSTANTS[condition]},
    )
    static = shaped(tmp_path, source, n=2)
    assert [node.op_type for node in load_graph(static.folder / MODEL).graph.node] == ["Relu"]


REFUSED = {
    "a condition on data": (
        f"y, s = Loop (three, go, x) <body = b {ADDS} {{ u = MatMul (v, w) m = ReduceMax <keepdims = 0> (u) "
        "d = Less (m, half) r = Relu (u) }>",
        ["what node 'y' (Loop) runs depends on data", "its condition", "computed from 'x'", "then it is unrolled here"],
    ),
    "a number from data": (
        f"m = ReduceMax <keepdims = 0> (x) k = Cast <to = 7> (m) y, s = Loop (k, go, x) <body = b {ADDS} {{ "
        "d = Identity (c) u = MatMul (v, w) r = Relu (u) }>",
        ["what node 'y' (Loop) runs depends on data", "its input 'k', computed from 'x'"],
    ),
    "no end": (
        f"y, s = Loop (never, go, x) <body = b {ADDS} {{ d = Identity (c) u = MatMul (v, w) r = Relu (u) }}>",
        ["node 'y' (Loop) runs too often to be written out", "has 3 nodes", "may become 100 nodes"],
    ),
    "nothing to stack": (
        f"y, s = Loop (zero, go, x) <body = b {ADDS} {{ d = Identity (c) u = MatMul (v, w) r = Relu (u) }}>",
        ["node 'y' (Loop) runs no iteration, so that its output 's' has no elements"],
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_other_loops_are_refused(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unrolling, "UNROLL_LIMIT", 100)
    body, said = REFUSED[case]
    with pytest.raises(ModelError) as caught:
        shaped(tmp_path, model(HEAD.format(body), CONSTANTS), n=5)
    for part in said:
        assert part in str(caught.value)
