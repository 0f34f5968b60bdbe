"""Several buckets in one binary, with the real compiler, on tiny models."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from onnx import TensorProto, helper

from pipeline.contracts.context import CompiledModel
from pipeline.contracts.target import HtpTarget
from pipeline.contracts.values import TensorSpec
from pipeline.errors import CompileError, ModelError
from pipeline.graph.files.model_file import save_graph
from pipeline.qnn.compiling.compile import compile_shared
from pipeline.qnn.compiling.readback import check_pack
from pipeline.qnn.format.context_binary import read_binary
from pipeline.qnn.running.emulate import can_emulate
from tests.support.fresh import fresh
from tests.support.packs import SHARED, X_ELITE, contents, shared
from tests.support.project import ROOT
from tests.support.tiny_models import Scheme, float_model, qdq_model


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {f"encoder_{seq}": qdq_model(root / str(seq), seq) for seq in (8, 16, 32)}


@pytest.fixture(scope="module")
def built(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, CompiledModel]]:
    out = tmp_path_factory.mktemp("built") / "out"
    return out, shared(models, out)


class TestWhatIsMade:
    def test_a_context_model_for_each_and_one_binary(self, built: tuple[Path, dict[str, CompiledModel]]) -> None:
        out, contexts = built
        assert sorted(contents(out)) == [
            "encoder_16_ctx.onnx",
            "encoder_32_ctx.onnx",
            "encoder_8_ctx.onnx",
            SHARED,
        ]
        assert {context.binaries for context in contexts.values()} == {(SHARED,)}
        assert {context.targets for context in contexts.values()} == {(X_ELITE,)}

    def test_each_is_about_its_own_model(self, built: tuple[Path, dict[str, CompiledModel]]) -> None:
        for name, context in built[1].items():
            assert context.context_model == f"{name}_ctx.onnx"
            shape = (1, int(name.removeprefix("encoder_")), 32)
            assert context.inputs == (TensorSpec("x", "float32", shape),)
            assert [node.name for node in context.cpu_nodes] == ["x_quantize", "relu1_dequantize"]
            assert all("configured to not take" in node.reason for node in context.cpu_nodes)

    def test_the_binary_has_a_graph_of_each(self, built: tuple[Path, dict[str, CompiledModel]]) -> None:
        assert len({graph.name for graph in read_binary(built[0] / SHARED).graphs}) == 3

    def test_the_emulator_can_not_take_them(self, built: tuple[Path, dict[str, CompiledModel]]) -> None:
        assert not can_emulate(built[0], "encoder_8_ctx.onnx")

    def test_equal_weights_are_there_once(self, built: tuple[Path, dict[str, CompiledModel]], tmp_path: Path) -> None:
        """Weights are 1 KiB each here, so the saving is small against what every graph needs for itself."""
        differ = {
            f"encoder_{seq}": qdq_model(tmp_path / str(seq), seq, Scheme(per_channel=seq == 16)) for seq in (8, 16, 32)
        }
        shared(differ, tmp_path / "out")
        assert (tmp_path / "out" / SHARED).stat().st_size >= (built[0] / SHARED).stat().st_size

    def test_a_float_model(self, tmp_path: Path) -> None:
        models = {f"encoder_{seq}": float_model(tmp_path / str(seq), seq, between="Asinh") for seq in (8, 16)}
        contexts = shared(models, tmp_path / "out")
        for context in contexts.values():
            assert context.partitions == 2
            assert [(node.name, node.op) for node in context.cpu_nodes] == [("between", "Asinh")]
            assert "Operators of type `Asinh` are not supported" in context.cpu_nodes[0].reason


class TestBytes:
    def test_do_not_depend_on_folder_process_order_or_hash_seed(
        self,
        models: dict[str, Path],
        built: tuple[Path, dict[str, CompiledModel]],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        elsewhere = tmp_path / "Ünïcode 폴더 with spaces"
        moved = {}
        for name in reversed(models):
            shutil.copytree(models[name].parent, elsewhere / name)
            moved[name] = Path(name, "model.onnx")
        monkeypatch.chdir(elsewhere)
        monkeypatch.setenv("PYTHONHASHSEED", "12345")
        assert shared(moved, elsewhere / "out") == built[1]
        assert contents(elsewhere / "out") == contents(built[0])


class TestErrors:
    def test_name_the_model_that_can_not_be_compiled(self, models: dict[str, Path], tmp_path: Path) -> None:
        crashing = {**models, "encoder_16": float_model(tmp_path / "16", 16, between="Mish")}
        with pytest.raises(ModelError) as caught:
            shared(crashing, tmp_path / "out")
        assert caught.value.where == "encoder_16, node 'between'"
        assert not list((tmp_path / "out").iterdir())

    def test_name_the_model_that_the_compiler_refuses(self, models: dict[str, Path], tmp_path: Path) -> None:
        with pytest.raises(CompileError) as caught:
            shared(models, tmp_path / "out", HtpTarget(9999, 73))
        assert caught.value.what == "QNN compiled nothing of encoder_16 for SoC 9999 (HTP v73)"
        assert caught.value.where == "encoder_16.onnx"
        assert not list((tmp_path / "out").iterdir())

    def test_name_a_later_model_that_the_compiler_takes_nothing_of(
        self, models: dict[str, Path], tmp_path: Path
    ) -> None:
        """The process, which has compiled another by then, ends in order: its error would be lost otherwise."""
        alone = tmp_path / "alone.onnx"
        x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 8]) for name in ("x", "y"))
        graph = helper.make_graph([helper.make_node("Asinh", ["x"], ["y"], "the_node")], "g", [x], [y])
        save_graph(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), alone)
        (tmp_path / "out").mkdir()
        script = (
            "import sys; from pathlib import Path; from tests.support.packs import *\n"
            "if __name__ == '__main__':\n"
            "    first, second, out = map(Path, sys.argv[1:])\n"
            "    compile_shared({'encoder_16': first, 'encoder_8': second}, X_ELITE, out, binary=SHARED)\n"
        )
        command = [sys.executable, "-c", script, *map(str, (models["encoder_16"], alone, tmp_path / "out"))]
        ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
        assert "QNN compiled nothing of encoder_8 for SoC 60 (HTP v73)" in ended.stderr
        assert ended.returncode == 1
        assert not list((tmp_path / "out").iterdir())

    def test_another_architecture_than_the_socs(self, models: dict[str, Path], tmp_path: Path) -> None:
        with pytest.raises(CompileError) as caught:
            shared(models, tmp_path / "out", HtpTarget(57, 73, 8))
        assert caught.value.where == SHARED
        assert caught.value.why == "it is for SoC 57 (HTP v75), SoC 57 (HTP v73) was asked for"

    def test_a_second_compile_in_the_same_process(self, models: dict[str, Path], tmp_path: Path) -> None:
        with pytest.raises(CompileError, match="a second compile in one process"):
            fresh(_twice, models, tmp_path)

    def test_a_graph_that_no_context_model_refers_to(self, built: tuple[Path, dict[str, CompiledModel]]) -> None:
        with pytest.raises(CompileError) as caught:
            check_pack(built[0], ["encoder_8_ctx.onnx", "encoder_16_ctx.onnx"])
        assert "those of encoder_8_ctx.onnx and encoder_16_ctx.onnx" in caught.value.why
        check_pack(built[0], [f"{name}_ctx.onnx" for name in built[1]])


def _twice(models: dict[str, Path], folder: Path) -> None:
    for name in ("first", "second"):
        (folder / name).mkdir()
        compile_shared(models, X_ELITE, folder / name, binary=SHARED)
