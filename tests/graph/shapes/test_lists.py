"""Lists of tensors are followed until only tensors are left."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipeline.errors import ModelError
from pipeline.graph.files.model_file import MODEL, load_graph
from tests.support.graphs import operators
from tests.support.sources import model, numbers, outputs, same, shaped

HEAD = "g (float[n,6] x) => (float[a,b] y)"
CONSTANTS = {
    "zero": np.array(0), "one": np.array(1), "last": np.array(-1), "four": np.array(4), "two_four": np.array([2, 4]),
    "go": np.array(True), "w": numbers(6, 6), "axes": np.array([0]),
}  # fmt: skip
FORMS = {
    "split in ones, one taken": f"{HEAD} {{ s = SplitToSequence <axis = 1> (x) y = SequenceAt (s, last) }}",
    "split without the axis, stacked again": f"""{HEAD} {{ s = SplitToSequence <axis = -1, keepdims = 0> (x)
        y = ConcatFromSequence <axis = 1, new_axis = 1> (s) }}""",
    "split by a size that leaves a rest": f"""{HEAD} {{ s = SplitToSequence <axis = 1> (x, four)
        a = SequenceAt (s, one) y = Neg (a) }}""",
    "split by sizes": f"{HEAD} {{ s = SplitToSequence <axis = 1> (x, two_four) y = SequenceAt (s, one) }}",
    "made, added to, taken from": f"""{HEAD} {{ a = Relu (x) b = Neg (x) s = SequenceConstruct (a, b)
        t = SequenceInsert (s, x) u = SequenceInsert (t, a, zero) v = SequenceErase (u, one)
        y = ConcatFromSequence <axis = 0> (v) }}""",
    "its length": f"""{HEAD} {{ s = SplitToSequence <axis = 1> (x) l = SequenceLength (s) k = Cast <to = 1> (l)
        y = Mul (x, k) }}""",
    "grown in a loop": f"""{HEAD} {{ e = SequenceEmpty () s, t = Loop (four, go, e, x) <body =
        b (int64 i, bool c, seq(float[n,6]) l, float[n,6] v) => (bool d, seq(float[n,6]) m, float[n,6] u) {{
        d = Identity (c) k = MatMul (v, w) u = Tanh (k) m = SequenceInsert (l, u) }}>
        y = ConcatFromSequence <axis = 0> (s) }}""",
}


@pytest.mark.parametrize("form", FORMS)
def test_lists_become_tensors(form: str, tmp_path: Path) -> None:
    source = model(FORMS[form], CONSTANTS)
    feeds = {"x": numbers(3, 6)}
    static = shaped(tmp_path, source, n=3).folder / MODEL
    assert not any("Sequence" in kind for kind in operators(load_graph(static)))
    assert same(outputs(static, feeds), outputs(source, feeds))


def test_a_place_that_follows_from_data_is_refused(tmp_path: Path) -> None:
    source = model(
        f"""{HEAD} {{ s = SplitToSequence <axis = 1> (x) m = ReduceMax <keepdims = 0> (x) k = Cast <to = 7> (m)
        y = SequenceAt (s, k) }}""",
        CONSTANTS,
    )
    with pytest.raises(ModelError, match=r"what node 'y' \(SequenceAt\) does to a list depends on data"):
        shaped(tmp_path, source, n=3)
