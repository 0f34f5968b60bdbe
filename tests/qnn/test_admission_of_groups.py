from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipeline.contracts.context import CompiledModel
from pipeline.errors import ModelError
from pipeline.graph.files.model_file import save_graph
from pipeline.qnn.compiling import admission
from pipeline.qnn.compiling.compile import compile_context
from pipeline.qnn.running.emulate import run_context
from tests.conformance.batches import X_ELITE
from tests.conformance.cases import single
from tests.conformance.formats import FORMATS, in_format
from tests.support.fresh import fresh
from tests.support.graphs import outputs

RANDOM = np.random.default_rng(3)
X = RANDOM.uniform(0.5, 2, (1, 8, 4, 5, 6)).astype(np.float32)
W = RANDOM.normal(size=(8, 6, 3, 3, 3)).astype(np.float32)


@pytest.mark.parametrize("number_format", FORMATS)
def test_groups_in_five_dims_are_refused(number_format: str) -> None:
    model, feeds = single("ConvTranspose", [X, W], constants=(1,), group=2)
    with pytest.raises(ModelError, match="in 2 groups comes out wrong") as refused:
        admission.check(in_format(model, feeds, number_format, {}), Path(), X_ELITE)
    assert "one ConvTranspose for each group" in refused.value.remedy


def test_others_are_let_through() -> None:
    for x, weight, groups in ((X, W, 1), (X[..., 0], W[..., 0], 2)):
        model, _ = single("ConvTranspose", [x, weight], constants=(1,), group=groups)
        admission.check(model, Path(), X_ELITE)


def compiled_unchecked(model: Path, out: Path) -> CompiledModel:
    """For a process of its own."""
    setattr(admission, "_check_transposed", lambda *_: None)  # noqa: B010
    return compile_context(model, "net", X_ELITE, out)


@pytest.mark.slow
def test_the_chip_computes_other_numbers_in_groups(tmp_path: Path) -> None:
    model, feeds = single("ConvTranspose", [X, W], constants=(1,), group=2)
    save_graph(model, tmp_path / "model.onnx")
    (tmp_path / "out").mkdir()

    context = fresh(compiled_unchecked, tmp_path / "model.onnx", tmp_path / "out")
    made = fresh(run_context, tmp_path / "out", context.context_model, X_ELITE, [feeds])[0][0]

    off = np.abs(made - outputs(model, feeds)["y0"]).max()
    assert off > 0.1, "it is right now: drop the refusal in pipeline/qnn/compiling/admission.py"
