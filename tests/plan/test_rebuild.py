"""Only what changed: each change runs exactly the steps that depend on it, and going back runs none."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.support.project import Project

pytestmark = pytest.mark.slow

CONFIG = "configs/bert.yaml"
AFTER_CALIBRATION = {
    "calibrate": 1, "correlate": 1, "quantize": 1, "verify": 2, "reading": 1, "context": 4, "emulate": 4
}  # fmt: skip


def test_touching_files_runs_nothing(project: Project) -> None:
    for path in project.root.rglob("*"):
        if path.is_file() and ".build" not in path.parts:
            os.utime(path)
    assert project.doit("build").stages() == {}


def test_a_comment_and_the_order_of_keys_run_nothing(project: Project) -> None:
    lines = (project.root / CONFIG).read_text().splitlines()
    project.write(CONFIG, "# a comment\n" + "\n".join([*reversed(lines[4:]), *lines[:4]]) + "\n")
    assert project.doit("build").stages() == {}


def test_a_renamed_config_runs_nothing(project: Project) -> None:
    (project.root / CONFIG).rename(project.root / "configs" / "other.yaml")
    run = project.doit("build")
    assert run.stages() == {}
    assert len(run.restored) == 22


def test_another_file_in_the_model_folder_runs_nothing(project: Project) -> None:
    project.write("models/bert/README.md", "not needed")
    assert project.doit("build").stages() == {}


def test_a_changed_sample_runs_calibration_and_what_follows(project: Project) -> None:
    original = (project.root / "calibration/lines.txt").read_text()
    project.write("calibration/lines.txt", original + "one sentence more\n")
    assert project.doit("build").stages() == {"samples": 1, **AFTER_CALIBRATION}
    project.write("calibration/lines.txt", original)
    run = project.doit("build")
    assert run.stages() == {}
    assert len(run.restored) == 15


def test_an_upstream_step_that_yields_the_same_bytes_stops_the_rebuild(project: Project) -> None:
    text = (project.root / "calibration/lines.txt").read_text()
    project.write("calibration/lines.txt", text + "\n\n")  # blank lines are no samples
    assert project.doit("build").stages() == {"samples": 1}


def test_a_held_out_sample_runs_only_verification(project: Project) -> None:
    project.write("calibration/held_out.txt", "another held-out sentence\n")
    assert project.doit("build").stages() == {"samples": 1, "verify": 2, "reading": 1, "emulate": 4}


def test_a_new_bucket_runs_its_own_steps_and_calibration(project: Project) -> None:
    project.edit(CONFIG, "[16, 32]", "[16, 32, 48]")
    stages = project.doit("build", "targets=sm8650").stages()
    assert stages["shape"] == stages["rewrite"] == 1
    assert stages["calibrate"] == 1
    assert "ingest" not in stages


def test_a_dropped_bucket_does_not_run_its_steps(project: Project) -> None:
    project.edit(CONFIG, "[16, 32]", "[32]")
    stages = project.doit("build").stages()
    assert "shape" not in stages
    assert stages["context"] == 2
    assert not [name for name in project.artifacts() if "_16" in name]


def test_a_new_target_runs_only_its_contexts(project: Project) -> None:
    project.edit(CONFIG, "[snapdragon-x-elite, sm8650]", "[snapdragon-x-elite, sm8650, sm8750]")
    run = project.doit("build")
    assert run.built == {
        f"{stage}:bert/encoder/{bucket}/sm8750" for stage in ("context", "emulate") for bucket in (16, 32)
    }


def test_another_precision_runs_quantization_and_what_follows(project: Project) -> None:
    project.write(CONFIG, (project.root / CONFIG).read_text() + "quantization: {activations: uint8}\n")
    assert project.doit("build").stages() == {"quantize": 1, "verify": 2, "reading": 1, "context": 4, "emulate": 4}


def change_a_weight(project: Project) -> None:
    path = project.root / "models/bert/onnx/model.onnx"
    model = onnx.load(path)
    tensor = max(model.graph.initializer, key=lambda each: each.ByteSize())
    array = numpy_helper.to_array(tensor).copy()
    array.reshape(-1)[0] += np.float32(0.5)
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    onnx.save(model, path)


def test_a_changed_weight_runs_everything_that_has_it(project: Project) -> None:
    change_a_weight(project)
    stages = project.doit("build").stages()
    assert stages["fetch"] == stages["ingest"] == stages["calibrate"] == 1
    assert stages["shape"] == 2
    assert stages["context"] == 4


def test_a_changed_weight_in_external_data_is_seen(project: Project) -> None:
    path = project.root / "models/bert/onnx/model.onnx"
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="model.onnx_data", size_threshold=1024)
    first = project.doit("build")
    assert {"fetch": 1, "ingest": 1}.items() <= first.stages().items()
    assert "context" not in first.stages(), "the same weights in another file make the same contexts"
    data = path.with_name("model.onnx_data")
    raw = bytearray(data.read_bytes())
    at = len(raw) // 2 // 4 * 4
    raw[at : at + 4] = np.float32(0.75).tobytes()
    data.write_bytes(raw)
    stages = project.doit("build").stages()
    assert stages["fetch"] == stages["ingest"] == stages["calibrate"] == 1
    assert stages["context"] == 4


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        ("pipeline/graph/files/model_file.py", '"""', '"""Reworded: '),
        ("pipeline/config/thresholds.py", "max_cpu_nodes: int = 0", "max_cpu_nodes: int = 1"),
        ("pipeline/config/thresholds.py", "total_db: float = 20.0", "total_db: float = 19.0"),
        ("pipeline/store/durable.py", "there is no room for", "the disk is too small for"),
        ("pipeline/plain_text.py", "did you mean", "perhaps you mean"),
        ("pipeline/qnn/compiling/readback.py", "QNN took none of the model", "QNN took nothing"),
        ("pipeline/errors.py", "  {label}: ", "  {label} "),
    ],
)
def test_docstrings_defaults_of_thresholds_and_texts_of_errors_run_nothing(
    project: Project, module: str, old: str, new: str
) -> None:
    path = project.root / module
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), "utf-8")
    assert project.doit("build").stages() == {}


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        ("pipeline/stages/context.py", {"context": 4}),
        ("pipeline/qnn/compiling/compile.py", {"context": 4, "emulate": 4}),
        ("pipeline/stages/verify.py", {"verify": 2}),
        ("pipeline/qnn/failures.py", {}),
        ("pipeline/tasks.py", {}),
    ],
)
def test_changed_code_runs_the_stages_that_use_it(project: Project, module: str, expected: dict[str, int]) -> None:
    path = project.root / module
    path.write_text(path.read_text("utf-8") + "\nCHANGED = True\n", "utf-8")
    assert project.doit("build").stages() == expected


def test_another_package_version_runs_the_stages_that_use_the_package(project: Project, tmp_path: Path) -> None:
    fake = tmp_path / "site" / "tokenizers-99.0.dist-info"
    fake.mkdir(parents=True)
    (fake / "METADATA").write_text("Metadata-Version: 2.1\nName: tokenizers\nVersion: 99.0\n")
    run = project.doit("build", PYTHONPATH=str(tmp_path / "site"))
    assert run.stages() == {"samples": 2, "reading": 1}, "the samples are the same, so nothing after them runs"


def test_what_a_score_function_imports_is_content(project: Project) -> None:
    project.write(
        "calibration/score.py", "from calibration.part import VALUE\n\ndef score(samples, outputs):\n    return VALUE\n"
    )
    project.write("calibration/part.py", "VALUE = 0.5\n")
    project.edit(
        CONFIG, "tokenizer: tokenizer.json}}", 'tokenizer: tokenizer.json}, score: "calibration/score.py:score"}'
    )
    assert project.doit("build").stages() == {"verify": 2, "emulate": 4}
    project.write("calibration/part.py", "VALUE = 0.75\n")
    run = project.doit("build")
    assert run.stages() == {"verify": 2, "emulate": 4}
    assert "0.75" in run.text


def test_what_a_score_function_imports_relatively_is_content_and_so_are_the_packages_above(project: Project) -> None:
    project.write(
        "calibration/score.py", "from .parts.wav import VALUE\n\ndef score(samples, outputs):\n    return VALUE\n"
    )
    project.write("calibration/parts/__init__.py", "GAIN = 0.25\n")
    project.write("calibration/parts/wav.py", "from . import GAIN\nVALUE = GAIN * 2\n")
    project.write("calibration/parts/unused.py", "")
    project.edit(
        CONFIG, "tokenizer: tokenizer.json}}", 'tokenizer: tokenizer.json}, score: "calibration/score.py:score"}'
    )
    run = project.doit("build")
    assert run.stages() == {"verify": 2, "emulate": 4}
    assert "0.5" in run.text
    project.write("calibration/parts/wav.py", "from . import GAIN\nVALUE = GAIN * 3\n")
    run = project.doit("build")
    assert run.stages() == {"verify": 2, "emulate": 4}
    assert "0.75" in run.text
    project.write("calibration/parts/__init__.py", "GAIN = 0.125\n")
    run = project.doit("build")
    assert run.stages() == {"verify": 2, "emulate": 4}
    assert "0.375" in run.text
    project.write("calibration/parts/wav.py", '"""Sound."""\nfrom . import GAIN\n\nVALUE = GAIN * 3  # thrice\n')
    project.write("calibration/parts/unused.py", "X = 1\n")
    assert project.doit("build").stages() == {}


def test_a_corrupt_payload_in_the_store_is_reported_dropped_and_rebuilt(project: Project, fresh_store: Path) -> None:
    project.store = fresh_store
    before = project.artifacts()
    shutil.rmtree(project.root / "artifacts")
    manifest = json.loads((project.root / ".build/steps/context/bert/encoder/16/sm8650.json").read_text())
    sha256 = manifest["files"]["encoder_16_ctx_qnn.bin"]["sha256"]
    payload = fresh_store / "objects" / sha256[:2] / sha256
    payload.chmod(0o644)
    data = bytearray(payload.read_bytes())
    data[len(data) // 2] ^= 0xFF
    payload.write_bytes(data)
    run = project.doit("build")
    assert (
        "damaged in the store: encoder_16_ctx_qnn.bin: its SHA-256 is not the one that it was stored under" in run.text
    )
    assert str(payload) in run.text
    assert run.built == {"context:bert/encoder/16/sm8650"}
    assert project.artifacts() == before
    assert project.doit("build").stages() == {}


def test_an_input_that_changes_while_a_step_runs_is_not_kept_under_the_old_key(project: Project) -> None:
    project.write(
        "calibration/changing.py",
        "import numpy as np\n\n\ndef run(path):\n    path.write_text(path.read_text() + 'more\\n')\n"
        "    yield {name: np.ones((1, 8), np.int64) for name in ('input_ids', 'attention_mask')}\n",
    )
    project.edit(
        CONFIG,
        "{reader: text, file: calibration/lines.txt, tokenizer: tokenizer.json}\nverification",
        '{reader: python, run: "calibration/changing.py:run", file: calibration/lines.txt}\nverification',
    )
    run = project.doit("samples:bert/calibration", check=False)
    assert run.status == 17
    assert "something that samples:bert/calibration is made from changed while it ran" in run.text
    assert not run.built
