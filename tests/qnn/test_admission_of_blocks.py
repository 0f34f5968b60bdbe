from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from ml_dtypes import int4, uint4

from pipeline.contracts.context import CompiledModel
from pipeline.errors import QuantizationError
from pipeline.graph.files.model_file import save_graph
from pipeline.qnn.compiling import admission
from pipeline.qnn.compiling.compile import compile_context
from pipeline.qnn.running.emulate import run_context
from tests.conformance.batches import X_ELITE
from tests.support.block_models import in_blocks
from tests.support.fresh import fresh
from tests.support.graphs import outputs

X = np.random.default_rng(0).uniform(-2.9, 2.9, (1, 8, 64)).astype(np.float32)


@pytest.mark.parametrize(("kind", "zero_point"), [(uint4, 8), (int4, 3)])
def test_blocks_with_zero_points_are_refused(kind: type, zero_point: int) -> None:
    with pytest.raises(QuantizationError, match="the weight 'w' is stored in blocks with zero points") as refused:
        admission.check(in_blocks(kind, zero_point), Path(), X_ELITE)
    assert "symmetrically" in refused.value.remedy


@pytest.mark.parametrize("kind", [uint4, int4])
def test_blocks_without_are_taken(kind: type) -> None:
    admission.check(in_blocks(kind, 0), Path(), X_ELITE)


def compiled_unchecked(model: Path, out: Path) -> CompiledModel:
    """For a process of its own."""
    setattr(admission, "_check_blocks", lambda *_: None)  # noqa: B010
    return compile_context(model, "net", X_ELITE, out)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "zero_point", "is_right"), [(int4, 0, True), (int4, 3, False), (uint4, 8, False)])
def test_the_chip_takes_zero_points_of_blocks_for_0(
    kind: type, zero_point: int, is_right: bool, tmp_path: Path
) -> None:
    model = in_blocks(kind, zero_point)
    save_graph(model, tmp_path / "model.onnx")
    (tmp_path / "out").mkdir()

    context = fresh(compiled_unchecked, tmp_path / "model.onnx", tmp_path / "out")
    made = fresh(run_context, tmp_path / "out", context.context_model, X_ELITE, [{"x": X}])[0][0]

    off = np.abs(made - outputs(model, {"x": X})["y"]).max()
    assert (off < 0.02) == is_right, "if it is right now: drop the refusal in pipeline/qnn/compiling/admission.py"
