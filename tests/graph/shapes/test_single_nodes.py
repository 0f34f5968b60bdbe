from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipeline.errors import ModelError
from pipeline.graph.files.model_file import MODEL, load_graph, signature
from pipeline.graph.rewrites import apply_all
from tests.support.graphs import outputs as run
from tests.support.sources import ingested, model, shaped

X = np.random.default_rng(0).normal(size=(1, 2, 7, 7, 7)).astype(np.float32)
POOLS = {
    "a window in the padding": ("kernel_shape = [2, 2], strides = [2, 2], pads = [1, 1, 1, 1]", [4, 4]),
    "beside one over the end": ("kernel_shape = [2, 3], strides = [2, 3], pads = [1, 1, 1, 0]", [4, 3]),
    "beside one in the input": ("kernel_shape = [2, 2], strides = [2, 2], pads = [1, 0, 1, 1]", [4, 4]),
    "far apart": ("kernel_shape = [1, 2], strides = [4, 1], pads = [0, 0, 0, 0]", [2, 6]),
    "far apart, behind the input": ("kernel_shape = [1, 1], strides = [7, 1], pads = [0, 0, 0, 0]", [1, 7]),
}


@pytest.mark.parametrize("case", POOLS)
@pytest.mark.parametrize("kind", ["MaxPool <", "AveragePool <", "AveragePool <count_include_pad = 1, ", "LpPool <"])
@pytest.mark.parametrize("opset", [18, 22])
def test_a_pool_has_the_windows_that_begin_in_its_input(opset: int, kind: str, case: str, tmp_path: Path) -> None:
    attributes, sizes = POOLS[case]
    text = f"g (float[1,2,7,7] x) => (float[1,2,a,b] y) {{ y = {kind}{attributes}, ceil_mode = 1> (x) }}"
    source = model(text, opset=opset)
    x = {"x": X[:, :, 0]}
    expected = run(source, x)["y"]
    assert list(expected.shape[2:]) == sizes
    static = shaped(tmp_path, ingested(tmp_path / "in", source))
    made = load_graph(static.folder / MODEL)
    (output,) = signature(made).outputs
    assert list(output.shape) == [1, 2, *sizes]
    np.testing.assert_allclose(run(made, x)["y"], expected, rtol=1e-6)


def test_a_pool_of_volumes_has_them_too(tmp_path: Path) -> None:
    text = """g (float[1,2,7,7,7] x) => (float[1,2,a,b,c] y) {
        y = MaxPool <kernel_shape = [2, 2, 2], strides = [2, 2, 2], pads = [1, 1, 1, 1, 1, 1], ceil_mode = 1> (x) }"""
    source = model(text)
    expected = run(source, {"x": X})["y"]
    assert expected.shape == (1, 2, 4, 4, 4)
    static = shaped(tmp_path, ingested(tmp_path / "in", source))
    made = load_graph(static.folder / MODEL)
    assert apply_all(made, static.folder)["pool_volumes"] == 1
    np.testing.assert_array_equal(run(made, {"x": X})["y"], expected)


@pytest.mark.parametrize(
    "attributes", ["kernel_shape = [2]", "kernel_shape = [2, 2], strides = [0, 1]", "kernel_shape = [2, 2], pads = [1]"]
)
def test_a_pool_that_is_not_one_is_refused(attributes: str, tmp_path: Path) -> None:
    text = f"g (float[1,2,7,7] x) => (float[1,2,a,b] y) {{ y = MaxPool <{attributes}, ceil_mode = 1> (x) }}"
    with pytest.raises(ModelError):
        shaped(tmp_path, ingested(tmp_path / "in", model(text)))
