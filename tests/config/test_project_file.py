from __future__ import annotations

import json
import typing
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from pipeline.config.project_file import CompareSettings, ProjectFile, Settings, StageOrAll, load
from pipeline.errors import ConfigError
from pipeline.stage_table import STAGES
from tests.support.config_mistakes import GOOD, PROJECT_MISTAKES, write
from tests.support.configs import load_all
from tests.support.project import ROOT

SCHEMA: dict[str, Any] = json.loads((ROOT / "configs" / "project.schema.json").read_text("utf-8"))
WRITTEN = """\
store: {shared: "s3://bucket/folder"}
stages:
  "*": {hosts: [x86_64]}
  context: {hosts: [X86_64, windows-aarch64, Snapdragon 8 Gen 3, linux-2, Quantizer]}
compare: {size_percent: 5, snr_db: 0.5}
"""


def loaded(root: Path, text: str) -> ProjectFile:
    return load(write(root, text, "project.yaml").parent)


def test_what_is_written_is_read_and_knows_its_place(tmp_path: Path) -> None:
    project = loaded(tmp_path, WRITTEN)
    settings = project.settings
    assert settings.store.shared == "s3://bucket/folder"
    assert settings.hosts("context") == ("x86_64", "windows-aarch64", "sm8650", "linux-2", "quantizer")
    assert settings.hosts("emulate") == ("x86_64",)
    assert settings.ruled_by("context") == ("stages", "context", "hosts")
    assert settings.ruled_by("emulate") == ("stages", "*", "hosts")
    assert settings.compare == CompareSettings(size_percent=5.0, snr_db=0.5, score=0.01)
    assert project.place("store.shared") == "configs/project.yaml:1:17"
    assert project.place("stages['*'].hosts") == "configs/project.yaml:3:16"
    assert project.place("stages.fetch.hosts") == "configs/project.yaml"


@pytest.mark.parametrize("text", [None, "", "# nothing yet\n", "{}\n"])
def test_the_file_and_all_in_it_may_be_left_out(tmp_path: Path, text: str | None) -> None:
    (tmp_path / "configs").mkdir()
    project = loaded(tmp_path, text) if text is not None else load(tmp_path / "configs")
    assert project.settings == Settings()
    assert project.settings.hosts("context") is None


@pytest.mark.parametrize(("text", "expected"), PROJECT_MISTAKES.values(), ids=PROJECT_MISTAKES.keys())
def test_a_mistake_is_refused_with_its_place(tmp_path: Path, text: str | bytes, expected: list[str]) -> None:
    folder = write(tmp_path, text, "project.yaml").parent
    with pytest.raises(ConfigError) as caught:
        load(folder)
    head, *lines = caught.value.what.splitlines()
    assert head == "one mistake in the configuration:"
    assert [line.startswith(f"  configs/project.yaml:{said}") for line, said in zip(lines, expected, strict=True)] == [
        True
    ], lines


def test_its_mistakes_are_told_with_those_of_the_models(tmp_path: Path) -> None:
    write(tmp_path, "stages: {fetch: {hosts: [arm64]}}\n", "project.yaml")
    folder = write(tmp_path, GOOD.replace("fixed", "fixt")).parent
    with pytest.raises(ConfigError, match="2 mistakes") as caught:
        load_all(folder)
    assert "configs/mine.yaml:4:1" in caught.value.what
    assert "configs/project.yaml:1:26" in caught.value.what


def test_it_is_no_model(tmp_path: Path) -> None:
    write(tmp_path, WRITTEN, "project.yaml")
    assert list(load_all(write(tmp_path, GOOD).parent)) == ["mine"]


def test_a_link_to_nowhere_is_not_taken_for_no_file(tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "project.yaml").symlink_to(tmp_path / "gone.yaml")
    with pytest.raises(ConfigError, match=r"project\.yaml:1:1: can't be read"):
        load(tmp_path / "configs")


def test_stages_are_those_that_there_are() -> None:
    assert typing.get_args(StageOrAll) == ("*", *STAGES)


def test_the_schema_takes_what_decoding_takes() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(yaml.safe_load(WRITTEN), SCHEMA)


@pytest.mark.parametrize(
    "mistake",
    ["unknown key", "unknown key of the store", "no place for the store", "unknown stage", "a stage without hosts",
     "no hosts", "one host, no list", "no name", "no limit", "a model", "a list"],
)  # fmt: skip
def test_the_schema_refuses_what_decoding_refuses(mistake: str) -> None:
    text, _ = PROJECT_MISTAKES[mistake]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(yaml.safe_load(text), SCHEMA)


def test_the_example_in_the_reference_loads(tmp_path: Path) -> None:
    example = (ROOT / "docs" / "config.md").read_text("utf-8").partition("# Settings of the project")[2]
    example = example.split("```yaml\n")[1].split("```")[0]
    assert loaded(tmp_path, example).settings.hosts("context") == ("x86_64", "windows-aarch64")
