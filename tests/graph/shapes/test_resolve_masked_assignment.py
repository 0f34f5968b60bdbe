from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto

from pipeline.errors import ModelError
from pipeline.graph.files.model_file import MODEL, load_graph
from tests.support.graphs import operators
from tests.support.sources import model, outputs, same, shaped

PLACES = "i = NonZero (m)  t = Transpose <perm = [1, 0]> (i)"
COUNT = "s = Shape (i)  n = Slice (s, one, two)"
WRITTEN = "y = ScatterND (x, t, v)"
SAME_RANK = f"e = Expand (keep, whole)  m = Not (e)  {PLACES}  {COUNT}"
FORMS = {
    "a mask of the same rank": f"{SAME_RANK}  v = Expand (value, n)  {WRITTEN}",
    "a mask of fewer axes": f"m = Squeeze (keep, two)  {PLACES}  {COUNT}  c = Concat <axis = 0> (n, four)"
    f"  v = Expand (value, c)  {WRITTEN}",
    "a number for a mask": f"e = Expand (keep, whole)  m = Cast <to = 7> (e)  {PLACES}  {COUNT}  v = Expand (value, n)"
    f"  {WRITTEN}",
    "a value in a row": f"{SAME_RANK}  w = Expand (row, n)  v = Reshape (w, minus)  {WRITTEN}",
    "zeros": f"{SAME_RANK}  v = ConstantOfShape (n)  {WRITTEN}",
}
OTHERS = {
    "other values": f"{SAME_RANK}  l = Expand (long, whole)  f = Reshape (l, minus)  v = Slice (f, nought, n)"
    f"  {WRITTEN}",
    "added to what is there": f'{SAME_RANK}  v = Expand (value, n)  y = ScatterND <reduction = "add"> (x, t, v)',
}
CONSTANTS = {
    "whole": np.array([1, 5, 4]), "nought": np.array([0]), "one": np.array([1]), "two": np.array([2]),
    "four": np.array([4]), "minus": np.array([-1]), "value": np.array(-7, np.float32), "row": np.array([3], np.float32),
    "long": np.arange(4, dtype=np.float32),
}  # fmt: skip
FEEDS = {
    "keep": np.array([True, False, True, True, False]).reshape(1, 5, 1),
    "x": np.arange(20, dtype=np.float32).reshape(1, 5, 4),
}


def build(body: str) -> ModelProto:
    words = set(body.replace("(", " ").replace(")", " ").replace(",", " ").split())
    used = {name: array for name, array in CONSTANTS.items() if name in words}
    return model(f"g (bool[1,n,1] keep, float[1,n,4] x) => (float[1,n,4] y) {{ {body} }}", used, opset=18)


@pytest.mark.parametrize("form", FORMS)
def test_a_value_where_a_mask_is_set(form: str, tmp_path: Path) -> None:
    source = build(FORMS[form])

    static = shaped(tmp_path, source, n=5).folder / MODEL

    found = operators(load_graph(static))
    assert (found["Where"], found["NonZero"], found["ScatterND"]) == (1, 0, 0)
    assert same(outputs(static, FEEDS), outputs(source, FEEDS))


@pytest.mark.parametrize("form", OTHERS)
def test_anything_else_still_depends_on_data(form: str, tmp_path: Path) -> None:
    outputs(build(OTHERS[form]), FEEDS)
    with pytest.raises(ModelError, match=r"\(NonZero\) depends on data"):
        shaped(tmp_path, build(OTHERS[form]), n=5)
