"""Mistakes about files that a config names: each with its line, all at once, and before anything is built."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pipeline.config.load import load
from pipeline.errors import CalibrationError, ConfigError, PipelineError, SourceError
from pipeline.plan.named_files import at_its_place, check, named_in_source, sampled_at
from pipeline.plan.planner import plan
from pipeline.plan.workspace import Workspace
from tests.support.project import ROOT, Project

CONFIG = """\
source: {path: ../model}
components:
  net: {file: model.onnx}
fixed: {batch: 1}
files: [voice.bin]
calibration: {reader: text, file: calibration/lines.txt}
verification: {samples: {reader: text, file: calibration/held.tsv}, score: "calibration/code.py:score"}
targets: [sm8650]
release: {version: "1", files: [tokenizer.json], licenses: [LICENSE]}
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project in which nothing is missing; its files need only look like what they are."""
    for name in ("configs", "calibration", "model"):
        (tmp_path / name).mkdir()
    shutil.copy(ROOT / "configs/demo/model.onnx", tmp_path / "model")
    for name in ("tokenizer.json", "voice.bin", "LICENSE"):
        (tmp_path / "model" / name).write_text("{}")
    (tmp_path / "calibration/lines.txt").write_text("one\ntwo\n")
    (tmp_path / "calibration/held.tsv").write_text("a\tthree\n")
    (tmp_path / "calibration/code.py").write_text("def score(samples, outputs):\n    return 1.0\n")
    (tmp_path / "configs/net.yaml").write_text(CONFIG)
    return tmp_path


def refusal(root: Path, *stages: str) -> PipelineError:
    config = load(root / "configs/net.yaml")
    steps = [step for step in plan(config) if not stages or step.stage in stages]
    with pytest.raises(PipelineError) as caught:
        check(config, steps, Workspace.at(root))
    return caught.value


def edit(root: Path, old: str, new: str) -> None:
    path = root / "configs/net.yaml"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))


def test_nothing_is_wrong(root: Path) -> None:
    config = load(root / "configs/net.yaml")
    check(config, plan(config), Workspace.at(root))


@pytest.mark.parametrize(
    ("old", "new", "kind", "what", "where"),
    [
        ("../model", "../modle", SourceError, "the model folder modle does not exist", "1:16"),
        ("model.onnx", "net.onnx", SourceError, "the model folder has no file net.onnx", "3:15"),
        ("voice.bin", "voices.bin", SourceError, "no file voices.bin; did you mean 'voice.bin'?", "5:9"),
        ("lines.txt}", "lines.txt, tokenizer: t.json}", SourceError, "the model folder has no file t.json", "6:69"),
        ("[tokenizer.json]", "[tok.json]", SourceError, "the model folder has no file tok.json", "9:33"),
        ("[LICENSE]", "[LICENCE]", SourceError, "no file LICENCE; did you mean 'LICENSE'?", "9:61"),
        ("lines.txt", "line.txt", ConfigError, "line.txt does not exist; did you mean 'lines.txt'?", "6:35"),
        ("held.tsv", "hold.tsv", ConfigError, "hold.tsv does not exist; did you mean 'held.tsv'?", "7:46"),
        ("code.py", "cod.py", ConfigError, "cod.py does not exist; did you mean 'code.py'?", "7:76"),
        (":score", ":scor", ConfigError, "calibration/code.py has no function 'scor'; did you mean 'score'?", "7:76"),
        ("calibration/lines.txt", "calibration", CalibrationError, "calibration is a folder, and reader text", "6:35"),
    ],
)
def test_each_mistake_has_its_line(
    root: Path, old: str, new: str, kind: type[PipelineError], what: str, where: str
) -> None:
    edit(root, old, new)
    error = refusal(root)
    assert type(error) is kind
    assert what in error.what
    assert error.where.split(", ")[0] == f"configs/net.yaml:{where}"
    assert error.remedy


@pytest.mark.parametrize("text", ["", "\n \n\r\n\t\n", "\ufeff\n"])
@pytest.mark.parametrize(
    ("file", "named", "where"), [("lines.txt", "calibration", "6:35"), ("held.tsv", "verification", "7:46")]
)
def test_a_file_without_a_sample(root: Path, text: str, file: str, named: str, where: str) -> None:
    (root / "calibration" / file).write_text(text, "utf-8")
    error = refusal(root)
    assert type(error) is CalibrationError
    assert error.what == f"the {named} set is empty: {file} gives no samples"
    assert error.where == f"configs/net.yaml:{where}"


@pytest.mark.parametrize(("reader", "seen"), [("npz", ".npz, .npy"), ("images", ".bmp"), ("audio, rate: 8", ".wav")])
def test_a_folder_without_a_sample(root: Path, reader: str, seen: str) -> None:
    edit(root, "text, file: calibration/lines.txt", f"{reader}, folder: calibration/set")
    (root / "calibration/set/below").mkdir(parents=True)
    (root / "calibration/set/below/README.md").write_text("nothing yet")
    error = refusal(root)
    assert error.what == "the calibration set is empty: set gives no samples"
    assert seen in error.why
    (root / f"calibration/set/below/1{seen.split(', ')[0].upper()}").write_text("for the reader to judge")
    check(config := load(root / "configs/net.yaml"), plan(config), Workspace.at(root))


def test_a_link_to_a_folder_is_left_to_the_reader(root: Path) -> None:
    edit(root, "text, file: calibration/lines.txt", "npz, folder: calibration/set")
    (root / "calibration/set").mkdir()
    (root / "calibration/set/again").symlink_to(root / "calibration")
    check(config := load(root / "configs/net.yaml"), plan(config), Workspace.at(root))


def test_code_that_python_does_not_take(root: Path) -> None:
    (root / "calibration/code.py").write_text("import json\n\ndef score(:\n")
    error = refusal(root)
    assert (error.what, error.exit_code) == ("calibration/code.py can't be loaded", 10)
    assert error.where == "configs/net.yaml:7:76, calibration/code.py:3"


def test_all_mistakes_are_told_at_once(root: Path) -> None:
    edit(root, "../model", "../modle")
    edit(root, "lines.txt", "line.txt")
    edit(root, ":score", ":scor")
    error = refusal(root)
    assert type(error) is ConfigError
    assert error.what.startswith("3 mistakes in what configs/net.yaml names:\n")
    for line in ("1:16: the model folder", "6:35, for samples:net/calibration: the file of", "7:76: calibration/code"):
        assert f"configs/net.yaml:{line}" in error.what


def test_mistakes_of_one_kind_keep_their_exit_code(root: Path) -> None:
    edit(root, "[tokenizer.json]", "[tok.json]")
    edit(root, "voice.bin", "voices.bin")
    assert type(refusal(root)) is SourceError


def test_only_what_is_to_run_is_looked_at(root: Path) -> None:
    edit(root, "lines.txt", "line.txt")
    edit(root, ":score", ":scor")
    error = refusal(root, "fetch", "ingest", "samples")
    assert "line.txt does not exist" in error.what
    assert "scor" not in error.what


def test_what_the_hub_refuses_is_placed_too(root: Path) -> None:
    edit(root, "{path: ../model}", "{hub: a/b, revision: main}")
    config = load(root / "configs/net.yaml")
    fetch = next(step for step in plan(config) if step.stage == "fetch")
    error = SourceError("a/b has no file tokenizer.json; did you mean 'x/tokenizer.json'?", where="a/b at main")
    assert at_its_place(error, fetch).where == f"{named_in_source(config)['tokenizer.json']}, a/b at main"
    assert at_its_place(SourceError("a/b is not there"), fetch).where == "configs/net.yaml:1:15"


def test_what_is_wrong_with_a_sample_is_placed_too(root: Path) -> None:
    config = load(root / "configs/net.yaml")
    held_out = next(step for step in plan(config) if step.id == "samples:net/verification")
    error = CalibrationError("a line of a .tsv file has no tab", where="held.tsv:7")
    assert sampled_at(error, held_out).where == "configs/net.yaml:7:46, held.tsv:7"
    edit(root, "lines.txt}", "lines.txt, tokenizer: t.json}")
    samples = next(step for step in plan(load(root / "configs/net.yaml")) if step.id == "samples:net/calibration")
    assert sampled_at(CalibrationError("t.json is not a tokenizer"), samples).where == "configs/net.yaml:6:69"


@pytest.mark.slow
def test_nothing_of_the_model_is_built_and_all_of_the_others(project: Project) -> None:
    project.write("calibration/code.py", "def score(samples, outputs):\n    return 1.0\n")
    whole = (project.root / "configs/bert.yaml").read_text()
    broken = whole.replace("verification: {", 'verification: {score: "calibration/code.py:scor", ')
    assert broken != whole
    project.write("configs/broken.yaml", broken)
    run = project.doit("build", check=False)
    assert run.status == 10, run.text
    assert "has no function 'scor'; did you mean 'score'?" in run.text
    assert "configs/broken.yaml:" in run.text
    assert not [step for step in run.built | run.restored if ":broken" in step]
    assert "artifacts/bert" in run.text
