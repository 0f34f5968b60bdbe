from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import yaml

from pipeline.config import docs
from pipeline.config.file_names import RESERVED
from pipeline.config.load import load
from pipeline.contracts.measures import Subject
from pipeline.graph.accuracy.figures.measuring import measure
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


def test_the_example_of_logits_asks_for_what_it_says(tmp_path: Path) -> None:
    blocks = (ROOT / "docs" / "config.md").read_text("utf-8").split("```yaml\n")
    example = next(block.split("```")[0] for block in blocks if "choice: -1" in block)
    config = load(write(tmp_path, blocks[1].split("```")[0] + example))
    (component,) = config.components.values()
    assert component.outputs["logits"].choice == -1
    least = component.thresholds.outputs["logits"].total_db
    assert least is not None
    truth = np.tile(np.array([[3.0, 1.0]]), (1000, 1))
    for wrong, passes in ((5, True), (6, False)):
        tested = truth.copy()
        tested[:wrong] = [1.0, 3.0]
        subject = Subject("logits", by="choice", axis=-1, tie=0.1)
        found = measure({"logits": subject}, ["a"], [{"logits": truth}], [{"logits": tested}])["logits"]
        assert found.sqnr_db is not None
        assert (found.sqnr_db >= least) is passes


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
