"""Resizing of early opsets computes the same at a later one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipeline.errors import ModelError
from pipeline.graph.files.model_file import MODEL, load_graph
from pipeline.graph.shapes.normal_form import lift_resizes
from tests.support.sources import ingested, model, numbers, outputs

X = "g (float[1,2,6,8] x) => (float[1,2,h,w] y)"
LARGER, SMALLER = np.array([1, 1, 2, 3], np.float32), np.array([1, 1, 0.5, 0.25], np.float32)
FORMS = {
    "an attribute, opset 8": (f"{X} {{ y = Upsample <scales = [1.0, 1.0, 2.0, 3.0]> (x) }}", 8, None),
    "nearest, opset 9": (f'{X} {{ y = Upsample <mode = "nearest"> (x, s) }}', 9, LARGER),
    "linear, opset 9": (f'{X} {{ y = Upsample <mode = "linear"> (x, s) }}', 9, LARGER),
    "nearest, opset 10": (f"{X} {{ y = Resize (x, s) }}", 10, LARGER),
    "linear, opset 10": (f'{X} {{ y = Resize <mode = "linear"> (x, s) }}', 10, LARGER),
    "smaller, opset 10": (f"{X} {{ y = Resize (x, s) }}", 10, SMALLER),
    "smaller and linear, opset 10": (f'{X} {{ y = Resize <mode = "linear"> (x, s) }}', 10, SMALLER),
}


@pytest.mark.parametrize("form", FORMS)
def test_resizing_of_early_opsets_is_lifted(form: str, tmp_path: Path) -> None:
    text, opset, scales = FORMS[form]
    source = model(text, {} if scales is None else {"s": scales}, opset=opset)
    feeds = {"x": numbers(1, 2, 6, 8)}
    wanted = outputs(source, feeds)[0]

    made = ingested(tmp_path, source).folder / MODEL

    assert [node.op_type for node in load_graph(made).graph.node] == ["Resize"]
    np.testing.assert_allclose(outputs(made, feeds)[0], wanted, rtol=1e-6, atol=1e-6)


def test_resizing_that_grows_one_axis_and_shrinks_another(tmp_path: Path) -> None:
    """Lifted if linear; the nearest pixel is before on one axis and behind on the other, which no later form says."""
    mixed, feeds = {"s": np.array([1, 1, 2, 0.5], np.float32)}, {"x": numbers(1, 2, 6, 8)}
    linear = model(f'{X} {{ y = Resize <mode = "linear"> (x, s) }}', mixed, opset=10)
    made = ingested(tmp_path / "linear", linear).folder / MODEL
    np.testing.assert_allclose(outputs(made, feeds)[0], outputs(linear, feeds)[0], rtol=1e-6, atol=1e-6)
    with pytest.raises(ModelError, match=r"'y' \(Resize\) grows one axis and shrinks another"):
        ingested(tmp_path / "nearest", model(f"{X} {{ y = Resize (x, s) }}", mixed, opset=10))


def test_resizing_of_opset_11_is_left_alone(tmp_path: Path) -> None:
    source = model(f"{X} {{ y = Resize (x, , s) }}", {"s": LARGER}, opset=11)
    assert lift_resizes(source) == []
