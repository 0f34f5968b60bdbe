"""Only the models that a command line is about are planned."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline import tasks
from pipeline.command_line import parse
from pipeline.config import load as config_load
from pipeline.config.load import ModelConfig
from pipeline.config.yaml.problems import Problems
from pipeline.errors import ConfigError
from pipeline.plan import planner
from pipeline.plan.about import check_names, models_about
from pipeline.plan.steps import Step
from tests.support import tiny_project

MODELS = {"demo", "demo2", "minilm"}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("list", set()),
        ("list --all", MODELS),
        ("list build:demo", MODELS),
        ("-n 2 list", MODELS),
        ("", MODELS),
        ("build", MODELS),
        ("build models=demo", MODELS),
        ("gc", MODELS),
        ("clean build:demo", MODELS),
        ("build:demo", {"demo"}),
        ("-n 2 build:demo", {"demo"}),
        ("run build:demo package:minilm", {"demo", "minilm"}),
        ("build:demo gc", MODELS),
        ("build:demo*", {"demo", "demo2"}),
        ("build:dem?", {"demo", "demo2"}),
        ("build:[dm]*", MODELS),
        ("context:demo/encoder/*/sm8650", {"demo"}),
        ("context:*sm8650", MODELS),
        ("context:demo", {"demo"}),
        ("build:nothing", set()),
    ],
)
def test_the_models_that_a_command_line_is_about(line: str, expected: set[str]) -> None:
    assert models_about(parse(line.split()), MODELS) == expected


def test_only_configs_of_named_models_are_read_and_planned_whatever_rules_for_hosts_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tiny_project.create(tmp_path / "project", tmp_path / "store", buckets=(8,), targets=("sm8650",))
    text = (project.root / tiny_project.CONFIG).read_text("utf-8")
    for name in ("one", "two", "three"):
        project.write(f"configs/{name}.yaml", text)
    project.write("configs/project.yaml", "stages: {context: {hosts: [compiler]}}\n")
    read, planned = list[str](), list[str]()
    read_one, plan_one = config_load._read, planner.plan

    def noted_read(path: Path, problems: Problems) -> ModelConfig | None:
        read.append(path.stem)
        return read_one(path, problems)

    def noted_plan(config: ModelConfig) -> tuple[Step, ...]:
        planned.append(config.name)
        return plan_one(config)

    monkeypatch.setattr(config_load, "_read", noted_read)
    monkeypatch.setattr(tasks, "plan", noted_plan)
    for line, expected in (("build:two", {"two"}), ("build", {"tiny", "one", "two", "three"})):
        read.clear()
        planned.clear()
        tasks.Project(project.root, parse(line.split()))
        assert {*planned} == expected
        assert {*read} == expected


def test_a_name_without_a_step_is_refused_with_the_nearest_of_all_steps() -> None:
    every = ("context:demo/a/32/x", "context:minilm/a/32/x")
    check_names(["build:demo", "context:demo/*", "gc", "unheard:of"], every[:1], MODELS, lambda: every)
    with pytest.raises(ConfigError, match=r"'context:minilm/a/23/x'; did you mean 'context:minilm/a/32/x'"):
        check_names(["context:minilm/a/23/x"], (), MODELS, lambda: every)
    with pytest.raises(ConfigError, match="'build:dmo'; did you mean 'build:demo'"):
        check_names(["build:dmo"], (), MODELS, lambda: every)
