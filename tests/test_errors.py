"""Bad input, as a user meets it: one clear message, the documented exit code, and everything already built kept."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from tests.support.project import Project, Run

pytestmark = pytest.mark.slow

CONFIG = "configs/bert.yaml"

FIRST_LINE = "    params = Params.from_json(request.params)\n"
"""The first line of the stage context."""


def fails(project: Project, status: int, *texts: str, command: tuple[str, ...] = ("build",)) -> Run:
    """The command fails with this status and says all of this, without a traceback, and keeps what was there."""
    before = project.artifacts()
    run = project.doit(*command, check=False)
    for text in texts:
        assert text in run.text
    assert run.status == status, run.text
    assert "Traceback" not in run.text
    assert project.artifacts() == before
    return run


def test_an_unknown_target(project: Project) -> None:
    project.edit(CONFIG, "sm8650]", "sm9999]")
    fails(project, 10, "configs/bert.yaml:8:31: targets[1]: unknown target 'sm9999'")
    project.edit(CONFIG, "sm9999]", "sm865]")
    fails(project, 10, "unknown target 'sm865'", "did you mean 'sm8650'?")


def test_an_axis_that_no_component_has(project: Project) -> None:
    project.edit(CONFIG, "{sequence: [16, 32]}", "{seqence: [16, 32]}")
    run = fails(project, 10, "no component of bert has an axis named 'seqence'", "did you mean 'sequence'?")
    assert "configs/bert.yaml:5:" in run.text
    assert "these axes: batch, sequence" in run.text


def test_an_axis_that_nobody_fixed(project: Project) -> None:
    project.edit(CONFIG, "fixed: {batch: 1}\n", "")
    fails(project, 10, "batch", "input_ids")


def test_an_empty_calibration_file(project: Project) -> None:
    project.write("calibration/lines.txt", "\n\n")
    fails(project, 13, "the calibration set is empty: lines.txt gives no samples", "16 to 64 that are typical")


def test_a_tokenizer_of_another_model(project: Project) -> None:
    vocabulary = {"type": "WordLevel", "vocab": {"[UNK]": 99999}, "unk_token": "[UNK]"}
    project.write("models/bert/tokenizer.json", json.dumps({"version": "1.0", "model": vocabulary}))
    fails(project, 13, "can't compute a sample", "lines.txt:1", "out of data bounds", "belong to this model")


def test_a_calibration_file_that_is_not_there(project: Project) -> None:
    (project.root / "calibration/lines.txt").unlink()
    fails(project, 10, "lines.txt", "does not exist")


def test_a_model_file_that_is_not_there(project: Project) -> None:
    project.edit(CONFIG, "onnx/model.onnx", "onnx/modle.onnx")
    fails(project, 11, "the model folder has no file onnx/modle.onnx; did you mean 'onnx/model.onnx'?")


@pytest.mark.parametrize("damage", [lambda data: data[: len(data) // 2], lambda _: b"\x00" * 1000, lambda _: b""])
def test_a_corrupt_model(project: Project, damage: object) -> None:
    assert callable(damage)
    path = project.root / "models/bert/onnx/model.onnx"
    path.write_bytes(damage(path.read_bytes()))
    fails(project, 12, "model.onnx", "not an ONNX")


def test_a_data_dependent_shape(project: Project) -> None:
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "sequence"])
    mask = helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ["batch", "sequence"])
    out = helper.make_tensor_value_info("found", TensorProto.INT64, [2, "n"])
    graph = helper.make_graph(
        [helper.make_node("NonZero", ["input_ids"], ["found"], name="find")], "g", [ids, mask], [out]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, project.root / "models/bert/onnx/model.onnx")
    fails(project, 12, "find", "NonZero")


def test_unknown_filters_and_names(project: Project) -> None:
    fails(project, 10, "unknown variable 'model'; did you mean 'models'?", command=("build", "model=bert"))
    fails(project, 10, "models=brt: no config has that; did you mean 'bert'?", command=("build", "models=brt"))
    fails(project, 10, "targets=sm865", "did you mean 'sm8650'?", command=("build", "targets=sm865"))
    fails(project, 10, "'The catalogue' in docs/config.md lists every chip", command=("build", "targets=sm8560"))
    fails(project, 10, "no step is named 'build:brt'; did you mean 'build:bert'?", command=("build:brt",))
    fails(project, 10, "no step is named 'context:brt/*'", command=("context:brt/*",))


@pytest.mark.parametrize(
    ("crash", "said"),
    [
        ("import os; os.abort()", "killed by signal 6 (SIGABRT)"),
        ("import os; os._exit(127)", "exit status 127"),
        ("import ctypes; ctypes.string_at(0)", "killed by signal 11 (SIGSEGV)"),
        ("print('last words', flush=True); import os; os._exit(0)", "| last words"),
    ],
)
def test_a_worker_that_dies_costs_its_step_only(project: Project, crash: str, said: str) -> None:
    project.write(CONFIG, (project.root / CONFIG).read_text() + "quantization: {weights: int8}\n")
    path = project.root / "pipeline/stages/context.py"
    text = path.read_text("utf-8")
    project.edit("pipeline/stages/context.py", FIRST_LINE, f"    {crash}\n{FIRST_LINE}")
    run = fails(project, 18, "the worker of context:bert/encoder/", said, "everything already built is kept")
    assert "quantize:bert/encoder" in run.built | run.restored
    path.write_text(text, "utf-8")
    assert {name.split(":")[0] for name in project.doit("build").built} <= {"context", "verify", "emulate"}


def test_a_bug_in_a_stage_is_told_as_one(project: Project) -> None:
    project.edit("pipeline/stages/context.py", FIRST_LINE, '    params = {}["form"]\n')
    fails(project, 18, "hit a bug: KeyError", "context.py:")


def test_an_artifacts_folder_that_can_not_be_written(project: Project) -> None:
    project.edit(CONFIG, "[snapdragon-x-elite, sm8650]", "[snapdragon-x-elite, sm8650, qcs9100]")
    project.write("artifacts/bert/qcs9100", "a file where a folder must be")
    fails(project, 17, "the artifacts folder can't be written", "qcs9100", "Not a directory")


def test_a_store_that_can_not_be_made(project: Project, tmp_path: Path) -> None:
    project.write("calibration/lines.txt", "one sentence\n")
    (tmp_path / "file").write_text("in the way")
    project.store = tmp_path / "file" / "store"
    fails(project, 17, "the store can't be used", "Not a directory")


def test_a_build_folder_that_can_not_be_made(project: Project) -> None:
    shutil.rmtree(project.root / ".build")
    project.write(".build", "a file where a folder must be")
    fails(project, 17, "the disk refused a write", ".build", "File exists")


def test_an_output_that_was_damaged_is_made_again(project: Project) -> None:
    for name in ("fetch/bert", "shape/bert/encoder/16", "context/bert/encoder/16/sm8650"):
        project.write(f".build/steps/{name}.json", '{"half')
    run = project.doit("build")
    assert not run.built
    assert len(run.restored) == 3
