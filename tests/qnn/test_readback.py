"""Each check on a compiled context, against a real one that was changed after the compile."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from onnx import ModelProto

from pipeline.contracts.context import CompiledModel, PartFacts
from pipeline.contracts.target import HtpTarget
from pipeline.errors import CompileError
from pipeline.graph.files.model_file import load_graph
from pipeline.qnn.compiling.readback import OpTrace, read_context
from tests.support.contexts import X_ELITE, build, edit
from tests.support.tiny_models import qdq_model


@pytest.fixture(scope="module")
def qdq(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return qdq_model(tmp_path_factory.mktemp("qdq"))


@pytest.fixture(scope="module")
def untouched(qdq: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("built") / "out"
    build(qdq, out)
    return out


@pytest.fixture
def context(untouched: Path, tmp_path: Path) -> Path:
    shutil.copytree(untouched, tmp_path, dirs_exist_ok=True)
    return tmp_path / "encoder_8_ctx.onnx"


def read(context: Path, qdq: Path, target: HtpTarget = X_ELITE) -> CompiledModel:
    return read_context(context.parent, context.name, [target], load_graph(qdq), OpTrace())


def why(context: Path, qdq: Path, target: HtpTarget = X_ELITE) -> str:
    with pytest.raises(CompileError) as caught:
        read(context, qdq, target)
    return caught.value.why


def test_an_untouched_context_passes(context: Path, qdq: Path) -> None:
    assert read(context, qdq).partitions == 1


def test_the_cost_is_of_the_graph_and_of_the_binary(context: Path, qdq: Path) -> None:
    """Two layers of 64 × 64, 8 rows: what the compiler says of its operators is in the facts of a real compile."""
    cost = read(context, qdq).cost
    assert sum(cost.macs.values()) == cost.all_macs > 0
    assert cost.vtcm_bytes >= 1 << 20
    assert cost.spill_bytes == 0
    assert cost.operators == {}, "without a trace nothing is known of them"


def test_operators_are_mapped_to_the_nodes_they_came_from(qdq: Path, tmp_path: Path) -> None:
    cost = PartFacts.from_json(build(qdq, tmp_path / "out")).cost
    made = {name for origins in cost.operators.values() for name in origins}
    assert {"MatMul", "Relu"} <= made, cost.operators
    assert not any("DequantizeLinear" in name and "+" in name for name in made)
    assert cost.dram_read_bytes is not None
    assert cost.dram_read_bytes >= cost.weight_bytes, "each weight is read at least once"
    assert cost.dram_write_bytes is not None
    assert cost.dram_write_bytes > 0


def test_no_partition(qdq: Path) -> None:
    assert why(qdq, qdq) == "it has no EPContext node: QNN took none of the model"


def test_a_missing_binary(context: Path, qdq: Path) -> None:
    context.with_name("encoder_8_ctx_qnn.bin").unlink()
    assert why(context, qdq) == "it refers to 'encoder_8_ctx_qnn.bin', which is not beside it"


def test_an_empty_binary(context: Path, qdq: Path) -> None:
    context.with_name("encoder_8_ctx_qnn.bin").write_bytes(b"")
    assert why(context, qdq) == "it is empty"


def test_a_binary_outside_the_folder(context: Path, qdq: Path) -> None:
    edit(context, set_attribute("ep_cache_context", "../encoder_8_ctx_qnn.bin"))
    assert why(context, qdq) == "it refers to '../encoder_8_ctx_qnn.bin', which is not beside it"


def test_a_partition_that_is_not_in_the_binary(context: Path, qdq: Path) -> None:
    edit(context, set_attribute("partition_name", "other"))
    assert why(context, qdq) == "its partition 'other' is not in encoder_8_ctx_qnn.bin"


def test_another_vtcm_than_asked_for(context: Path, qdq: Path) -> None:
    lower = HtpTarget(60, 73, 4)
    assert why(context, qdq, lower) == "it is for 8 MB of VTCM, 4 were asked for"


def test_another_input_than_the_models(context: Path, qdq: Path) -> None:
    def widen(model: ModelProto) -> None:
        model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 9

    edit(context, widen)
    refused = why(context, qdq)
    assert "its inputs are x: float32 [1, 9, 32], the model's are x: float32 [1, 8, 32]" in refused


@pytest.mark.parametrize("compatibility", ["", "v2:6:2.50.0:5.51.0:73:60:8:0", "v2:6:2.51.0:5.51.0:73:57:8:0"])
def test_a_compatibility_string_that_is_not_the_targets(context: Path, qdq: Path, compatibility: str) -> None:
    def rewrite(model: ModelProto) -> None:
        model.metadata_props[0].value = compatibility

    edit(context, rewrite)
    assert why(context, qdq).startswith(f"its compatibility string is {compatibility!r}, not 'v2:6:2.51.0:")


def set_attribute(name: str, value: str) -> Callable[[ModelProto], None]:
    def change(model: ModelProto) -> None:
        for node in model.graph.node:
            for attribute in node.attribute:
                if attribute.name == name:
                    attribute.s = value.encode()

    return change
