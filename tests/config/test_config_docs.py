from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from pipeline.config import docs
from pipeline.config.file_names import RESERVED
from pipeline.config.load import load
from pipeline.plan.planner import plan
from tests.support.config_mistakes import GOOD, MISTAKES, write
from tests.support.project import ROOT

SCHEMA: dict[str, Any] = json.loads((ROOT / "configs" / "config.schema.json").read_text("utf-8"))


COMMITTED = sorted(path for path in (ROOT / "configs").glob("*.yaml") if path.name not in RESERVED)


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.name)
def test_committed_configs_are_valid(path: Path) -> None:
    text = path.read_text("utf-8")
    assert text.startswith("# yaml-language-server: $schema=config.schema.json\n")
    jsonschema.validate(yaml.safe_load(text), SCHEMA, jsonschema.Draft202012Validator)
    config = load(path)
    assert plan(config)
    for reader in (config.calibration, config.verification.samples if config.verification else None):
        named = [getattr(reader, name, None) for name in ("file", "folder")]
        named += [getattr(getattr(reader, "run", None), "file", None)]
        assert all(file.exists() for file in named if file)


def test_the_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(yaml.safe_load(GOOD), SCHEMA)


@pytest.mark.parametrize(
    "mistake",
    [
        "unknown key",
        "missing key",
        "bool where int",
        "out of bounds",
        "number where text",
        "unknown word",
        "hub and path",
        "neither hub nor path",
        "hub without a revision",
        "not a repository",
        "no reader",
        "key of another reader",
        "path escapes",
        "not onnx",
        "backslash",
        "run elsewhere",
        "component name",
        "a name that Windows reserves",
        "no components",
        "no values",
        "list where mapping",
        "a list",
    ],
)
def test_the_schema_refuses_what_decoding_refuses(mistake: str) -> None:
    text, _ = MISTAKES[mistake]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(yaml.safe_load(text), SCHEMA)


@pytest.mark.parametrize("name", docs.generated())
def test_schema_and_reference_are_up_to_date(name: str) -> None:
    written = (ROOT / name).read_text("utf-8")
    assert written == docs.generated()[name], "run python -m pipeline.config.docs"


def test_the_example_in_the_reference_loads(tmp_path: Path) -> None:
    example = (ROOT / "docs" / "config.md").read_text("utf-8").split("```yaml\n")[1].split("```")[0]
    assert [bucket.name for bucket in load(write(tmp_path, example)).buckets] == ["32", "64", "128"]


def test_links_within_the_reference_lead_somewhere() -> None:
    text = (ROOT / "docs" / "config.md").read_text("utf-8")
    anchors = {
        "".join(letter for letter in line[3:].lower() if letter.isalnum() or letter in " -_").replace(" ", "-")
        for line in text.splitlines()
        if line.startswith("## ")
    }
    linked = {part.split(")")[0] for part in text.split("](#")[1:]}
    assert linked <= anchors
    assert (ROOT / "docs" / "calibration.md").is_file()
